// Log-probabilities of tokens, from rows of logits:
//
//   log p(v) = z[v] - log sum_u exp(z[u])
//
// in float32, by the same code for prompts, generated tokens and evaluations. Those of one row come from one sum: equal
// logits have equal ones to the bit, and the most likely token's is that of the token itself where it is the target.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layers.h"

namespace qdelta {

// What is asked of R rows, and where it goes. All of it is host memory.
struct TokenLogProbabilities {
  std::span<const std::int32_t> targets;  // [R]; negative: not asked for, its log-probability is 0
  std::int64_t top = 1;                   // how many of the most likely tokens, at least 1
  std::span<float> log_probability;       // [R], of the targets
  std::span<std::int32_t> top_tokens;     // [R, top], the most likely first; of equal ones the smaller id
  std::span<float> top_log_probability;   // [R, top]

  void check(std::int64_t rows, std::int64_t vocabulary) const;
  // Of rows [first, first + count).
  [[nodiscard]] TokenLogProbabilities part(std::int64_t first, std::int64_t count) const;
};

class LogProbabilities {
 public:
  explicit LogProbabilities(const Device& device) : device_(device) {}

  // logits [R, vocabulary] in device memory.
  void compute(const TensorView& logits, const TokenLogProbabilities& out);

 private:
  struct Results;
  [[nodiscard]] std::span<const std::int32_t> uploaded(std::span<const std::int32_t> tokens);

  Device device_;
  DeviceBuffer results_, tokens_;
  std::vector<std::byte> host_;
};

}  // namespace qdelta
