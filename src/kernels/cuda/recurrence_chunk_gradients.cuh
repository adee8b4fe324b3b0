// The shared memory of recurrence_chunk_gradients.cu, the work of its warpgroups, and their products and stores.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"
#include "kernels/cuda/row_kernels.cuh"

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
  // The operands of dO S^T, dR S^T and V' dS+^T.
  [[nodiscard]] __device__ Tile<E, kChunk, kBlockV> rows(int role) const {
    return {role == kDqWarpgroup ? d_o.data : role == kDxWarpgroup ? d_residual.data : v_new.data};
  }
  [[nodiscard]] __device__ Tile<E, kChunk, kBlockV> rows_low(int role) const {
    return {role == kDxWarpgroup ? d_residual_low.data : v_new_low.data};
  }
  [[nodiscard]] __device__ Tile<E, kKeyTile, kBlockV> states(int role) const {
    return {role == kDkWarpgroup ? d_state.data : state.data};
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
  // The rows that a warpgroup has the gradient of (dX: of the part diag(mix) Q of X).
  [[nodiscard]] __device__ Tile<E, kChunk, kKeyTile> own_rows(int role) const {
    return {role == kDkWarpgroup ? k.data : q.data};
  }
  // Term i of what the chunk adds to dQ, dX or dK: matrix times rows, for dK transposed.
  [[nodiscard]] __device__ Matrix term_matrix(int role, int i) const {
    return {role == kDqWarpgroup   ? dq_from_k.data
            : role == kDxWarpgroup ? dx_from_k.data
            : i == 0               ? dk_from_q.data
            : i == 1               ? dk_from_mix_q.data
                                   : dk_from_k.data};
  }
  [[nodiscard]] __device__ Tile<E, kChunk, kKeyTile> term_rows(int role, int i) const {
    return {role == kDkWarpgroup && i < 2 ? q.data : k.data};
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

// ---------------------------------------------------------------------------------------------------------------------
// Products, dot products and stores.

// The sum over a quad, in all of its lanes.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// From a tile to rows in global memory, by the threads of a warpgroup.
template <class E, int kKeyTile>
__device__ inline void store_rows(const Tile<E, kChunk, kKeyTile>& tile, const MatrixOut& to, int rows, int keys,
                                  int thread) {
  constexpr int kVector = Tile<E, kChunk, kKeyTile>::kVector;
  constexpr int kVectorsPerRow = Tile<E, kChunk, kKeyTile>::kVectorsPerRow;
#pragma unroll 4
  for (int i = thread; i < kChunk * kVectorsPerRow; i += kWarpgroupThreads) {
    const int row = i / kVectorsPerRow;
    const int column = i % kVectorsPerRow * kVector;
    if (row >= rows || column >= keys) continue;
    const E* from = tile.at(row, column);
    if (to.aligned16 && to.bf16 == kIsBf16<E>) {
      *reinterpret_cast<uint4*>(to.at(row, column)) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < kVector; ++j) {
        if (column + j < keys) to.set(row, column + j, static_cast<float>(from[j]));
      }
    }
  }
}

__device__ inline float2 pair_of(const bf16* from) {
  const auto pair = *reinterpret_cast<const std::uint32_t*>(from);
  return {low_half(pair), high_half(pair)};
}
__device__ inline float2 pair_of(const float* from) { return *reinterpret_cast<const float2*>(from); }

// The dot product of two vectors of 16 bytes.
template <class E>
__device__ inline float dot_16_bytes(const uint4& x, const uint4& y) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < static_cast<int>(16 / sizeof(E)); j += 2) {
    const float2 p = pair_of(reinterpret_cast<const E*>(&x) + j);
    const float2 q = pair_of(reinterpret_cast<const E*>(&y) + j);
    sum += p.x * q.x + p.y * q.y;
  }
  return sum;
}

// A thread's part of rowsum(dR . V): a quarter of a row of the block's columns. By the dQ and dK warpgroups, which have
// less to do than that of dX. V is read from global memory; prefetch_v has brought it to L2.
template <class E, int kKeyTile>
__device__ inline float d_write_dot(const GradientsArgs& a, const BlockCoord& b, const ColumnTiles<E, kKeyTile>& tiles,
                                    int column) {
  constexpr int kVector = 16 / sizeof(E);
  constexpr int kVectorsPerRow = 16 / kVector;
  const int row = b.d_write_row();
  const int part = b.thread % 4 * 16;
  const MatrixIn v = chunk_rows(a.v, b.range, b.head, column);
  const int columns = row < b.range.tokens ? a.dims.value_dim - column - part : 0;
  uint4 values[kVectorsPerRow];
  if (v.aligned16 && v.bf16 == kIsBf16<E>) {
#pragma unroll
    for (int u = 0; u < kVectorsPerRow; ++u)
      values[u] = load_16_bytes(v.at(row, part + u * kVector), u * kVector < columns);
  } else {
#pragma unroll
    for (int u = 0; u < kVectorsPerRow; ++u) {
      for (int j = u * kVector; j < (u + 1) * kVector; ++j)
        reinterpret_cast<E*>(values)[j] = static_cast<E>(j < columns ? v.get(row, part + j) : 0.0F);
    }
  }
  float sum = 0;
#pragma unroll
  for (int u = 0; u < kVectorsPerRow; ++u) {
    sum += dot_16_bytes<E>(values[u], *reinterpret_cast<const uint4*>(tiles.d_residual.at(row, part + u * kVector)));
    if constexpr (kIsBf16<E>) {
      sum +=
          dot_16_bytes<E>(values[u], *reinterpret_cast<const uint4*>(tiles.d_residual_low.at(row, part + u * kVector)));
    }
  }
  return sum;
}
__device__ inline void prefetch_v(const GradientsArgs& a, const BlockCoord& b, int column) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < b.range.tokens && column < a.dims.value_dim) prefetch(chunk_rows(a.v, b.range, b.head, column).at(row, 0));
}

// sum(S . dS+) of the chunk, by a warp.
__device__ inline void load_state_dot(const GradientsArgs& a, const BlockCoord& b, GradientShared& s) {
  const int parts = a.dims.column_blocks * kWarpTiles;
  float sum = 0;
  for (int i = b.lane.index; i < parts; i += 32) sum += a.state_dots[b.slot * parts + i];
  sum = warp_sum(sum);
  if (b.lane.index == 0) s.state_dot = sum;
}

// acc += left right^T over 64 value columns.
template <int kWidth, class E, int kRows>
__device__ inline void mma_over_columns(Accumulator (&acc)[kWidth / 8], const FragmentA<E> (&left)[4],
                                        const Tile<E, kRows, kBlockV>& right, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) tile_mma<kWidth, false>(acc, left[step], right, 0, 16 * step, lane);
}
// acc += rows states^T and, if asked for, matrix += rows V'^T, as one batch of products. The low part of V' is left out
// where the rows are low parts themselves.
template <bool kLowRows, class E, int kKeyTile>
__device__ inline void mma_column_rows(Accumulator (&acc)[kKeyTile / 8], Accumulator (&matrix)[kChunkAccumulators],
                                       const Tile<E, kChunk, kBlockV>& rows, const Tile<E, kKeyTile, kBlockV>& states,
                                       const ColumnTiles<E, kKeyTile>& columns, bool with_matrix, const BlockCoord& b) {
  FragmentA<E> left[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) left[step] = load_a(rows, b.warp_row, 16 * step, b.lane);
  if (with_matrix) {
    mma_fence<E>(acc, matrix);
    mma_over_columns<kKeyTile>(acc, left, states, b.lane);
    mma_over_columns<kChunk>(matrix, left, columns.v_new, b.lane);
    if constexpr (kIsBf16<E> && !kLowRows) mma_over_columns<kChunk>(matrix, left, columns.v_new_low, b.lane);
    mma_commit_and_wait<E>(acc, matrix);
  } else {
    mma_fence<E>(acc);
    mma_over_columns<kKeyTile>(acc, left, states, b.lane);
    mma_commit_and_wait<E>(acc);
  }
}
// What a block of columns adds to a warpgroup's sums: acc += dO S^T, dR S^T or V' dS+^T, and with the first keys
// matrix += dO V'^T or dR V'^T.
template <class E, int kKeyTile>
__device__ inline void mma_columns(Accumulator (&acc)[kKeyTile / 8], Accumulator (&matrix)[kChunkAccumulators],
                                   const ColumnTiles<E, kKeyTile>& columns, bool first, const BlockCoord& b) {
  const Tile<E, kKeyTile, kBlockV> states = columns.states(b.role);
  mma_column_rows<false>(acc, matrix, columns.rows(b.role), states, columns, first && b.role != kDkWarpgroup, b);
  if constexpr (kIsBf16<E>) {
    if (b.role != kDqWarpgroup) {
      mma_column_rows<true>(acc, matrix, columns.rows_low(b.role), states, columns, first && b.role == kDxWarpgroup, b);
    }
  }
}
// acc += M rows, or M^T rows; 16 rows of the result for each warp.
template <class E, int kKeyTile>
__device__ inline void mma_matrix(Accumulator (&acc)[kKeyTile / 8], const Tile<E, kChunk, kChunk>& matrix,
                                  bool transposed, const Tile<E, kChunk, kKeyTile>& rows, const BlockCoord& b) {
  FragmentA<E> left[4];
  if (transposed) {
#pragma unroll
    for (int step = 0; step < 4; ++step) left[step] = load_a_transposed(matrix, 16 * step, b.warp_row, b.lane);
  } else {
#pragma unroll
    for (int step = 0; step < 4; ++step) left[step] = load_a(matrix, b.warp_row, 16 * step, b.lane);
  }
  mma_fence<E>(acc);
#pragma unroll
  for (int step = 0; step < 4; ++step) tile_mma<kKeyTile, true>(acc, left[step], rows, 16 * step, 0, b.lane);
  mma_commit_and_wait<E>(acc);
}

// Adds this lane's part of the dot products of its two accumulator rows with those of a tile.
template <class E, int kKeyTile>
__device__ inline void add_row_dots(float (&dots)[2], const Accumulator (&acc)[kKeyTile / 8],
                                    const Tile<E, kChunk, kKeyTile>& rows, const BlockCoord& b) {
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = pair_at(rows, b.row(half), 8 * n + 2 * b.lane.quad);
      dots[half] += x.x * acc[n].x[2 * half] + x.y * acc[n].x[2 * half + 1];
    }
  }
}
template <int kCount>
__device__ inline void scale_rows(Accumulator (&acc)[kCount], const float (&factors)[2]) {
#pragma unroll
  for (Accumulator& x : acc) x.x[0] *= factors[0], x.x[1] *= factors[0], x.x[2] *= factors[1], x.x[3] *= factors[1];
}

// Backward of the L2 norm, dx = (dX - X (X . dX)) / |x|, into the tile of x.
template <class E, int kKeyTile>
__device__ inline void write_gradient_rows(const BlockCoord& b, const Accumulator (&acc)[kKeyTile / 8],
                                           const Tile<E, kChunk, kKeyTile>& tile, const float (&norms)[2],
                                           const float (&x_dot_dx)[2]) {
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = 8 * n + 2 * b.lane.quad;
      const float2 x = pair_at(tile, b.row(half), key);
      const float* y = acc[n].x + 2 * half;
      const float off = x_dot_dx[half] * norms[half];
      set_pair(tile, b.row(half), key, norms[half] * (y[0] - off * x.x), norms[half] * (y[1] - off * x.y));
    }
  }
}
template <int kCount>
__device__ inline void store_partials(const GradientsArgs& a, const BlockCoord& b, const Accumulator (&acc)[kCount],
                                      int first_key, float* partials) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (b.row(half) >= b.range.tokens) continue;
    const std::int64_t token = b.range.batch * a.tokens + b.range.first + b.row(half);
    float* row = partials + (token * a.dims.value_heads + b.head) * a.dims.key_dim;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int key = first_key + 8 * n + 2 * b.lane.quad;
      if (key < a.dims.key_dim) row[key] = acc[n].x[2 * half];
      if (key + 1 < a.dims.key_dim) row[key + 1] = acc[n].x[2 * half + 1];
    }
  }
}

}  // namespace qdelta::cuda::gradients
