#include "serve/request_sequences.h"

#include <fmt/format.h>

#include <memory>
#include <random>
#include <utility>

#include "infer/prompt.h"
#include "serve/api_error.h"
#include "serve/shared_prefix.h"

namespace qdelta::serve {
namespace {

// A text begins with the begin-of-text token only where nothing comes before it. A chat's template may have put it
// there itself.
std::vector<std::int32_t> tokens_of(const Prompt& prompt, const CompletionRequest& request, const Tokenizer& tokenizer,
                                    const StateCopy* start) {
  const bool behind = start != nullptr && (start->info.tokens > 0 || start->info.pending >= 0);
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return encode_prompt(tokenizer, *text, request.add_special_tokens && !behind);
  }
  std::vector<std::int32_t> ids = std::get<std::vector<std::int32_t>>(prompt);
  if (behind && request.chat && tokenizer.bos() && ids.front() == *tokenizer.bos()) ids.erase(ids.begin());
  return ids;
}

std::size_t prompt_bytes(const Prompt& prompt, const Tokenizer& tokenizer) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  return text_bytes(std::get<std::vector<std::int32_t>>(prompt), tokenizer);
}

void check_length(std::size_t tokens, const Limits& limits) {
  if (static_cast<std::int64_t>(tokens) <= limits.max_prompt) return;
  throw ApiError(400, fmt::format("prompt has {} tokens, and this server takes at most {}", tokens, limits.max_prompt),
                 "prompt");
}

GenerationOptions options_of(const CompletionRequest& request) {
  return {.sampling = request.sampling,
          .bias = request.bias,
          .min_tokens = request.min_tokens,
          .max_tokens = request.max_tokens,
          .stop_at_eos = !request.ignore_eos,
          .stop_tokens = request.stop_tokens,
          .logprobs = request.logprobs.value_or(-1),
          .score_prompt = request.echo && request.logprobs};
}

}  // namespace

std::vector<SequenceRequest> sequences_of(const CompletionRequest& request, const Tokenizer& tokenizer,
                                          const Limits& limits, const std::shared_ptr<const StateCopy>& start) {
  thread_local std::random_device entropy;  // to open it takes a moment
  std::vector<SequenceRequest> sequences;
  const auto stops = request.stop.empty() ? nullptr : std::make_shared<const StopStrings>(request.stop);
  std::int64_t tokens = 0;
  for (const Prompt& prompt : request.prompts) {
    SequenceRequest sequence;
    sequence.start = start;
    sequence.stops = stops;
    sequence.prompt = tokens_of(prompt, request, tokenizer, start.get());
    check_length(sequence.prompt.size(), limits);
    if (sequence.pending() > 0) sequence.prompt.insert(sequence.prompt.begin(), start->info.pending);
    if (sequence.prompt.empty()) {
      throw ApiError(400,
                     start == nullptr ? "prompt is empty, and no begin-of-text token stands before it"
                                      : "the state keeps no last token to go on from: give a prompt",
                     "prompt");
    }
    tokens += static_cast<std::int64_t>(sequence.prompt.size()) * request.n;
    if (tokens > limits.max_request) {
      throw ApiError(400,
                     fmt::format("the prompts, times n, have more than {} tokens, which is all that this server "
                                 "takes at once",
                                 limits.max_request),
                     "prompt");
    }
    sequence.options = options_of(request);
    for (std::int64_t sample = 0; sample < request.n; ++sample) {
      if (!request.seeded) sequence.options.sampling.seed = (std::uint64_t{entropy()} << 32U) | entropy();
      sequence.options.stream = static_cast<std::uint64_t>(sample);
      sequences.push_back(sequence);
    }
  }
  if (request.echo && request.logprobs) mark_shared(sequences);
  return sequences;
}

std::size_t text_bytes(std::span<const std::int32_t> ids, const Tokenizer& tokenizer) {
  std::size_t sum = 0;
  for (const std::int32_t id : ids) sum += tokenizer.token(id).size();
  return sum;
}

std::size_t bytes_of(const CompletionRequest& request, const std::vector<SequenceRequest>& sequences,
                     const Tokenizer& tokenizer) {
  const std::size_t scores = request.logprobs ? static_cast<std::size_t>(*request.logprobs) * sizeof(TokenChance) : 0;
  const std::size_t token = sizeof(Update) + sizeof(ScoredToken) + scores;
  std::size_t sum = 0;
  for (const SequenceRequest& sequence : sequences) {
    const std::size_t prompt = sequence.options.score_prompt ? sizeof(ScoredToken) + scores : 0;
    sum += sizeof(Sequence) + sequence.prompt.size() * (2 * sizeof(std::int32_t) + prompt) +
           static_cast<std::size_t>(sequence.options.max_tokens) * token;
    sum += 2 * sequence.options.bias.size() * sizeof(TokenBias);
    if (sequence.end != nullptr) sum += sequence.end->states.bytes();
  }
  // Each sequence has a copy of the text that it echoes, and a token may stand for a text of any length.
  if (request.echo) {
    for (const Prompt& prompt : request.prompts)
      sum += static_cast<std::size_t>(request.n) * prompt_bytes(prompt, tokenizer);
  }
  if (!sequences.empty() && sequences.front().stops != nullptr) sum += sequences.front().stops->bytes();
  if (!sequences.empty() && sequences.front().start != nullptr) sum += sequences.front().start->states.bytes();
  return sum;
}

}  // namespace qdelta::serve
