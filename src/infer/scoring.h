// How likely a model finds texts, token by token.
//
//   log p(token_i | token_0 .. token_{i-1})  =  z_i[token_i] - log sum_v exp(z_i[v])
//
// with the most likely token at the same place, both from the same float32 sum: where the token is the one that greedy
// decoding would take, the two log-probabilities are the same float.
//
// Sequences are read in batches and in pieces of kPromptPiece tokens, counted from the sequence's own beginning, and
// longer ones first. How a sequence is cut so depends on nothing but itself. What other sequences it shares a batch
// with can only change how the matrix products round, where the library behind them chooses another order for another
// number of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "infer/prompt_reader.h"
#include "infer/token_score.h"
#include "model/language_model.h"

namespace qdelta {

struct ScoringRequest {
  std::vector<std::int32_t> tokens;
  // The first token with a score. At least 1: the first token has nothing to be predicted from, and after a prefix one
  // gives the prefix's last token as first of these.
  std::int64_t scored_from = 1;
  bool next = false;        // one more score, for what would follow the last token
  std::int64_t start = -1;  // the state to start from, in the pool given; -1: nothing read before
  std::int64_t keep = -1;   // where the state after all tokens is left; -1: nowhere

  // How many scores it gets.
  [[nodiscard]] std::int64_t scores() const {
    return static_cast<std::int64_t>(tokens.size()) - scored_from + (next ? 1 : 0);
  }
};

struct ScoringOptions {
  std::int64_t batch = 8;  // sequences at a time
  std::int64_t top = 1;    // most likely tokens to name at each position
};

class Scorer {
 public:
  Scorer(const LanguageModel& model, const Device& device, const ScoringOptions& options = {});
  // With weights that it shares with others on the device.
  Scorer(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, const Device& device,
         const ScoringOptions& options);

  // Called with the scores of request `request` from its score `first` on, as they come: in order within a request.
  using Sink = std::function<void(std::size_t request, std::int64_t first, std::span<const TokenScore> scores)>;

  // Any number of requests. `states` is the pool that `start` and `keep` refer to; no request may start from a state
  // that another of the same call leaves. Throws where the model gives something that is not a number. A sink may throw
  // to stop.
  void score(std::span<const ScoringRequest> requests, const Sink& sink, ModelStates* states = nullptr);
  // The same, all of it at the end.
  [[nodiscard]] std::vector<std::vector<TokenScore>> score(std::span<const ScoringRequest> requests,
                                                           ModelStates* states = nullptr);

  void set_top(std::int64_t top);
  [[nodiscard]] const ScoringOptions& options() const { return options_; }

 private:
  void check(const ScoringRequest& request, const ModelStates* states) const;
  void score_batch(std::span<const ScoringRequest> requests, std::span<const std::size_t> order, const Sink& sink,
                   ModelStates* states);

  const LanguageModel& model_;
  ScoringOptions options_;
  ModelStates states_;  // of the sequences of a batch
  PromptReader reader_;
};

}  // namespace qdelta
