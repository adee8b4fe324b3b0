// A block for each row. Every thread knows the largest logit of its own columns that has not been taken; the largest of
// these over the block is the next, and only the thread that it came from looks through its columns again.
#include <climits>

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

constexpr int kTopThreads = 512;
constexpr int kTopWarps = kTopThreads / 32;

struct Largest {
  float value = -INFINITY;
  int token = INT_MAX;

  // In the order of the result: the larger logit first, of equal ones the first.
  __device__ bool before(const Largest& other) const {
    return value > other.value || (value == other.value && token < other.token);
  }
  __device__ void add(const Largest& other) {
    if (other.before(*this)) *this = other;
  }
};

__device__ Largest largest_of_warp(Largest found) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    found.add({__shfl_xor_sync(0xffffffffU, found.value, step), __shfl_xor_sync(0xffffffffU, found.token, step)});
  }
  return found;
}

// The largest of this thread's columns behind `last`.
__device__ Largest next_of_thread(const float* row, int width, const Largest& last) {
  Largest found;
#pragma unroll 8
  for (int v = static_cast<int>(threadIdx.x); v < width; v += kTopThreads) {
    const Largest here{row[v], v};
    if (last.before(here)) found.add(here);
  }
  return found;
}

__global__ __launch_bounds__(kTopThreads) void top_logits_kernel(Rows<float> logits, int width, int top,
                                                                 std::int32_t* tokens, float* values) {
  __shared__ Largest of_warps[2][kTopWarps];  // of this round and the one before, which others may still read
  const float* row = logits.data + blockIdx.x * logits.ld;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Largest own = next_of_thread(row, width, {INFINITY, -1});
  for (int k = 0; k < top; ++k) {
    const Largest of_warp = largest_of_warp(own);
    if (threadIdx.x % 32 == 0) of_warps[k % 2][warp] = of_warp;
    __syncthreads();
    const Largest next = largest_of_warp(of_warps[k % 2][threadIdx.x % kTopWarps]);
    if (threadIdx.x == 0) {
      const std::int64_t at = std::int64_t{blockIdx.x} * top + k;
      tokens[at] = next.token == INT_MAX ? 0 : next.token;  // NaN is above and below nothing
      values[at] = next.value;
    }
    if (next.token == own.token) own = next_of_thread(row, width, next);
  }
}

}  // namespace

void top_logits(const Context& context, const TopLogits& args) {
  const std::int64_t rows = args.logits.extent(0);
  if (rows == 0) return;
  require(args.logits.extent(1) < (std::int64_t{1} << 30), "top_logits: {} logits in a row", args.logits.extent(1));
  top_logits_kernel<<<static_cast<unsigned>(rows), kTopThreads, 0, context.stream()>>>(
      as_rows<float>(args.logits), static_cast<int>(args.logits.extent(1)), static_cast<int>(args.top),
      args.tokens.data(), args.values.data());
  check_launch("top_logits");
}

}  // namespace qdelta::cuda
