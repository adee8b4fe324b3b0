#include "serve/response.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "infer/prompt.h"
#include "serve/json_text.h"

namespace qdelta::serve {
namespace {

const char* finish_reason(EndReason end) {
  switch (end) {
    case EndReason::eos:
    case EndReason::stop_token:
    case EndReason::stop_string:
      return "\"stop\"";
    case EndReason::length:
      return "\"length\"";
    case EndReason::none:
    case EndReason::not_finite:
      break;
  }
  return "null";
}

}  // namespace

void put_in_parts(Update update, std::deque<Update>& out) {
  const auto at = [&](std::size_t i) {
    return std::make_move_iterator(update.prompt.begin() + static_cast<std::ptrdiff_t>(i));
  };
  std::size_t done = 0;
  for (; update.prompt.size() - done > kScoresInEvent; done += kScoresInEvent) {
    Update part;
    part.sequence = update.sequence;
    part.prompt.assign(at(done), at(done + kScoresInEvent));
    out.push_back(std::move(part));
  }
  if (done > 0) update.prompt = std::vector<ScoredToken>(at(done), at(update.prompt.size()));
  out.push_back(std::move(update));
}

std::string event(std::string_view data) { return fmt::format("data: {}\n\n", data); }

Answer::Answer(const Tokenizer& tokenizer, const TokenText& token_text, const CompletionRequest& request,
               std::span<const SequenceRequest> sequences, AnswerHead head)
    : chat_(request.chat),
      scored_(request.logprobs.has_value()),
      stream_usage_(request.stream_usage),
      head_(std::move(head)) {
  const auto n = static_cast<std::size_t>(request.n);
  const auto none = std::make_shared<const StopStrings>(std::span<const std::string>());
  sequences_.reserve(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::span<const std::int32_t> prompt = sequences[i].prompt;
    const std::size_t pending = sequences[i].pending();
    if (i % n == 0) prompt_tokens_ += static_cast<std::int64_t>(prompt.size() - pending);
    TokenStream stream = stream_behind(tokenizer, request.echo ? prompt.first(pending) : prompt);
    Sequence sequence{SequenceText(tokenizer, prompt, sequences[i].stops != nullptr ? sequences[i].stops : none),
                      ScoreText(token_text, std::move(stream), chat_),
                      "",
                      pending,
                      {},
                      false,
                      EndReason::none};
    if (request.echo) {
      const auto* text = std::get_if<std::string>(&request.prompts[i / n]);
      sequence.text = text != nullptr ? *text : tokenizer.decode(prompt.subspan(pending));
    }
    sequences_.push_back(std::move(sequence));
  }
}

bool Answer::take(Update& update, Sequence& sequence) {
  sequence.text += sequence.reader.take(update);
  if (scored_) {
    const std::size_t hidden = std::min(sequence.pending, update.prompt.size());
    sequence.pending -= hidden;
    std::ranges::move(std::span(update.prompt).subspan(hidden), std::back_inserter(sequence.scored));
    std::ranges::copy(update.generated, std::back_inserter(sequence.scored));
  }
  completion_tokens_ += static_cast<std::int64_t>(update.generated.size());
  sequence.end = update.end;
  if (update.end != EndReason::none) ++ended_;
  return sequence.reader.stopped();
}

bool Answer::add(Update update) {
  Sequence& sequence = sequences_[update.sequence];
  if (sequence.end != EndReason::none) return false;  // beyond a stop string
  return take(update, sequence);
}

bool Answer::add_events(Update update, std::string& out) {
  const std::size_t index = update.sequence;
  Sequence& sequence = sequences_[index];
  if (sequence.end != EndReason::none) return false;
  const bool stopped = take(update, sequence);
  // Held back text without scores is nothing to tell.
  if (sequence.text.empty() && sequence.scored.empty() && sequence.end == EndReason::none) return stopped;
  put_event(index, sequence, sequence.end, out);
  return stopped;
}

void Answer::put_event(std::size_t index, Sequence& sequence, EndReason end, std::string& out) {
  out += "data: " + opening(chat_ ? "chat.completion.chunk" : "text_completion");
  open_choice(index, sequence, false, out);
  ScoreText::Position at;
  // A part at a time is for answers in one piece; here there are few.
  std::string scores;
  while (scored_ && !sequence.score_text.put(sequence.scored, at, scores)) {
    out += scores;
    scores.clear();
  }
  out += scored_ ? scores : "null";
  close_choice(end, out);
  out += "]}\n\n";
  sequence.begun = true;
  sequence.text.clear();
  sequence.scored.clear();
}

void Answer::open_choice(std::size_t index, const Sequence& sequence, bool whole, std::string& out) const {
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},", index);
  const std::string text = json_string(sequence.text);
  if (!chat_) {
    out += "\"text\":" + text;
  } else if (whole) {
    out += R"("message":{"role":"assistant","content":)" + text + "}";
  } else {
    out += sequence.begun ? "\"delta\":{" : R"("delta":{"role":"assistant",)";
    out += "\"content\":" + text + "}";
  }
  out += ",\"logprobs\":";
}

void Answer::close_choice(EndReason end, std::string& out) {
  fmt::format_to(std::back_inserter(out), ",\"finish_reason\":{}}}", finish_reason(end));
}

std::string Answer::opening(const char* object) const {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)", json_string(head_.id), object,
                     head_.created, json_string(head_.model));
}

std::string Answer::usage() const {
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      prompt_tokens_, completion_tokens_, prompt_tokens_ + completion_tokens_, cached_tokens_);
}

std::string Answer::next_part() {
  std::string out;
  if (part_ > sequences_.size()) return out;
  if (part_ == 0 && !position_) out += opening(chat_ ? "chat.completion" : "text_completion");
  while (part_ < sequences_.size()) {
    Sequence& sequence = sequences_[part_];
    if (!position_) {
      position_.emplace();
      if (part_ > 0) out += ',';
      open_choice(part_, sequence, true, out);
    }
    if (!scored_) {
      out += "null";
    } else if (!sequence.score_text.put(sequence.scored, *position_, out)) {
      return out;
    }
    close_choice(sequence.end, out);
    position_.reset();
    ++part_;
  }
  ++part_;
  return out + "],\"usage\":" + usage() + state() + "}";
}

std::string Answer::whole() {
  std::string all;
  for (std::string part = next_part(); !part.empty(); part = next_part()) all += part;
  return all;
}

std::string Answer::last_events() const {
  std::string out;
  if (stream_usage_ || !state_.empty()) {
    out += "data: " + opening(chat_ ? "chat.completion.chunk" : "text_completion") + "]";
    if (stream_usage_) out += ",\"usage\":" + usage();
    out += state() + "}\n\n";
  }
  return out + "data: [DONE]\n\n";
}

}  // namespace qdelta::serve
