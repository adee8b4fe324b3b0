#include "serve/response.h"

#include <algorithm>
#include <utility>

#include "infer/prompt.h"

namespace qdelta::serve {
namespace {

using nlohmann::json;

// Every text here is UTF-8; should one not be, an answer with U+FFFD is better than none.
std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

}  // namespace

std::string event(const json& data) { return "data: " + dump(data) + "\n\n"; }

Answer::Answer(const Tokenizer& tokenizer, const TokenText& token_text, const CompletionRequest& request,
               std::span<const SequenceRequest> sequences, std::string id, std::int64_t created, std::string model)
    : token_text_(token_text),
      scored_(request.logprobs.has_value()),
      stream_usage_(request.stream_usage),
      id_(std::move(id)),
      model_(std::move(model)),
      created_(created) {
  const auto n = static_cast<std::size_t>(request.n);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<std::int32_t>& prompt = sequences[i].prompt;
    if (i % n == 0) prompt_tokens_ += static_cast<std::int64_t>(prompt.size());
    Sequence sequence{
        request.echo ? TokenStream(tokenizer) : stream_behind(tokenizer, prompt), "", 0, {}, EndReason::none};
    if (request.echo) {
      const auto* text = std::get_if<std::string>(&request.prompts[i / n]);
      sequence.text = text != nullptr ? *text : tokenizer.decode(prompt);
    }
    sequences_.push_back(std::move(sequence));
  }
}

void Answer::score(Sequence& sequence, const ScoredToken& token) const {
  Scores& scores = sequence.scores;
  scores.tokens.push_back(token_text_(token.token));
  scores.text_offset.push_back(sequence.offset);
  sequence.offset += characters(sequence.stream.push(token.token));
  if (!token.log_probability) {
    scores.token_logprobs.push_back(nullptr);
    scores.top_logprobs.push_back(nullptr);
    return;
  }
  scores.token_logprobs.push_back(*token.log_probability);
  json top = json::object();
  const auto put = [&](std::int32_t id, float log_probability) {
    std::string name = token_text_(id);
    if (top.contains(name)) name = token_text_.distinct(id);
    top[name] = log_probability;
  };
  bool among = false;
  for (const TokenChance& chance : token.top) {
    put(chance.token, chance.log_probability);
    among = among || chance.token == token.token;
  }
  // The token itself is always there.
  if (!among) put(token.token, *token.log_probability);
  scores.top_logprobs.push_back(std::move(top));
}

Answer::Sequence& Answer::take(Update update) {
  Sequence& sequence = sequences_[update.sequence];
  for (const ScoredToken& token : update.prompt) score(sequence, token);
  if (scored_) {
    for (const ScoredToken& token : update.generated) score(sequence, token);
  }
  completion_tokens_ += static_cast<std::int64_t>(update.generated.size());
  sequence.text += update.text;
  sequence.end = update.end;
  return sequence;
}

json Answer::choice(std::size_t index, const Sequence& sequence) const {
  json scores = nullptr;
  if (scored_) {
    scores = {{"tokens", sequence.scores.tokens},
              {"token_logprobs", sequence.scores.token_logprobs},
              {"top_logprobs", sequence.scores.top_logprobs},
              {"text_offset", sequence.scores.text_offset}};
  }
  json finish = nullptr;
  if (sequence.end == EndReason::eos || sequence.end == EndReason::stop_string) finish = "stop";
  if (sequence.end == EndReason::length) finish = "length";
  return {{"index", index}, {"text", sequence.text}, {"logprobs", scores}, {"finish_reason", finish}};
}

json Answer::object(json choices) const {
  return {{"id", id_},
          {"object", "text_completion"},
          {"created", created_},
          {"model", model_},
          {"choices", std::move(choices)}};
}

json Answer::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_}};
}

void Answer::add(Update update) { take(std::move(update)); }

std::string Answer::whole() const {
  json choices = json::array();
  for (std::size_t i = 0; i < sequences_.size(); ++i) choices.push_back(choice(i, sequences_[i]));
  json all = object(std::move(choices));
  all["usage"] = usage();
  return dump(all);
}

std::string Answer::events(Update update) {
  const std::size_t index = update.sequence;
  Sequence& sequence = take(std::move(update));
  // Held back text without scores is nothing to tell.
  if (sequence.text.empty() && sequence.scores.tokens.empty() && sequence.end == EndReason::none) return "";
  std::string out = event(object(json::array({choice(index, sequence)})));
  sequence.text.clear();
  sequence.scores = {};
  return out;
}

std::string Answer::last_events() const {
  std::string out;
  if (stream_usage_) {
    json all = object(json::array());
    all["usage"] = usage();
    out += event(all);
  }
  return out + "data: [DONE]\n\n";
}

}  // namespace qdelta::serve
