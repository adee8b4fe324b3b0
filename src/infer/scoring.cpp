#include "infer/scoring.h"

#include <algorithm>
#include <numeric>

namespace qdelta {
namespace {

// The tokens that must be read: the last one only for what comes after it.
std::size_t tokens_to_read(const ScoringRequest& request) {
  return request.next || request.keep >= 0 ? request.tokens.size() : request.tokens.size() - 1;
}

// The piece from `begin` on.
PromptPiece piece_of(const ScoringRequest& request, std::size_t begin, std::int64_t slot) {
  const std::size_t end = std::min(begin + kPromptPiece, tokens_to_read(request));
  const std::size_t followed = request.next ? request.tokens.size() : request.tokens.size() - 1;
  const std::size_t score_end = std::min(end, followed);
  const std::size_t score_begin = std::max(begin, static_cast<std::size_t>(request.scored_from - 1));
  return {.prompt = request.tokens,
          .begin = begin,
          .end = end,
          .score_begin = std::min(score_begin, score_end),
          .score_end = score_end,
          .slot = slot};
}

}  // namespace

Scorer::Scorer(const LanguageModel& model, const Device& device, const ScoringOptions& options)
    : Scorer(model, std::make_shared<DeviceWeights>(model, device), device, options) {}

Scorer::Scorer(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, const Device& device,
               const ScoringOptions& options)
    : model_(model),
      options_(options),
      states_(model.config(),
              (require(options.batch >= 1, "batch is {}, expected at least 1", options.batch), options.batch), device),
      reader_(model, std::move(weights), states_) {
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
  const std::size_t longest = tokens_to_read(requests[order[0]]);
  for (std::size_t begin = 0; begin < longest; begin += kPromptPiece) {
    std::vector<PromptPiece> pieces;
    for (std::size_t n = 0; n < order.size() && tokens_to_read(requests[order[n]]) > begin; ++n) {
      pieces.push_back(piece_of(requests[order[n]], begin, static_cast<std::int64_t>(n)));
    }
    const auto scores = reader_.read(pieces, options_.top);
    for (std::size_t n = 0; n < pieces.size(); ++n) {
      if (scores[n].empty()) continue;
      if (!std::all_of(scores[n].begin(), scores[n].end(), [](const TokenScore& score) { return score.finite(); })) {
        fail_not_finite();
      }
      const auto first = static_cast<std::int64_t>(pieces[n].score_begin) + 1 - requests[order[n]].scored_from;
      sink(order[n], first, scores[n]);
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
