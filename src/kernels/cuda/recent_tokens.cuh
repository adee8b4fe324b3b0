// Device code: the tokens that steps keep beside a state (kernels/recurrence.h), of one sequence and value head.
#pragma once

#include "kernels/recurrence.h"

namespace qdelta::cuda {

struct RecentOfHead {
  float *residuals, *keys, *decays, *counts;
  int K, V;

  __device__ RecentOfHead(float* head, int key_dim, int value_dim)
      : residuals(head),
        keys(residuals + kRecentTokens * value_dim),
        decays(keys + kRecentTokens * key_dim),
        counts(decays + kRecentTokens),
        K(key_dim),
        V(value_dim) {}

  [[nodiscard]] __device__ const float* key(int token) const { return keys + token * K; }
  [[nodiscard]] __device__ float* key(int token) { return keys + token * K; }
  [[nodiscard]] __device__ float* residual(int token) const { return residuals + token * V; }
};

// The products of the decays of recent tokens, each from one of them on; a warp's lane has that of token
// lane % kRecentTokens.
class RecentDecays {
 public:
  __device__ RecentDecays(const RecentOfHead& recent, int count) {
    const int token = static_cast<int>(threadIdx.x) % kRecentTokens;
    product_ = token < count ? recent.decays[token] : 1.0F;
#pragma unroll
    for (int step = 1; step < kRecentTokens; step *= 2) {
      const float behind = __shfl_down_sync(0xffffffffU, product_, step);
      if (token + step < kRecentTokens) product_ *= behind;
    }
  }
  // What they leave of the state. All lanes of a warp ask at once, here and below.
  [[nodiscard]] __device__ float of_state() const { return __shfl_sync(0xffffffffU, product_, 0); }
  // What those behind a token leave of it.
  [[nodiscard]] __device__ float behind(int token) const {
    const float product = __shfl_sync(0xffffffffU, product_, (token + 1) % kRecentTokens);
    return token + 1 < kRecentTokens ? product : 1.0F;
  }

 private:
  float product_;
};

}  // namespace qdelta::cuda
