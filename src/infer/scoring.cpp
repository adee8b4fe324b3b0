#include "infer/scoring.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qdelta {
namespace {

// The tokens that must be read: the last one only for what comes after it.
std::int64_t tokens_to_read(const ScoringRequest& request) {
  const auto all = static_cast<std::int64_t>(request.tokens.size());
  return request.next || request.keep >= 0 ? all : all - 1;
}

}  // namespace

Scorer::Scorer(const LanguageModel& model, const Device& device, const ScoringOptions& options)
    : Scorer(model, std::make_shared<DeviceWeights>(model, device), device, options) {}

Scorer::Scorer(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, const Device& device,
               const ScoringOptions& options)
    : model_(model),
      options_(options),
      runner_(model, std::move(weights), device, false),
      states_(model.config(),
              (require(options.batch >= 1, "batch is {}, expected at least 1", options.batch), options.batch), device) {
  set_top(options.top);
}

void Scorer::set_top(std::int64_t top) {
  require(top >= 1 && top <= model_.config().vocab_size, "the {} most likely of {} tokens were asked for", top,
          model_.config().vocab_size);
  options_.top = top;
}

void Scorer::check(const ScoringRequest& request, const ModelStates* states) const {
  const auto length = static_cast<std::int64_t>(request.tokens.size());
  require(length > 0, "there is nothing to score: a sequence has no tokens");
  require(request.scored_from >= 1 && request.scored_from <= length,
          "scores from token {} on were asked for in a sequence of {}: the first has nothing before it",
          request.scored_from, length);
  for (const std::int32_t token : request.tokens) {
    require(token >= 0 && token < model_.config().vocab_size,
            "the tokenizer gives token {}, but the model knows only {}", token, model_.config().vocab_size);
  }
  for (const std::int64_t slot : {request.start, request.keep}) {
    require(slot < (states == nullptr ? 0 : states->count()), "there is no state {} in a pool of {}", slot,
            states == nullptr ? 0 : states->count());
  }
}

void Scorer::score(std::span<const ScoringRequest> requests, const Sink& sink, ModelStates* states) {
  for (const ScoringRequest& request : requests) check(request, states);
  // The longest first, so that the sequences that still go on are always the first of a batch.
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tokens_to_read(requests[a]) > tokens_to_read(requests[b]);
  });
  const std::span<const std::size_t> all = order;
  const auto batch = static_cast<std::size_t>(options_.batch);
  for (std::size_t begin = 0; begin < all.size(); begin += batch) {
    score_batch(requests, all.subspan(begin, std::min(batch, all.size() - begin)), sink, states);
  }
}

void Scorer::score_batch(std::span<const ScoringRequest> requests, std::span<const std::size_t> order, const Sink& sink,
                         ModelStates* states) {
  for (std::size_t n = 0; n < order.size(); ++n) {
    const ScoringRequest& request = requests[order[n]];
    const auto slot = static_cast<std::int64_t>(n);
    if (request.start >= 0) states_.copy(*states, request.start, slot);
    if (request.start < 0) states_.clear(slot);
  }
  const std::int64_t longest = tokens_to_read(requests[order[0]]);
  for (std::int64_t begin = 0; begin < longest; begin += kPiece) {
    ids_.clear();
    rows_.clear();
    targets_.clear();
    slots_.clear();
    offsets_.assign(1, 0);
    for (std::size_t n = 0; n < order.size(); ++n) {
      const ScoringRequest& request = requests[order[n]];
      const std::int64_t end = std::min(begin + kPiece, tokens_to_read(request));
      if (end <= begin) break;
      for (std::int64_t i = begin; i < end; ++i) {
        const auto after = static_cast<std::size_t>(i + 1);
        if (i + 1 >= request.scored_from && (request.next || after < request.tokens.size())) {
          rows_.push_back(static_cast<std::int32_t>(ids_.size()));
          targets_.push_back(after < request.tokens.size() ? request.tokens[after] : -1);
        }
        ids_.push_back(request.tokens[after - 1]);
      }
      offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
      slots_.push_back(static_cast<std::int64_t>(n));
    }
    const auto top = static_cast<std::size_t>(options_.top);
    log_probability_.resize(rows_.size());
    top_tokens_.resize(rows_.size() * top);
    top_log_probability_.resize(rows_.size() * top);
    runner_.next_tokens({ids_, offsets_},
                        {rows_, targets_, options_.top, log_probability_, top_tokens_, top_log_probability_},
                        {&states_, slots_});

    // To the requests, each its rows.
    std::size_t row = 0;
    std::vector<TokenScore> scores;
    for (std::size_t n = 0; n < slots_.size(); ++n) {
      scores.clear();
      for (; row < rows_.size() && rows_[row] < offsets_[n + 1]; ++row) {
        TokenScore score;
        score.best = {top_tokens_[row * top], top_log_probability_[row * top]};
        score.token = targets_[row] < 0 ? score.best : TokenChance{targets_[row], log_probability_[row]};
        if (!std::isfinite(score.token.log_probability) || !std::isfinite(score.best.log_probability)) {
          fail(Status::corrupt, "the model gives no number for a token: its weights or activations are not finite");
        }
        for (std::size_t k = 0; top > 1 && k < top; ++k) {
          score.top.push_back({top_tokens_[row * top + k], top_log_probability_[row * top + k]});
        }
        scores.push_back(std::move(score));
      }
      const ScoringRequest& request = requests[order[n]];
      if (!scores.empty()) sink(order[n], std::max(begin + 1 - request.scored_from, std::int64_t{0}), scores);
    }
  }
  for (std::size_t n = 0; n < order.size(); ++n) {
    const ScoringRequest& request = requests[order[n]];
    if (request.keep >= 0) states->copy(states_, static_cast<std::int64_t>(n), request.keep);
  }
}

std::vector<std::vector<TokenScore>> Scorer::score(std::span<const ScoringRequest> requests, ModelStates* states) {
  std::vector<std::vector<TokenScore>> results(requests.size());
  score(
      requests,
      [&](std::size_t request, std::int64_t /*first*/, std::span<const TokenScore> scores) {
        results[request].insert(results[request].end(), scores.begin(), scores.end());
      },
      states);
  return results;
}

}  // namespace qdelta
