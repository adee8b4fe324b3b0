// The shared memory of recurrence_chunk_gradients.cu, the pipeline that fills it, and products, dot products and stores
// that its warpgroups have in common.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"
#include "kernels/cuda/row_kernels.cuh"

namespace qdelta::cuda::gradients {

// Three warpgroups, one each for dQ, dX and dK, with [kChunk][kKeyTile] accumulators in registers, 16 tokens a warp.
inline constexpr int kThreads = 384;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kLoadThreads = 2 * kWarpgroupThreads;  // of dQ and dX, which have less to do
enum Role : int { kDqWarpgroup, kDxWarpgroup, kDkWarpgroup };
inline constexpr int kWarps = kWarpgroupThreads / 32;
inline constexpr int kChunkAccumulators = kChunk / 8;
inline constexpr int kKSteps = kChunk / 16;  // k16 steps of a product over the tokens, or over a block of columns
static_assert(kBlockV == kChunk);

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
  float dg_of_A_qk[kWarps][kChunk], dg_of_A_xk[kWarps][kChunk];  // of decays within the chunk, for each warp's tokens
  float k_factor[kChunk];                                        // dK += k_factor K: twice the gradient of k.k
  float state_dots[kWarps];                                      // parts of sum(S . dS+)
};

// The tiles of one block of value columns. V' is among them where it is loaded and not recomputed.
template <class E, int kKeyTile, bool kRecomputesV>
struct ColumnTiles {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  using Rows = Tile<E, kChunk, kBlockV>;
  Tile<E, kKeyTile, kBlockV> state, d_state;
  Rows d_o, d_residual[kParts], v_new[kParts];
  static constexpr int kElements = (2 * kKeyTile + (1 + (kRecomputesV ? 1 : 2) * kParts) * kChunk) * kBlockV;

  // `recomputed` is where V' is, unless it is loaded.
  __device__ ColumnTiles(unsigned char* memory, unsigned char* recomputed) {
    state.data = reinterpret_cast<E*>(memory);
    d_state.data = state.data + state.kElements;
    d_o.data = d_state.data + d_state.kElements;
    E* next = d_o.data + Rows::kElements;
    for (Rows& part : d_residual) part.data = next, next += Rows::kElements;
    if (kRecomputesV) next = reinterpret_cast<E*>(recomputed);
    for (Rows& part : v_new) part.data = next, next += Rows::kElements;
  }
  // Where V' is recomputed, V lies there before.
  [[nodiscard]] __device__ Rows v() const { return v_new[0]; }
  // The rows that dQ and dX have with the state: dO, dR.
  [[nodiscard]] __device__ Rows rows(int role) const { return {role == kDqWarpgroup ? d_o.data : d_residual[0].data}; }
};

// All of the dynamic shared memory: kStages blocks of columns, V' where it is recomputed, and what belongs to the
// chunk. A_qk and A_xk are in the memory of the matrices that are made from their gradients.
template <class E, int kKeyTile, int kStages, bool kRecomputesV>
struct ChunkTiles {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  using Columns = ColumnTiles<E, kKeyTile, kRecomputesV>;
  using Rows = Tile<E, kChunk, kKeyTile>;
  using Matrix = Tile<E, kChunk, kChunk>;
  unsigned char* memory;
  Rows q, k;
  Matrix dq_from_k;      // D1 / |k_i|; before, the high part of A_qk
  Matrix dk_from_q;      // D1 / |q_r|; before, the low part of A_qk
  Matrix dx_from_k;      // D2 / |k_i|; before, the high part of A_xk
  Matrix dk_from_mix_q;  // diag(mix) D2 / |q_r|; before, the low part of A_xk
  Matrix dk_from_k;      // D2 / |k_r|
  Matrix T[kParts];      // where V' is recomputed
  static constexpr int kElementSize = static_cast<int>(sizeof(E));
  static constexpr int kColumnBytes = Columns::kElements * kElementSize;
  static constexpr int kVNewBytes = kRecomputesV ? kParts * Columns::Rows::kElements * kElementSize : 0;
  static constexpr int kMatrices = 5 + (kRecomputesV ? kParts : 0);
  static constexpr int kBytes = kStages * kColumnBytes + kVNewBytes +
                                (2 * Rows::kElements + kMatrices * static_cast<int>(kChunkMatrix)) * kElementSize;

  __device__ explicit ChunkTiles(unsigned char* all) : memory(all) {
    q.data = reinterpret_cast<E*>(memory + kStages * kColumnBytes + kVNewBytes);
    k.data = q.data + Rows::kElements;
    E* next = k.data + Rows::kElements;
    for (Matrix* matrix : {&dq_from_k, &dk_from_q, &dx_from_k, &dk_from_mix_q, &dk_from_k})
      matrix->data = next, next += kChunkMatrix;
    for (Matrix& part : T) part.data = next, next += kChunkMatrix;
  }
  // The rows that a role has the gradient of (dX: of the part diag(mix) Q of X).
  [[nodiscard]] __device__ Rows own_rows(int role) const { return {role == kDkWarpgroup ? k.data : q.data}; }
  // Term i of what the chunk adds to dQ, dX or dK: matrix times rows, for dK transposed.
  [[nodiscard]] __device__ Matrix term_matrix(int role, int i) const {
    return {role == kDqWarpgroup   ? dq_from_k.data
            : role == kDxWarpgroup ? dx_from_k.data
            : i == 0               ? dk_from_q.data
            : i == 1               ? dk_from_mix_q.data
                                   : dk_from_k.data};
  }
  [[nodiscard]] __device__ Rows term_rows(int role, int i) const {
    return {role == kDkWarpgroup && i < 2 ? q.data : k.data};
  }
  // [kChunk][kKeyTile] accumulators, in the memory of the columns, once these are used up.
  [[nodiscard]] __device__ float4* exchange() const { return reinterpret_cast<float4*>(memory); }
  static_assert(kChunk * kKeyTile * static_cast<int>(sizeof(float)) <= kStages * kColumnBytes);
  [[nodiscard]] __device__ Columns columns(int block) const {
    return Columns(memory + block % kStages * kColumnBytes, memory + kStages * kColumnBytes);
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
};

// A pass over kKeyTile keys. The first one also does what does not depend on keys.
struct KeyPass {
  int first_key, keys;  // the first, and how many there are from it on
  bool first, last;

  __device__ KeyPass(int from, int key_tile, int key_dim)
      : first_key(from), keys(key_dim - from), first(from == 0), last(from + key_tile >= key_dim) {}
};

// ---------------------------------------------------------------------------------------------------------------------
// The pipeline: brings the blocks of value columns, one after the other, with kStages - 1 of them copied ahead, and
// with the first ones what belongs to the chunk. All threads of the block walk through it together, dQ's and dX's issue
// copies:
//
//   for each block from kFirst on: load(block); from 0 on also columns = acquire(block), ..., release();   then
//   finish()
template <class E, int kKeyTile, int kStages, bool kRecomputesV>
class ColumnPipeline {
 public:
  using Tiles = ChunkTiles<E, kKeyTile, kStages, kRecomputesV>;
  using Columns = typename Tiles::Columns;

  __device__ __forceinline__ ColumnPipeline(const GradientsArgs& args, const BlockCoord& block, const KeyPass& key_pass,
                                            const Tiles& chunk_tiles, GradientShared& shared)
      : a(args), b(block), pass(key_pass), tiles(chunk_tiles), s(shared) {}
  // The first block to ask for; nothing is there before block 0.
  static constexpr int kFirst = 1 - kStages;
  __device__ __forceinline__ void load(int block) const {
    if (b.role == kDkWarpgroup) return;
    if (kRecomputesV && block >= 0) load_v(block);
    cp_async_commit();
    if (block == kFirst) load_chunk();
    if (block == 0 && pass.first) load_matrices();
    load_columns(block + kStages - 1);
    cp_async_commit();
  }
  __device__ __forceinline__ Columns acquire(int block) const {
    wait<kStages - 1>();
    __syncthreads();
    return tiles.columns(block);
  }
  __device__ void release() const { __syncthreads(); }
  // All that was copied is there.
  __device__ void finish() const {
    wait<0>();
    __syncthreads();
  }

 private:
  static constexpr int kParts = operand_parts(kIsBf16<E>);

  template <int kNewest>
  __device__ void wait() const {
    cp_async_wait<kNewest>();
    fence_async_proxy();
  }
  // Addresses are worked out again for each block, to save registers.
  __device__ __forceinline__ void load_columns(int block) const {
    if (block >= a.dims.column_blocks) return;
    const Columns columns = tiles.columns(block);
    const int column = block * kBlockV;
    load_tile<kLoadThreads>(columns.state, state_matrix(a.states, b.chunk, b.head, pass.first_key, column), pass.keys,
                            a.states.columns - column);
    load_tile<kLoadThreads>(columns.d_state, state_matrix(a.d_states, b.chunk, b.head, pass.first_key, column),
                            pass.keys, a.d_states.columns - column);
    load_tile<kLoadThreads>(columns.d_o, chunk_rows(a.d_o, b.range, b.head, column), b.range.tokens,
                            a.dims.value_dim - column);
    load_parts(columns.d_residual, a.d_residual, column);
    if constexpr (!kRecomputesV) load_parts(columns.v_new, a.v_new, column);
    if (pass.first) prefetch_v(column);
  }
  // V' or dR.
  __device__ __forceinline__ void load_parts(const typename Columns::Rows (&parts)[kParts], const void* data,
                                             int column) const {
    const std::int64_t width = static_cast<std::int64_t>(a.dims.column_blocks) * kBlockV;
    const E* from = static_cast<const E*>(data) + b.slot * kParts * kChunk * width + column;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      load_workspace_tile<kLoadThreads, false>(parts[part], from + part * kChunk * width, width);
  }
  // V where V' is to be: only when nobody needs V' of the block before any more, so late that it must be in L2.
  __device__ __forceinline__ void load_v(int block) const {
    const int column = block * kBlockV;
    load_tile<kLoadThreads>(tiles.columns(block).v(), chunk_rows(a.v, b.range, b.head, column), b.range.tokens,
                            a.dims.value_dim - column);
  }
  __device__ __forceinline__ void prefetch_v(int column) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row < b.range.tokens && column < a.dims.value_dim)
      prefetch(chunk_rows(a.v, b.range, b.head, column).at(row, 0));
  }
  __device__ __forceinline__ void load_chunk() const {
    load_tile<kLoadThreads>(tiles.q, chunk_rows(a.q, b.range, b.q_head, pass.first_key), b.range.tokens, pass.keys);
    load_tile<kLoadThreads>(tiles.k, chunk_rows(a.k, b.range, b.q_head, pass.first_key), b.range.tokens, pass.keys);
    if (!pass.first) return;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < kFactors * kChunk; i += 4 * kLoadThreads)
      cp_async(&s.factors[0][0] + i, a.prepared.factors + b.slot * (kFactors * kChunk) + i, true);
    if constexpr (kRecomputesV) {
      if (!a.erases) return;
#pragma unroll
      for (int part = 0; part < kParts; ++part) load_matrix(tiles.T[part], a.prepared.T, part);
    }
  }
  // A_qk and A_xk. The matrices of the backward overwrite them.
  __device__ __forceinline__ void load_matrices() const {
    load_matrix(tiles.dq_from_k, a.prepared.A_qk, 0);
    if constexpr (kParts == 2) load_matrix(tiles.dk_from_q, a.prepared.A_qk, 1);
    if (!a.erases) return;
    load_matrix(tiles.dx_from_k, a.prepared.A_xk, 0);
    if constexpr (kParts == 2) load_matrix(tiles.dk_from_mix_q, a.prepared.A_xk, 1);
  }
  __device__ __forceinline__ void load_matrix(const typename Tiles::Matrix& tile, const void* matrices,
                                              int part) const {
    const E* from = static_cast<const E*>(matrices) + (b.slot * kParts + part) * kChunkMatrix;
    load_workspace_tile<kLoadThreads, true>(tile, from, kChunk);
  }

  const GradientsArgs& a;
  const BlockCoord& b;
  const KeyPass& pass;
  const Tiles& tiles;
  GradientShared& s;
};

// ---------------------------------------------------------------------------------------------------------------------
// Products, dot products and stores.

// The sum over a quad, in all of its lanes.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// acc += left right^T over 64 value columns; 16 rows of the result for each warp. One of a batch of products.
template <int kWidth, class E, int kRows>
__device__ inline void mma_over_columns(Accumulator (&acc)[kWidth / 8], const Tile<E, kChunk, kBlockV>& left,
                                        const Tile<E, kRows, kBlockV>& right, const BlockCoord& b) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    if constexpr (kUsesWgmma<E>) {
      wgmma<kWidth>(acc, wgmma_descriptor<false>(left, 0, 16 * step), wgmma_descriptor<false>(right, 0, 16 * step));
    } else {
      tile_mma<kWidth, false>(acc, load_a(left, b.warp_row, 16 * step, b.lane), right, 0, 16 * step, b.lane);
    }
  }
}
// acc += M rows, or M^T rows; 16 rows of the result for each warp.
template <class E, int kKeyTile>
__device__ inline void mma_matrix(Accumulator (&acc)[kKeyTile / 8], const Tile<E, kChunk, kChunk>& matrix,
                                  bool transposed, const Tile<E, kChunk, kKeyTile>& rows, const BlockCoord& b) {
  FragmentA<E> left[kKSteps];
  if (transposed) {
#pragma unroll
    for (int step = 0; step < kKSteps; ++step) left[step] = load_a_transposed(matrix, 16 * step, b.warp_row, b.lane);
  } else {
#pragma unroll
    for (int step = 0; step < kKSteps; ++step) left[step] = load_a(matrix, b.warp_row, 16 * step, b.lane);
  }
  mma_fence<E>(acc);
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) tile_mma<kKeyTile, true>(acc, left[step], rows, 16 * step, 0, b.lane);
  mma_commit_and_wait<E>(acc);
}

// The dot products of this lane's two accumulator rows with those of a tile, in all lanes of the quad.
struct RowPair {
  float x[2];
};
template <class E, int kKeyTile>
__device__ inline RowPair row_dots(const Accumulator (&acc)[kKeyTile / 8], const Tile<E, kChunk, kKeyTile>& rows,
                                   const BlockCoord& b) {
  RowPair dots{};
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = pair_at(rows, b.row(half), 8 * n + 2 * b.lane.quad);
      dots.x[half] += x.x * acc[n].x[2 * half] + x.y * acc[n].x[2 * half + 1];
    }
  }
  return {{quad_sum(dots.x[0]), quad_sum(dots.x[1])}};
}
__device__ inline void store_row_dots(GradientShared& s, RowDot which, const RowPair& dots, bool first,
                                      const BlockCoord& b) {
  if (b.lane.quad != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float& sum = s.row_dots[which][b.row(half)];
    sum = first ? dots.x[half] : sum + dots.x[half];
  }
}
__device__ inline RowPair factors_of(const GradientShared& s, Factor which, const BlockCoord& b) {
  return {{s.factors[which][b.row(0)], s.factors[which][b.row(1)]}};
}
__device__ inline RowPair operator*(const RowPair& left, const RowPair& right) {
  return {{left.x[0] * right.x[0], left.x[1] * right.x[1]}};
}
__device__ inline RowPair operator*(float left, const RowPair& right) {
  return {{left * right.x[0], left * right.x[1]}};
}
__device__ inline RowPair operator+(const RowPair& left, const RowPair& right) {
  return {{left.x[0] + right.x[0], left.x[1] + right.x[1]}};
}
template <int kCount>
__device__ inline void scale_rows(Accumulator (&acc)[kCount], const RowPair& factors) {
#pragma unroll
  for (Accumulator& x : acc) {
    x.x[0] *= factors.x[0], x.x[1] *= factors.x[0];
    x.x[2] *= factors.x[1], x.x[3] *= factors.x[1];
  }
}
// From one warpgroup to the same threads of another, through shared memory in the layout of the accumulators.
template <int kCount>
__device__ inline void store_accumulators(const Accumulator (&acc)[kCount], float4* to, const BlockCoord& b) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    to[n * kWarpgroupThreads + b.thread] = {acc[n].x[0], acc[n].x[1], acc[n].x[2], acc[n].x[3]};
}
// acc += factors times what was stored.
template <int kCount>
__device__ inline void add_accumulators(Accumulator (&acc)[kCount], const RowPair& factors, const float4* from,
                                        const BlockCoord& b) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const float4 x = from[n * kWarpgroupThreads + b.thread];
    acc[n].x[0] += factors.x[0] * x.x, acc[n].x[1] += factors.x[0] * x.y;
    acc[n].x[2] += factors.x[1] * x.z, acc[n].x[3] += factors.x[1] * x.w;
  }
}

// Backward of the L2 norm, dx = (dX - X (X . dX)) / |x|, into the tile of x.
template <class E, int kKeyTile>
__device__ inline void write_gradient_rows(const BlockCoord& b, const Accumulator (&acc)[kKeyTile / 8],
                                           const Tile<E, kChunk, kKeyTile>& tile, const RowPair& inv_norms,
                                           const RowPair& x_dot_dx) {
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = 8 * n + 2 * b.lane.quad;
      const float2 x = pair_at(tile, b.row(half), key);
      const float* y = acc[n].x + 2 * half;
      const float inv_norm = inv_norms.x[half];
      const float off = x_dot_dx.x[half] * inv_norm;
      set_pair(tile, b.row(half), key, inv_norm * (y[0] - off * x.x), inv_norm * (y[1] - off * x.y));
    }
  }
}
// The warp's 16 rows of a tile, which it has written, to rows in global memory.
template <class E, int kKeyTile>
__device__ inline void store_warp_rows(const Tile<E, kChunk, kKeyTile>& tile, const MatrixOut& to, int rows, int keys,
                                       const BlockCoord& b) {
  constexpr int kVector = Tile<E, kChunk, kKeyTile>::kVector;
  constexpr int kVectorsPerRow = Tile<E, kChunk, kKeyTile>::kVectorsPerRow;
  __syncwarp();
#pragma unroll 1
  for (int i = b.lane.index; i < 16 * kVectorsPerRow; i += 32) {
    const int row = b.warp_row + i / kVectorsPerRow;
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
// A thread's part of sum(left . right), of tiles with the same layout.
template <class E, int kRows, int kWidth>
__device__ inline float tile_dot(const Tile<E, kRows, kWidth>& left, const Tile<E, kRows, kWidth>& right, int thread) {
  float sum = 0;
#pragma unroll 2
  for (int i = thread; i < kRows * kWidth / Tile<E, kRows, kWidth>::kVector; i += kWarpgroupThreads)
    sum += dot_16_bytes<E>(reinterpret_cast<const uint4*>(left.data)[i], reinterpret_cast<const uint4*>(right.data)[i]);
  return sum;
}

}  // namespace qdelta::cuda::gradients
