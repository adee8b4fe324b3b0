// What the short convolution's kernels are given: one sequence, and its gradients.
#pragma once

#include <cstdint>

namespace qdelta::cpu {

inline constexpr std::int64_t kUsualWidth = 4;  // of a window that has kernels of its own

struct ConvInput {
  const float* x = nullptr;  // the first row of the sequence
  std::int64_t ld = 0, length = 0;
  const float* weight_t = nullptr;  // [W + 1][channels], the bias last
  std::int64_t channels = 0, W = 0;
  const float* before = nullptr;  // [W - 1][channels]: the rows before the first, oldest first; null: zeros
};

struct ConvGradients {
  const float* dy = nullptr;
  std::int64_t dy_ld = 0;
  float* dx = nullptr;
  std::int64_t dx_ld = 0;
  float* dbefore = nullptr;    // [W - 1][channels]; null: not wanted
  float* dweight_t = nullptr;  // [W + 1][channels], added to
  float* du = nullptr;         // scratch of [length][channels of the call], where W is not kUsualWidth
};

}  // namespace qdelta::cpu
