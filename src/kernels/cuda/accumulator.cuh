// The sums of tensor-core products, and which of them a lane has.
#pragma once

namespace qdelta::cuda {

struct Lane {
  int index, group, quad;
  __device__ Lane() : index(static_cast<int>(threadIdx.x) & 31), group(index >> 2), quad(index & 3) {}
  // What the lane has of an accumulator: the elements x[2 half] and x[2 half + 1] are in row(half), of the jth of
  // accumulators side by side in the columns pair(j) and pair(j) + 1. Fragments A and B are laid out likewise.
  [[nodiscard]] __device__ int row(int half) const { return group + 8 * half; }
  [[nodiscard]] __device__ int pair(int j) const { return 8 * j + 2 * quad; }
};

// A 16 x 8 tile of float32 sums, spread over a warp.
struct Accumulator {
  float x[4]{};
};

}  // namespace qdelta::cuda
