// Shared memory of recurrence_chunk_gradients.cu, and the work of its warpgroups.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda::gradients {

// Three warpgroups, one each for dQ, dX and dK, with [kChunk][kKeyTile] accumulators in registers, 16 tokens a warp.
inline constexpr int kThreads = 384;
inline constexpr int kWarpgroupThreads = 128;
enum Role : int { kDqWarpgroup, kDxWarpgroup, kDkWarpgroup };  // the first two also make dO V'^T and dR V'^T
inline constexpr int kStride = kChunk + 1;                     // of a float matrix that is read by columns
inline constexpr int kChunkAccumulators = kChunk / 8;

// Dot products of a token, over its keys.
enum RowDot : int {
  kToEndDot,       // K . exp(G_C - G) V' dS+^T
  kOutputDot,      // Q . scale gamma dO S^T
  kEraseStateDot,  // X . -gamma dR S^T, part of derase
  kEraseXkDot,     // rowsum(A_xk . dA), part of derase
  kMixDot,         // dX . Q = dmix
  kRowDots
};

struct GradientShared {
  alignas(16) float factors[kFactors][kChunk];
  float row_dots[kRowDots][kChunk];
  float d_write[kChunk];
  float dg[kChunk];        // the part of decays within the chunk
  float k_factor[kChunk];  // dK += k_factor K: twice the gradient of k.k
  float state_dot;         // sum(S . dS+)
};

// The tiles of one block of value columns.
template <class E, int kKeyTile>
struct ColumnTiles {
  Tile<E, kKeyTile, kBlockV> state, d_state;
  Tile<E, kChunk, kBlockV> d_o, d_residual, v_new;
  Tile<E, kChunk, kBlockV> d_residual_low, v_new_low;  // low parts of split bf16
  static constexpr int kElements = (2 * kKeyTile + (1 + 2 * operand_parts(kIsBf16<E>)) * kChunk) * kBlockV;

  __device__ explicit ColumnTiles(unsigned char* memory) {
    state.data = reinterpret_cast<E*>(memory);
    d_state.data = state.data + state.kElements;
    d_o.data = d_state.data + d_state.kElements;
    d_residual.data = d_o.data + d_o.kElements;
    v_new.data = d_residual.data + d_residual.kElements;
    d_residual_low.data = v_new.data + v_new.kElements;
    v_new_low.data = d_residual_low.data + d_residual_low.kElements;
  }
};

// For the part after the sums over columns. A_qk and A_xk are in the memory of the matrices that are made from their
// gradients. dX and decay_products reuse the memory of the kStages column tiles.
template <class E, int kKeyTile, int kStages>
struct ChunkTiles {
  using Matrix = Tile<E, kChunk, kChunk>;
  float* dx;              // [kChunk][kKeyTile], in the layout of the accumulators
  float* decay_products;  // [kChunk][kStride]
  Tile<E, kChunk, kKeyTile> q, k;
  Matrix dq_from_k;      // D1 / |k_i|; before, the high part of A_qk
  Matrix dk_from_q;      // D1 / |q_r|; before, the low part of A_qk
  Matrix dx_from_k;      // D2 / |k_i|; before, the high part of A_xk
  Matrix dk_from_mix_q;  // diag(mix) D2 / |q_r|; before, the low part of A_xk
  Matrix dk_from_k;      // D2 / |k_r|
  static constexpr int kElementSize = static_cast<int>(sizeof(E));
  static constexpr int kColumnBytes = kStages * ColumnTiles<E, kKeyTile>::kElements * kElementSize;
  static constexpr int kBytes =
      kColumnBytes + (2 * kChunk * kKeyTile + 5 * static_cast<int>(kChunkMatrix)) * kElementSize;
  static_assert(4 * kChunk * (kKeyTile + kStride) <= kColumnBytes);

  __device__ explicit ChunkTiles(unsigned char* memory) {
    dx = reinterpret_cast<float*>(memory);
    decay_products = dx + kChunk * kKeyTile;
    q.data = reinterpret_cast<E*>(memory + kColumnBytes);
    k.data = q.data + q.kElements;
    dq_from_k.data = k.data + k.kElements;
    dk_from_q.data = dq_from_k.data + kChunkMatrix;
    dx_from_k.data = dk_from_q.data + kChunkMatrix;
    dk_from_mix_q.data = dx_from_k.data + kChunkMatrix;
    dk_from_k.data = dk_from_mix_q.data + kChunkMatrix;
  }
};

struct BlockCoord {
  Lane lane;
  int thread, role, warp_row;  // the thread in its warpgroup; the first of the warp's 16 tokens
  std::int64_t slot, chunk;
  int head, q_head;
  ChunkRange range;

  __device__ explicit BlockCoord(const GradientsArgs& a)
      : thread(static_cast<int>(threadIdx.x) % kWarpgroupThreads),
        role(static_cast<int>(threadIdx.x) / kWarpgroupThreads),
        warp_row(thread / 32 * 16),
        slot(blockIdx.x),
        chunk(slot / a.dims.value_heads),
        head(static_cast<int>(slot % a.dims.value_heads)),
        q_head(head / a.dims.group_size),
        range(chunk_range(a.chunks, chunk)) {}

  // The two tokens whose accumulator rows this lane has.
  [[nodiscard]] __device__ int row(int half) const { return warp_row + 8 * half + lane.group; }
  // The token of which a thread of the dQ or dK warpgroup sums a part of dwrite.
  [[nodiscard]] __device__ int d_write_row() const { return (role == kDkWarpgroup ? kChunk / 2 : 0) + thread / 4; }
};

}  // namespace qdelta::cuda::gradients
