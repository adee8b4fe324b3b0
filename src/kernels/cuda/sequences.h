// Device code: packed sequences, the rows of a matrix divided by offsets (cu_seqlens).
#pragma once

#include <cstdint>

namespace qdelta::cuda {

struct Sequences {
  const std::int64_t* offsets;
  int count;

  // The sequence that token t belongs to: the last one that begins at or before it.
  __device__ int of(int t) const {
    int low = 0;
    int high = count;  // offsets[low] <= t < offsets[high], if t is in any
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (offsets[middle] <= t ? low : high) = middle;
    }
    return low;
  }
  __device__ int begin(int n) const { return static_cast<int>(offsets[n]); }
  // Tokens after the last sequence count as part of it.
  __device__ int end(int n, int rows) const { return n + 1 < count ? static_cast<int>(offsets[n + 1]) : rows; }
};

}  // namespace qdelta::cuda
