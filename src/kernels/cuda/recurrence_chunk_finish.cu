// Rows of dq and dk that the chunks' gradients left in parts, because several value heads share a query/key head or the
// keys were too many at once: the value heads in order, then the norm, X being the row x / |x|:
//
//   dX = sum over heads of (part + extra X)          dx = (dX - X (X . dX)) / |x|
//
// A warp for each row.
#include "kernels/cuda/recurrence_chunk_device.cuh"
#include "kernels/cuda/rows.h"

namespace qdelta::cuda {
namespace {

__device__ void finish_row(const GradientsArgs& a, const TokensIn& in, const TokensOut& out, const float* parts,
                           const float* extra, std::int64_t batch, std::int64_t token, int q_head, const Lane& lane) {
  constexpr int kPerLane = kWidestKeys / 32;
  const ChunkPlace place{batch, token, 1};
  const MatrixIn from = rows_of(in, place, q_head);
  const MatrixOut to = rows_of(out, place, q_head);
  const std::int64_t first = ((batch * a.tokens + token) * a.dims.heads + q_head) * a.dims.shared;
  float x[kPerLane], grad[kPerLane];
  double square = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int key = lane.index + 32 * i;
    x[i] = key < a.dims.keys ? from.get(0, key) : 0.0F;
    square += double{x[i]} * double{x[i]};
    grad[i] = 0;
    for (int head = 0; head < a.dims.shared && key < a.dims.keys; ++head)
      grad[i] += parts[(first + head) * a.dims.keys + key];
  }
  float norm = 1;
  if (a.norm) {
    norm = static_cast<float>(rsqrt(warp_sum(square) + kNormEpsilon));
  }
  float of_row = 0;
  if (extra != nullptr) {
    for (int head = 0; head < a.dims.shared; ++head) of_row += extra[first + head];
  }
  float along = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    x[i] *= norm;
    grad[i] += of_row * x[i];
    along += x[i] * grad[i];
  }
  along = a.norm ? warp_sum(along) : 0.0F;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int key = lane.index + 32 * i;
    if (key < a.dims.keys) to.set(0, key, norm * (grad[i] - along * x[i]));
  }
}

__global__ void __launch_bounds__(256) finish_rows_kernel(const GradientsArgs a) {
  const Lane lane;
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= a.batch * a.tokens * a.dims.heads) return;
  const int q_head = static_cast<int>(row % a.dims.heads);
  const std::int64_t token = row / a.dims.heads % a.tokens;
  const std::int64_t batch = row / a.dims.heads / a.tokens;
  finish_row(a, a.q, a.dq, a.dq_parts, nullptr, batch, token, q_head, lane);
  finish_row(a, a.k, a.dk, a.dk_parts, a.d_key_square, batch, token, q_head, lane);
}

}  // namespace

void launch_finish_rows(const Context& context, const GradientsArgs& args) {
  const std::int64_t rows = args.batch * args.tokens * args.dims.heads;
  finish_rows_kernel<<<static_cast<unsigned>((rows + 7) / 8), 256, 0, context.stream()>>>(args);
  check_launch("recurrence finish rows");
}

}  // namespace qdelta::cuda
