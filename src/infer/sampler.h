// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"
#include "kernels/sampling.h"

namespace qdelta {

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
