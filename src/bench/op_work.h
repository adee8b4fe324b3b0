// What the operator must do at least, from its shape alone: bytes to move and floating-point operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/recurrence.h"

namespace qdelta::bench {

struct OpShape {
  Rule rule = Rule::q_delta;
  std::int64_t batch = 1, tokens = 1, heads = 1, K = 1, V = 1;
  std::size_t element_bytes = sizeof(float);  // of q, k, v and o; gates and states are float32
};

struct OpWork {
  double bytes = 0;  // every operand read once and every result written once
  double flop = 0;   // of the chunk form, with chunks of so many tokens
};
[[nodiscard]] inline OpWork operator+(const OpWork& a, const OpWork& b) { return {a.bytes + b.bytes, a.flop + b.flop}; }

namespace work_of {

inline double head_tokens(const OpShape& s) { return static_cast<double>(s.batch * s.tokens * s.heads); }
// g, and beta and lambda where the rule reads them.
inline double gate_bytes(const OpShape& s) {
  const RuleTraits& traits = traits_of(s.rule);
  return sizeof(float) * (1.0 + (traits.reads_beta ? 1 : 0) + (traits.reads_lambda ? 1 : 0));
}
inline double vector_bytes(const OpShape& s, std::int64_t of_keys, std::int64_t of_values) {
  return static_cast<double>(s.element_bytes) * static_cast<double>(of_keys * s.K + of_values * s.V);
}

// One token of each sequence, in place on its state: which is read and written, and nothing else is large. Decay (KV),
// prediction, update and output (2KV each) of every head; rules that erase nothing predict nothing.
[[nodiscard]] inline OpWork step(const OpShape& s) {
  const double state = static_cast<double>(s.K) * static_cast<double>(s.V);
  const double tokens = head_tokens(s);
  return {tokens * (2 * sizeof(float) * state + vector_bytes(s, 2, 2) + gate_bytes(s)),
          tokens * state * (traits_of(s.rule).erases ? 7 : 5)};
}
// q, k, v and gates in, o out.
[[nodiscard]] inline OpWork forward(const OpShape& s, int chunk) {
  return {head_tokens(s) * (vector_bytes(s, 2, 2) + gate_bytes(s)),
          head_tokens(s) * chunk_forward_flop(static_cast<double>(s.K), static_cast<double>(s.V), chunk)};
}
// q, k, v, gates and the gradient of o in, the gradients of q, k, v and gates out.
[[nodiscard]] inline OpWork backward(const OpShape& s, int chunk) {
  return {head_tokens(s) * (vector_bytes(s, 4, 3) + 2 * gate_bytes(s)),
          head_tokens(s) * chunk_backward_flop(static_cast<double>(s.K), static_cast<double>(s.V), chunk)};
}

}  // namespace work_of
}  // namespace qdelta::bench
