// The shared memory of recurrence_chunk_gradients.cu, the pipelines that fill it, and products, dot products and stores
// that its warpgroups have in common.
#pragma once

#include "kernels/cuda/recurrence_chunk_blocks.cuh"
#include "kernels/cuda/row_kernels.cuh"
#include "kernels/cuda/tensor_copy.cuh"

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

// What the copy engine must know of the inputs; unused where threads copy.
struct GradientMaps {
  TensorMap q, k, v, d_o, states, d_states, d_residual, v_new;
};

struct GradientShared {
  CopyBarrier columns_there[2], chunk_there;  // of CopyEnginePipeline
  alignas(16) float factors[kFactors][kChunk];
  float row_dots[kRowDots][kChunk];
  float d_write[kChunk];
  alignas(8) float dg_of_A_qk[kWarps][kChunk],
      dg_of_A_xk[kWarps][kChunk];  // of decays within the chunk, for each warp's tokens
  float k_factor[kChunk];          // dK += k_factor K: twice the gradient of k.k
  float state_dots[kWarps];        // parts of sum(S . dS+)
};

// The tiles of one block of value columns, one after the other.
template <class E, int kKeyTile>
struct ColumnTiles {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  using Rows = Tile<E, kChunk, kBlockV>;
  using State = Tile<E, kKeyTile, kBlockV>;
  E* data;
  static constexpr int kDO = 2 * State::kElements;
  static constexpr int kDResidual = kDO + Rows::kElements;
  static constexpr int kVNew = kDResidual + kParts * Rows::kElements;
  static constexpr int kElements = kVNew + kParts * Rows::kElements;

  [[nodiscard]] __device__ State state() const { return {data}; }
  [[nodiscard]] __device__ State d_state() const { return {data + State::kElements}; }
  [[nodiscard]] __device__ Rows d_o() const { return {data + kDO}; }
  [[nodiscard]] __device__ Rows d_residual(int part) const { return {data + kDResidual + part * Rows::kElements}; }
  [[nodiscard]] __device__ Rows v_new(int part) const { return {data + kVNew + part * Rows::kElements}; }
  // Of the products left right^T: dO S^T, dR S^T, V' dS+^T.
  [[nodiscard]] __device__ Rows left(int role, int part) const {
    const int offset = role == kDqWarpgroup ? kDO : role == kDxWarpgroup ? kDResidual : kVNew;
    return {data + offset + part * Rows::kElements};
  }
  [[nodiscard]] __device__ State right(int role) const {
    return {data + (role == kDkWarpgroup ? State::kElements : 0)};
  }
};

// All of the dynamic shared memory: kStages blocks of columns, and what belongs to the chunk.
template <class E, int kKeyTile, int kStages>
struct ChunkTiles {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  using Columns = ColumnTiles<E, kKeyTile>;
  using Rows = Tile<E, kChunk, kKeyTile>;
  using Matrix = Tile<E, kChunk, kChunk>;
  static constexpr int kElementSize = static_cast<int>(sizeof(E));
  static constexpr int kColumnBytes = Columns::kElements * kElementSize;
  static constexpr int kRowBytes = Rows::kElements * kElementSize;
  static constexpr int kMatrixBytes = static_cast<int>(kChunkMatrix) * kElementSize;
  static constexpr int kBytes = kStages * kColumnBytes + 2 * kRowBytes + 5 * kMatrixBytes;
  unsigned char* memory;

  [[nodiscard]] __device__ Columns stage(int index) const { return {at(index * kColumnBytes)}; }
  [[nodiscard]] __device__ Rows rows(int index) const { return {at(kRowsAt + index * kRowBytes)}; }  // Q, then K
  [[nodiscard]] __device__ Rows q() const { return rows(0); }
  [[nodiscard]] __device__ Rows k() const { return rows(1); }
  // The matrices: of D1 over |k_i| and over |q_r|, of D2 over |k_i|, with diag(mix) over |q_r|, and over |k_r|.
  [[nodiscard]] __device__ Matrix from_k(int role) const { return matrix(role == kDqWarpgroup ? 0 : 2); }
  [[nodiscard]] __device__ Matrix from_q(int role) const { return matrix(role == kDqWarpgroup ? 1 : 3); }
  [[nodiscard]] __device__ Matrix dk_from_k() const { return matrix(4); }
  // The rows that a role has the gradient of (dX: of the part diag(mix) Q of X).
  [[nodiscard]] __device__ Rows own_rows(int role) const { return rows(role == kDkWarpgroup); }
  // Term i of what the chunk adds to dQ, dX or dK: matrix times rows, for dK transposed.
  [[nodiscard]] __device__ Matrix term_matrix(int role, int i) const {
    return role != kDkWarpgroup ? from_k(role) : i == 2 ? dk_from_k() : from_q(i == 0 ? kDqWarpgroup : kDxWarpgroup);
  }
  [[nodiscard]] __device__ Rows term_rows(int role, int i) const { return role == kDkWarpgroup && i < 2 ? q() : k(); }
  // [kChunk][kKeyTile] accumulators, in memory that is used up by then: that of the matrices, or where partial sums are
  // all that is left to store, so that there may be another pass that needs the matrices, that of Q and K.
  [[nodiscard]] __device__ float4* exchange(bool stores_partials) const {
    return reinterpret_cast<float4*>(memory + kRowsAt + (stores_partials ? 0 : 2 * kRowBytes));
  }
  static constexpr int kExchangeBytes = kChunk * kKeyTile * static_cast<int>(sizeof(float));
  static_assert(kExchangeBytes <= 5 * kMatrixBytes && kExchangeBytes <= 2 * kRowBytes);

 private:
  // Offsets are chosen, not pointers, of which the compiler would lose sight that they are to shared memory.
  static constexpr int kRowsAt = kStages * kColumnBytes;
  [[nodiscard]] __device__ E* at(int offset) const { return reinterpret_cast<E*>(memory + offset); }
  [[nodiscard]] __device__ Matrix matrix(int index) const {
    return {at(kRowsAt + 2 * kRowBytes + index * kMatrixBytes)};
  }
};

// A chunk of a value head.
struct SlotCoord {
  int slot;
  int chunk, head, q_head;
  ChunkRange range;

  __device__ SlotCoord(const GradientsArgs& a, int index)
      : slot(index),
        chunk(slot / a.dims.value_heads),
        head(slot % a.dims.value_heads),
        q_head(head / a.dims.group_size),
        range(chunk_range(a.chunks, chunk)) {}
};

// A thread: in its warpgroup, the warpgroup's role, and the first of its warp's 16 tokens.
struct ThreadCoord {
  Lane lane;
  int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  int role = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  int warp_row = thread / 32 * 16;
};

struct BlockCoord : ThreadCoord, SlotCoord {
  __device__ BlockCoord(const GradientsArgs& a, int slot) : SlotCoord(a, slot) {}

  // The two tokens whose accumulator rows this lane has.
  [[nodiscard]] __device__ int row(int half) const { return warp_row + lane.row(half); }
};

// A pass over kKeyTile keys. The first one also does what does not depend on keys.
struct KeyPass {
  int first_key, keys;  // the first, and how many there are from it on
  bool first, last;

  __device__ KeyPass(int from, int key_tile, int key_dim)
      : first_key(from), keys(key_dim - from), first(from == 0), last(from + key_tile >= key_dim) {}
};

// ---------------------------------------------------------------------------------------------------------------------
// Pipelines: bring the blocks of value columns, one after the other, and what belongs to the chunk. All threads of the
// block walk through them together. For each slot and pass:
//
//   begin(b, pass); for each block: columns = acquire(block), ..., release(block);   then finish()

// By cp.async of the dQ and dX warpgroups' threads, kStages - 1 blocks ahead.
template <class E, int kKeyTile, int kStages>
class ThreadPipeline {
 public:
  using Tiles = ChunkTiles<E, kKeyTile, kStages>;
  using Columns = typename Tiles::Columns;

  __device__ __forceinline__ ThreadPipeline(const GradientsArgs& args, const GradientMaps& /*maps*/,
                                            const Tiles& chunk_tiles, GradientShared& shared)
      : a(args), tiles(chunk_tiles), s(shared) {}
  __device__ __forceinline__ void begin(const BlockCoord& b, const KeyPass& pass) const {
    load_chunk(b, pass);
    for (int block = 0; block < kStages - 1; ++block) {
      load_columns(b, pass, block);
      cp_async_commit();
    }
  }
  __device__ __forceinline__ Columns acquire(const BlockCoord& b, const KeyPass& pass, int block) const {
    load_columns(b, pass, block + kStages - 1);
    cp_async_commit();
    wait<kStages - 1>();
    __syncthreads();
    return tiles.stage(block % kStages);
  }
  __device__ void release(int /*block*/) const { __syncthreads(); }
  // All that was copied is there.
  __device__ void finish(const BlockCoord& /*b*/) const {
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
  __device__ __forceinline__ void load_columns(const BlockCoord& b, const KeyPass& pass, int block) const {
    if (b.role == kDkWarpgroup || block >= a.dims.column_blocks) return;
    const Columns columns = tiles.stage(block % kStages);
    const int column = block * kBlockV;
    load_tile<kLoadThreads>(columns.state(), state_matrix(a.states, b.chunk, b.head, pass.first_key, column), pass.keys,
                            a.states.columns - column);
    load_tile<kLoadThreads>(columns.d_state(), state_matrix(a.d_states, b.chunk, b.head, pass.first_key, column),
                            pass.keys, a.d_states.columns - column);
    load_tile<kLoadThreads>(columns.d_o(), chunk_rows(a.d_o, b.range, b.head, column), b.range.tokens,
                            a.dims.value_dim - column);
    load_parts(b, columns.d_residual(0), a.d_residual, column);
    load_parts(b, columns.v_new(0), a.v_new, column);
    if (pass.first) prefetch_v(b, column);
  }
  // V' or dR, both parts from `first` on.
  __device__ __forceinline__ void load_parts(const BlockCoord& b, const typename Columns::Rows& first, const void* data,
                                             int column) const {
    const std::int64_t width = static_cast<std::int64_t>(a.dims.column_blocks) * kBlockV;
    const E* from = static_cast<const E*>(data) + b.slot * kParts * kChunk * width + column;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const typename Columns::Rows rows{first.data + part * Columns::Rows::kElements};
      load_workspace_tile<kLoadThreads>(rows, from + part * kChunk * width, width);
    }
  }
  __device__ __forceinline__ void prefetch_v(const BlockCoord& b, int column) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row < b.range.tokens && column < a.dims.value_dim)
      prefetch(chunk_rows(a.v, b.range, b.head, column).at(row, 0));
  }
  __device__ __forceinline__ void load_chunk(const BlockCoord& b, const KeyPass& pass) const {
    if (b.role == kDkWarpgroup) return;
    load_tile<kLoadThreads>(tiles.q(), chunk_rows(a.q, b.range, b.q_head, pass.first_key), b.range.tokens, pass.keys);
    load_tile<kLoadThreads>(tiles.k(), chunk_rows(a.k, b.range, b.q_head, pass.first_key), b.range.tokens, pass.keys);
    if (!pass.first) return;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < kFactors * kChunk; i += 4 * kLoadThreads)
      cp_async(&s.factors[0][0] + i, a.prepared.factors + std::int64_t{b.slot} * (kFactors * kChunk) + i, true);
  }

  const GradientsArgs& a;
  const Tiles& tiles;
  GradientShared& s;
};

// By the copy engine, in bf16. A block of threads takes one slot after the other, and the columns of the next slot
// arrive while the part within the chunk is computed: a stage is filled again as soon as it is released.
template <int kKeyTile>
class CopyEnginePipeline {
 public:
  static constexpr int kStages = 2;
  using Tiles = ChunkTiles<bf16, kKeyTile, kStages>;
  using Columns = typename Tiles::Columns;

  __device__ __forceinline__ CopyEnginePipeline(const GradientsArgs& args, const GradientMaps& tensor_maps,
                                                const Tiles& chunk_tiles, GradientShared& shared)
      : a(args), maps(tensor_maps), tiles(chunk_tiles), s(shared) {
    if (is_issuer()) {
      for (CopyBarrier& barrier : s.columns_there) barrier.init(1);
      s.chunk_there.init(1);
    }
    __syncthreads();
    if (is_issuer()) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) copy_columns(stage);
    }
  }
  __device__ __forceinline__ void begin(const BlockCoord& b, const KeyPass& pass) const {
    if (is_issuer()) copy_chunk(b, pass);
  }
  __device__ __forceinline__ Columns acquire(const BlockCoord& b, const KeyPass& /*pass*/, int /*block*/) const {
    const int stage = blocks_done % kStages;
    s.columns_there[stage].wait(blocks_done / kStages % 2);
    const Columns columns = tiles.stage(stage);
    if (has_foreign_rows(b)) {
      clear_rows(columns.d_o(), b.range.tokens, 0, kThreads);
      fence_async_proxy();
      __syncthreads();
    }
    return columns;
  }
  __device__ __forceinline__ void release(int /*block*/) {
    __syncthreads();
    if (is_issuer()) copy_columns(blocks_done + kStages);
    ++blocks_done;
  }
  __device__ __forceinline__ void finish(const BlockCoord& b) {
    s.chunk_there.wait(passes_done % 2);
    ++passes_done;
    if (!has_foreign_rows(b)) return;
    clear_rows(tiles.q(), b.range.tokens, 0, kThreads);
    clear_rows(tiles.k(), b.range.tokens, 0, kThreads);
    fence_async_proxy();
    __syncthreads();
  }

 private:
  static constexpr int kParts = 2;

  // The dK warpgroup has the least to do.
  static __device__ bool is_issuer() { return threadIdx.x == kDkWarpgroup * kWarpgroupThreads; }
  // Behind the end of a packed sequence are the tokens of the next one, where there should be zeros.
  __device__ bool has_foreign_rows(const BlockCoord& b) const {
    return a.chunks.cu_seqlens != nullptr && b.range.tokens < kChunk;
  }
  __device__ int passes_per_slot() const { return (a.dims.key_dim + kKeyTile - 1) / kKeyTile; }

  // The columns that this block of threads needs as the nth.
  __device__ __forceinline__ void copy_columns(int nth) const {
    const int pass = nth / a.dims.column_blocks;
    const int block = nth - pass * a.dims.column_blocks;
    const int slots_before = pass / passes_per_slot();
    const int slot = static_cast<int>(blockIdx.x) + slots_before * static_cast<int>(gridDim.x);
    if (slot >= a.chunks.total * a.dims.value_heads) return;
    const SlotCoord at(a, slot);
    const int first_key = (pass - slots_before * passes_per_slot()) * kKeyTile;
    const int column = block * kBlockV;
    const int stage = nth % kStages;
    const Columns columns = tiles.stage(stage);
    CopyBarrier& there = s.columns_there[stage];
    there.expect(Tiles::kColumnBytes);
    const BoxOrigin state{column, first_key, at.head, at.chunk};
    copy_box(columns.state().data, maps.states, state, there);
    copy_box(columns.d_state().data, maps.d_states, state, there);
    const BoxOrigin tokens{column, static_cast<int>(at.range.first), at.head, static_cast<int>(at.range.batch)};
    copy_box(columns.d_o().data, maps.d_o, tokens, there);
    const BoxOrigin rows{column, slot * kParts * kChunk, 0, 0};
    copy_box(columns.d_residual(0).data, maps.d_residual, rows, there);
    copy_box(columns.v_new(0).data, maps.v_new, rows, there);
    if (first_key == 0) prefetch_box(maps.v, tokens);
  }
  __device__ __forceinline__ void copy_chunk(const BlockCoord& b, const KeyPass& pass) const {
    constexpr int kPanels = kKeyTile / kBlockV;
    constexpr int kPanelElements = kChunk * kBlockV;
    constexpr int kFactorBytes = kFactors * kChunk * static_cast<int>(sizeof(float));
    CopyBarrier& there = s.chunk_there;
    there.expect(2 * Tiles::kRowBytes + (pass.first ? kFactorBytes : 0));
    for (int panel = 0; panel < kPanels; ++panel) {
      const BoxOrigin tokens{pass.first_key + panel * kBlockV, static_cast<int>(b.range.first), b.q_head,
                             static_cast<int>(b.range.batch)};
      copy_box(tiles.q().data + panel * kPanelElements, maps.q, tokens, there);
      copy_box(tiles.k().data + panel * kPanelElements, maps.k, tokens, there);
    }
    if (pass.first)
      copy_bytes(s.factors, a.prepared.factors + std::int64_t{b.slot} * (kFactors * kChunk), kFactorBytes, there);
  }

  const GradientsArgs& a;
  const GradientMaps& maps;
  const Tiles& tiles;
  GradientShared& s;
  int blocks_done = 0, passes_done = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// Products, dot products and stores.

// The sum over a quad, in all of its lanes.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// acc += left right^T over the tiles' columns; 16 rows of the result for each warp. One of a batch of products.
template <int kWidth, class E, int kRows, int kColumns>
__device__ inline void mma_over_columns(Accumulator (&acc)[kWidth / 8], const Tile<E, kChunk, kColumns>& left,
                                        const Tile<E, kRows, kColumns>& right, const BlockCoord& b) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {
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

// A number for each of this lane's two accumulator rows.
struct RowPair {
  float x[2];
};
// What a tile has in the place of this lane's elements of accumulators.
template <class E, int kWidth>
class AccumulatorView {
 public:
  using T = Tile<E, kChunk, kWidth>;
  __device__ AccumulatorView(const T& tile, const BlockCoord& b)
      : data_(tile.data), first_(b.row(0) * T::kPanel + b.lane.group * T::kVector + b.lane.pair(0) % T::kVector) {
    if constexpr (T::kVector < 8) odd_ = b.lane.quad / 2 * T::kVector;
  }
  // Elements x[2 half] and x[2 half + 1] of accumulator n.
  [[nodiscard]] __device__ E* at(int n, int half) const {
    const int column = 8 * n;
    const int vector = (column % T::kPanel / T::kVector * T::kVector) ^ odd_;
    return data_ + (column / T::kPanel * kChunk + 8 * half) * T::kPanel + (first_ ^ vector);
  }

 private:
  E* data_;
  int first_, odd_ = 0;
};
// The dot products of this lane's two accumulator rows with those of a tile, in all lanes of the quad.
template <class E, int kKeyTile>
__device__ inline RowPair row_dots(const Accumulator (&acc)[kKeyTile / 8], const Tile<E, kChunk, kKeyTile>& rows,
                                   const BlockCoord& b) {
  const AccumulatorView view(rows, b);
  RowPair dots{};
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = load_pair(view.at(n, half));
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
__device__ inline RowPair operator/(const RowPair& left, const RowPair& right) {
  return {{left.x[0] * reciprocal_approx(right.x[0]), left.x[1] * reciprocal_approx(right.x[1])}};
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
  const AccumulatorView view(tile, b);
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = load_pair(view.at(n, half));
      const float* y = acc[n].x + 2 * half;
      const float inv_norm = inv_norms.x[half];
      const float off = x_dot_dx.x[half] * inv_norm;
      store_pair(view.at(n, half), inv_norm * (y[0] - off * x.x), inv_norm * (y[1] - off * x.y));
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
      const int key = first_key + b.lane.pair(n);
      if (key < a.dims.key_dim) row[key] = acc[n].x[2 * half];
      if (key + 1 < a.dims.key_dim) row[key + 1] = acc[n].x[2 * half + 1];
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Dot products of rows of kBlockV columns, 16 pairs of rows at a time.

// What a lane has of a row: 16 columns, from this one on.
__device__ inline int slice_column(const Lane& lane) { return 16 * lane.quad; }
template <class E>
struct RowSlice;
template <>
struct RowSlice<bf16> {
  std::uint32_t pairs[8];

  __device__ void set(int vector, const uint4& x) {
    pairs[4 * vector] = x.x, pairs[4 * vector + 1] = x.y, pairs[4 * vector + 2] = x.z, pairs[4 * vector + 3] = x.w;
  }
};
template <>
struct RowSlice<float> {
  float x[16];
};

template <int kRows>
__device__ inline RowSlice<bf16> load_row_slice(const Tile<bf16, kRows, kBlockV>& tile, int row, const Lane& lane) {
  RowSlice<bf16> slice;
#pragma unroll
  for (int u = 0; u < 2; ++u) slice.set(u, *reinterpret_cast<const uint4*>(tile.at(row, slice_column(lane) + 8 * u)));
  return slice;
}
template <int kRows>
__device__ inline RowSlice<float> load_row_slice(const Tile<float, kRows, kBlockV>& tile, int row, const Lane& lane) {
  RowSlice<float> slice;
#pragma unroll
  for (int i = 0; i < 16; ++i) slice.x[i] = *tile.at(row, slice_column(lane) + i);
  return slice;
}
// From global memory; zeros beyond the rows and columns.
__device__ inline void load_row_slice(RowSlice<bf16>& slice, const MatrixIn& from, int row, int rows, int columns,
                                      const Lane& lane) {
  const int column = slice_column(lane);
  const int valid = row < rows ? columns - column : 0;
  if (from.aligned16 && from.bf16) {
#pragma unroll
    for (int u = 0; u < 2; ++u) slice.set(u, load_16_bytes(from.at(row, column + 8 * u), 8 * u < valid));
  } else {
#pragma unroll
    for (int i = 0; i < 16; i += 2)
      slice.pairs[i / 2] = pack_bf16x2(i < valid ? from.get(row, column + i) : 0.0F,
                                       i + 1 < valid ? from.get(row, column + i + 1) : 0.0F);
  }
}
__device__ inline void load_row_slice(RowSlice<float>& slice, const MatrixIn& from, int row, int rows, int columns,
                                      const Lane& lane) {
  const int column = slice_column(lane);
#pragma unroll
  for (int i = 0; i < 16; ++i) slice.x[i] = row < rows && column + i < columns ? from.get(row, column + i) : 0.0F;
}

// The dot products of rows `group` and `group + 8` of 16 on the left with the same rows on the right. In bf16 they are
// the diagonal of a product of all rows with all: tensor cores have time to spare here, and nothing has to be unpacked.
template <class E>
class RowDots;
template <>
class RowDots<bf16> {
 public:
  // Four registers that one load fills are a fragment A: of its rows `group` the first and the third, of its rows
  // `group + 8` the others. So of two products the one has the one half of a dot product, the other the other.
  template <int kRows>
  __device__ void add(const Tile<bf16, kRows, kBlockV>& left, int row, const RowSlice<bf16> (&right)[2],
                      const Lane& lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowSlice<bf16> slice = load_row_slice(left, row + lane.row(half), lane);
      const std::uint32_t* x = right[half].pairs;
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const FragmentA<bf16> a{{slice.pairs[i], slice.pairs[i + 1], slice.pairs[i + 2], slice.pairs[i + 3]}};
        mma(first_[half], a, {{x[i], x[i + 2]}});
        mma(second_[half], a, {{x[i + 1], x[i + 3]}});
      }
    }
  }
  template <int kRows>
  __device__ void add(const Tile<bf16, kRows, kBlockV>& left, const Tile<bf16, kRows, kBlockV>& right, int row,
                      const Lane& lane) {
#pragma unroll
    for (int column = 0; column < kBlockV; column += 16) {
      const FragmentA<bf16> a = load_a(left, row, column, lane);
      const FragmentBPair<bf16> b = load_b(right, row, column, lane);
      mma(first_[0], a, b.half[0]);
      mma(second_[1], a, b.half[1]);
    }
  }
  // Whether the lane has the sums of its rows.
  [[nodiscard]] static __device__ bool has_sums(const Lane& lane) { return lane.group / 2 == lane.quad; }
  [[nodiscard]] __device__ RowPair sums(const Lane& lane) const {
    const int i = lane.group % 2;
    return {{element(first_[0], i) + element(second_[0], 2 + i), element(first_[1], i) + element(second_[1], 2 + i)}};
  }

 private:
  static __device__ float element(const Accumulator& acc, int i) {
    return i < 2 ? (i == 0 ? acc.x[0] : acc.x[1]) : (i == 2 ? acc.x[2] : acc.x[3]);
  }
  Accumulator first_[2], second_[2];  // of either row
};
template <>
class RowDots<float> {
 public:
  template <int kRows>
  __device__ void add(const Tile<float, kRows, kBlockV>& left, int row, const RowSlice<float> (&right)[2],
                      const Lane& lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowSlice<float> slice = load_row_slice(left, row + lane.row(half), lane);
#pragma unroll
      for (int i = 0; i < 16; ++i) parts_.x[half] += slice.x[i] * right[half].x[i];
    }
  }
  template <int kRows>
  __device__ void add(const Tile<float, kRows, kBlockV>& left, const Tile<float, kRows, kBlockV>& right, int row,
                      const Lane& lane) {
    add(left, row, {load_row_slice(right, row + lane.row(0), lane), load_row_slice(right, row + lane.row(1), lane)},
        lane);
  }
  [[nodiscard]] static __device__ bool has_sums(const Lane& lane) { return lane.quad == 0; }
  [[nodiscard]] __device__ RowPair sums(const Lane& /*lane*/) const {
    return {{quad_sum(parts_.x[0]), quad_sum(parts_.x[1])}};
  }

 private:
  RowPair parts_{};
};

}  // namespace qdelta::cuda::gradients
