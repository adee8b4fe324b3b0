// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"

namespace qdelta {

struct SamplingOptions {
  float temperature = 0.8F;         // 0: always the most likely token
  int top_k = 0;                    // only the k most likely; 0: all
  float top_p = 1.0F;               // only the most likely that together reach p
  float min_p = 0.0F;               // only those at least min_p times as likely as the most likely
  float repetition_penalty = 1.0F;  // divides (or multiplies, if negative) the logits of tokens already seen
  std::uint64_t seed = 0;

  // Throws with the option and what is wrong with it.
  void check() const;
};

// Says that logits hold a NaN.
[[noreturn]] void fail_without_numbers();

// One per sequence: it has its own random numbers, so a sequence samples the same alone and in a batch.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::uint64_t stream);

  // `seen` are the tokens the penalty applies to.
  std::int32_t next(std::span<const float> logits, std::span<const std::int32_t> seen);

 private:
  struct Candidate {
    float logit;
    std::int32_t token;
  };

  SamplingOptions options_;
  Random random_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace qdelta
