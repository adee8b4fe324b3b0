// Device code: the tokens that steps keep beside a state (kernels/recurrence.h), of one sequence and value head.
#pragma once

#include "kernels/recurrence.h"

namespace qdelta::cuda {

struct RecentOfHead {
  float *residuals, *keys, *decays, *first_rows, *counts;
  int K, V;

  __device__ RecentOfHead(float* head, int key_dim, int value_dim)
      : residuals(head),
        keys(residuals + kRecentRows * value_dim),
        decays(keys + kRecentRows * key_dim),
        first_rows(decays + kRecentRows),
        counts(first_rows + value_dim),
        K(key_dim),
        V(value_dim) {}
};

// Where they are, as a block finds it at one of its columns.
struct RecentRange {
  int first_row, count;

  __device__ RecentRange(const RecentOfHead& recent, int column)
      : first_row(static_cast<int>(recent.first_rows[column])), count(static_cast<int>(recent.counts[column])) {}
  // Of a token, the oldest being 0.
  [[nodiscard]] __device__ int row(int token) const {
    const int row = first_row + token;
    return row < kRecentRows ? row : row - kRecentRows;
  }
  // The tokens are gone; the next one has the row behind them.
  __device__ void clear() {
    first_row = row(count);
    count = 0;
  }
};

// The products of the decays of recent tokens, each from one of them on; a warp's lane has that of token
// lane % kRecentTokens.
class RecentDecays {
 public:
  __device__ RecentDecays(const RecentOfHead& recent, const RecentRange& range) {
    // Of all rows, a lane each: then they need not wait for the range.
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float of_row = lane < kRecentRows ? recent.decays[lane] : 1.0F;
    const int token = lane % kRecentTokens;
    const float decay = __shfl_sync(0xffffffffU, of_row, range.row(token));
    product_ = token < range.count ? decay : 1.0F;
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
