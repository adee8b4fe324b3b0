// Adds up the partial sums of rows of dq and dk, where several value heads share a query/key head or the gradients took
// several passes over the keys, and applies the backward of the L2 norm, X being the row x / |x|:
//
//   dX = sum over value heads of (partial + dk_factor X)          dx = (dX - X (X . dX)) / |x|
//
// A warp for each row. dk_factor, twice the gradient of k.k, only for k.
#include "kernels/cuda/recurrence_chunk_device.cuh"
#include "kernels/cuda/row_kernels.cuh"

namespace qdelta::cuda {
namespace {

__device__ void reduce_row(const GradientsArgs& a, const TokensIn& in, const TokensOut& out, const float* partials,
                           const float* dk_factors, std::int64_t batch, std::int64_t token, int q_head,
                           const Lane& lane) {
  constexpr int kPerLane = kMaxKeyDim / 32;
  const ChunkRange range{batch, token, 1};
  const MatrixIn from = chunk_rows(in, range, q_head);
  const MatrixOut to = chunk_rows(out, range, q_head);
  const std::int64_t first = ((batch * a.tokens + token) * a.dims.heads + q_head) * a.dims.group_size;
  float x[kPerLane], grad[kPerLane];
  double square = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int key = lane.index + 32 * i;
    x[i] = key < a.dims.key_dim ? from.get(0, key) : 0.0F;
    square += double{x[i]} * double{x[i]};
    grad[i] = 0;
    for (int head = 0; head < a.dims.group_size && key < a.dims.key_dim; ++head)
      grad[i] += partials[(first + head) * a.dims.key_dim + key];
  }
  float inv_norm = 1;
  if (a.qk_l2norm) {
    inv_norm = static_cast<float>(rsqrt(warp_sum(square) + kNormEpsilon));
  }
  float k_factor = 0;
  if (dk_factors != nullptr) {
    for (int head = 0; head < a.dims.group_size; ++head) k_factor += dk_factors[first + head];
  }
  float x_dot_dx = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    x[i] *= inv_norm;
    grad[i] += k_factor * x[i];
    x_dot_dx += x[i] * grad[i];
  }
  x_dot_dx = a.qk_l2norm ? warp_sum(x_dot_dx) : 0.0F;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int key = lane.index + 32 * i;
    if (key < a.dims.key_dim) to.set(0, key, inv_norm * (grad[i] - x_dot_dx * x[i]));
  }
}

__global__ void __launch_bounds__(256) reduce_dqk_kernel(const GradientsArgs a) {
  const Lane lane;
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= a.batch * a.tokens * a.dims.heads) return;
  const int q_head = static_cast<int>(row % a.dims.heads);
  const std::int64_t token = row / a.dims.heads % a.tokens;
  const std::int64_t batch = row / a.dims.heads / a.tokens;
  reduce_row(a, a.q, a.dq, a.dq_partials, nullptr, batch, token, q_head, lane);
  reduce_row(a, a.k, a.dk, a.dk_partials, a.dk_factors, batch, token, q_head, lane);
}

}  // namespace

void launch_reduce_dqk(const Context& context, const GradientsArgs& args) {
  const std::int64_t rows = args.batch * args.tokens * args.dims.heads;
  reduce_dqk_kernel<<<static_cast<unsigned>((rows + 7) / 8), 256, 0, context.stream()>>>(args);
  check_launch("recurrence reduce dq, dk");
}

}  // namespace qdelta::cuda
