// What the short convolution's kernels are given: one sequence, and its gradients.
#pragma once

#include <cstdint>

namespace qdelta::cpu {

struct ConvInput {
  const float* x;  // the first row of the sequence
  std::int64_t ld, length;
  const float* weight_t;  // [W + 1][channels], the bias last
  std::int64_t channels, W;
  float* state = nullptr;  // [W - 1][channels]: the rows before the first, oldest first; null: zeros
};

struct ConvGradients {
  const float* dy;
  std::int64_t dy_ld;
  float* dx;
  std::int64_t dx_ld;
  float* dweight_t;  // [W + 1][channels], added to
  float* du;         // scratch of [length][channels of the call], where W is not 4
};

}  // namespace qdelta::cpu
