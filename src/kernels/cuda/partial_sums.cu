#include "kernels/cuda/kernel_launch.h"

namespace qdelta::cuda {
namespace {

constexpr int kColumns = 32;
constexpr int kSlices = 32;
constexpr int kThreads = kColumns * kSlices;

// Each slice of threads sums a range of the partial sums, then the slices are added in order.
__global__ __launch_bounds__(kThreads) void add_partials_kernel(const float* partials, std::int64_t count,
                                                                std::int64_t width, float* total) {
  __shared__ float sums[kSlices][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int slice = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t c = std::int64_t{blockIdx.x} * kColumns + column;
  const std::int64_t per_slice = (count + kSlices - 1) / kSlices;
  float sum = 0;
  if (c < width) {
    const std::int64_t end = min(count, (slice + 1) * per_slice);
#pragma unroll 8
    for (std::int64_t p = slice * per_slice; p < end; ++p) sum += partials[p * width + c];
  }
  sums[slice][column] = sum;
  __syncthreads();
  if (slice > 0 || c >= width) return;
  for (int s = 1; s < kSlices; ++s) sum += sums[s][column];
  total[c] += sum;
}

}  // namespace

void add_partials(const Context& context, const float* partials, std::int64_t count, std::int64_t width, float* total) {
  add_partials_kernel<<<blocks_for(width, kColumns), kThreads, 0, context.stream()>>>(partials, count, width, total);
  check_launch("add_partials");
}

}  // namespace qdelta::cuda
