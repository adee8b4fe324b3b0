// The score of a token: how likely it was where it stands, and which tokens were likelier. The numbers are those of
// model/log_probabilities.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "model/log_probabilities.h"

namespace qdelta {

struct TokenChance {
  std::int32_t token = -1;
  float log_probability = 0;
};

// Of one position.
struct TokenScore {
  TokenChance token;             // the one that stands there; the most likely one where none does
  TokenChance best;              // the most likely one; of equal ones the smallest id
  std::vector<TokenChance> top;  // where more than one was asked for: so many, the most likely first

  [[nodiscard]] bool greedy() const { return token.token == best.token; }
  // False where the logits were not all numbers.
  [[nodiscard]] bool finite() const {
    return std::isfinite(token.log_probability) && std::isfinite(best.log_probability);
  }
};

// Says that a model's logits were not all numbers.
[[noreturn]] inline void fail_not_finite() {
  fail(Status::corrupt, "the model gives no number for a token: its weights or activations are not finite");
}

// The results of one call, kept from call to call.
class TokenScores {
 public:
  // Space for rows with these targets, which must live until the scores have been taken.
  [[nodiscard]] TokenLogProbabilities prepare(std::span<const std::int32_t> targets, std::int64_t top) {
    targets_ = targets;
    top_ = static_cast<std::size_t>(top);
    log_probability_.resize(targets.size());
    top_tokens_.resize(targets.size() * top_);
    top_log_probability_.resize(targets.size() * top_);
    return {.targets = targets,
            .top = top,
            .log_probability = log_probability_,
            .top_tokens = top_tokens_,
            .top_log_probability = top_log_probability_};
  }
  [[nodiscard]] TokenScore at(std::size_t row) const {
    const auto chance = [&](std::size_t k) {
      return TokenChance{top_tokens_[row * top_ + k], top_log_probability_[row * top_ + k]};
    };
    TokenScore score{.token = chance(0), .best = chance(0), .top = {}};
    if (targets_[row] >= 0) score.token = {targets_[row], log_probability_[row]};
    for (std::size_t k = 0; top_ > 1 && k < top_; ++k) score.top.push_back(chance(k));
    return score;
  }

 private:
  std::span<const std::int32_t> targets_;
  std::size_t top_ = 1;
  std::vector<std::int32_t> top_tokens_;
  std::vector<float> log_probability_, top_log_probability_;
};

}  // namespace qdelta
