#include "eval/engine.h"

#include <algorithm>
#include <numeric>

namespace qdelta::eval {

Engine::Engine(const LanguageModel& model, const Device& device, std::int64_t batch)
    : model_(model),
      device_(device),
      batch_(batch),
      weights_(std::make_shared<DeviceWeights>(model, device)),
      scorer_(model, weights_, device, {.batch = batch}),
      states_(model.config(), batch, device) {}

std::vector<Likelihood> Engine::likelihoods(std::span<const TokenPair* const> pairs) {
  std::vector<Likelihood> results(pairs.size());
  std::vector<ScoringRequest> contexts, requests;
  std::size_t first = 0;  // pair of the requests
  const auto flush = [&] {
    scorer_.score(
        contexts, [](std::size_t, std::int64_t, std::span<const TokenScore>) {}, &states_);
    scorer_.score(
        requests,
        [&](std::size_t index, std::int64_t, std::span<const TokenScore> scores) {
          Likelihood& result = results[first + index];
          for (const TokenScore& score : scores) {
            result.log_likelihood += score.token.log_probability;
            result.greedy = result.greedy && score.greedy();
          }
        },
        &states_);
    first += requests.size();
    contexts.clear();
    requests.clear();
  };
  for (std::size_t begin = 0; begin < pairs.size();) {
    const Tokens& context = pairs[begin]->context;
    std::size_t end = begin + 1;
    while (end < pairs.size() && pairs[end]->context == context) ++end;
    // A context for one continuation is read with it, and so is one of a single token.
    const bool forks = end - begin > 1 && context.size() > 1;
    if (forks) {
      ScoringRequest read;
      read.tokens.assign(context.begin(), context.end() - 1);
      read.scored_from = static_cast<std::int64_t>(read.tokens.size());
      read.keep = static_cast<std::int64_t>(contexts.size());
      contexts.push_back(std::move(read));
    }
    for (; begin < end; ++begin) {
      ScoringRequest request;
      if (forks) request.start = contexts.back().keep;
      request.tokens.assign(forks ? context.end() - 1 : context.begin(), context.end());
      request.scored_from = static_cast<std::int64_t>(request.tokens.size());
      request.tokens.insert(request.tokens.end(), pairs[begin]->continuation.begin(), pairs[begin]->continuation.end());
      requests.push_back(std::move(request));
    }
    if (static_cast<std::int64_t>(contexts.size()) == batch_) flush();
  }
  flush();
  return results;
}

std::vector<Generated> Engine::generate(const Tokenizer& tokenizer, const std::vector<Tokens>& prompts,
                                        std::int64_t max_tokens, const std::vector<std::string>& stop) {
  if (generator_ == nullptr) generator_ = std::make_unique<Generator>(model_, tokenizer, weights_, states_);
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = max_tokens;
  options.stop = stop;
  std::vector<Generated> results;
  const auto batch = static_cast<std::size_t>(batch_);
  for (std::size_t begin = 0; begin < prompts.size(); begin += batch) {
    const std::vector<Tokens> part(
        prompts.begin() + static_cast<std::ptrdiff_t>(begin),
        prompts.begin() + static_cast<std::ptrdiff_t>(std::min(begin + batch, prompts.size())));
    std::vector<std::int64_t> slots(part.size());
    std::iota(slots.begin(), slots.end(), 0);
    for (const std::int64_t slot : slots) states_.clear(slot);
    for (Generated& generated : generator_->generate(part, options, slots)) {
      results.push_back(std::move(generated));
    }
  }
  return results;
}

Engine::Answers Engine::answers(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                std::int64_t length) {
  if (runner_ == nullptr) runner_ = std::make_unique<ModelRunner>(model_, weights_, device_);
  std::vector<std::int64_t> offsets;
  for (std::int64_t at = 0; at <= static_cast<std::int64_t>(ids.size()); at += length) offsets.push_back(at);
  Answers answers{std::vector<float>(ids.size()), std::vector<std::int32_t>(ids.size())};
  runner_->losses({ids, offsets}, targets, answers.loss, answers.best);
  return answers;
}

}  // namespace qdelta::eval
