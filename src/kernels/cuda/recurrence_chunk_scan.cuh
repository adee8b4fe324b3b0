// The forward and the backward scan over the chunks of a sequence, one block for each sequence, value head and kBlockV
// value columns. A warp holds 16 columns of the state in registers, transposed (the warp tiles of
// recurrence_chunk_device.cuh), and needs nothing from the other warps; the block only shares the tiles of Q, K, T,
// A_qk.
//
// Forward, S the state on entry to a chunk, S+ on exit, V' (v_new) the values written, R the residual:
//   R  = diag(write) V - diag(erase gamma) X S           X S = K S + diag(mix) Q S
//   V' = T R
//   O  = scale diag(gamma) Q S + A_qk V'
//   S+ = gamma_C S + (diag(exp(G_C - G)) K)^T V'
//
// Backward, from the last chunk to the first, dS+ the gradient of S+:
//   dV' = A_qk^T dO + diag(exp(G_C - G)) K dS+
//   dR  = T^T dV'                                        dV = diag(write) dR
//   dS  = gamma_C dS+ + (scale diag(gamma) Q)^T dO - (diag(erase gamma) X)^T dR
//
// The L2 norms of Q and K are in the factors, so the products take q and k as they are in memory.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda::scan {

inline constexpr int kThreads = 32 * kWarpTiles;
inline constexpr int kChunkAccumulators = kChunk / 8;  // of a warp tile of tokens
inline constexpr int kKSteps = kChunk / 16;            // k16 steps of a product over the tokens

// Occupancy is bound by registers, which hold the state. Where there are so few scans that each has an SM to itself,
// the tiles of the next chunk are copied while this one is computed: two stages.
template <class E, int kKeyDim, int kStages>
constexpr int kMinBlocksPerSm = kIsBf16<E>&& kStages == 1 ? (kKeyDim <= 128 ? 3 : 2) : 1;
// Such a scan has registers to spare, unless the state is wide: loads and stores of states and outputs are then issued
// between the start of a batch of wgmma and the wait for it.
template <int kKeyDim, int kStages>
constexpr bool kOverlapIo = kStages == 2 && kKeyDim <= 128;

// Points at the inputs of one chunk in global memory. Tokens and chunks of a sequence are contiguous, so that moving to
// the next chunk is an addition.
template <class E>
struct ScanTileIterator {
  MatrixIn q, k, values;  // V, or dO
  const E* T;
  const E* A_qk;
  const float* factors;
  int value_heads;

  __device__ ScanTileIterator(const Dims& dims, const TokensIn& q_in, const TokensIn& k_in, const TokensIn& values_in,
                              const PreparedChunks& prepared, std::int64_t chunk, const ChunkRange& range, int head,
                              int column)
      : q(chunk_rows(q_in, range, head / dims.group_size)),
        k(chunk_rows(k_in, range, head / dims.group_size)),
        values(chunk_rows(values_in, range, head, column)),
        value_heads(dims.value_heads) {
    const std::int64_t slot = chunk * dims.value_heads + head;
    T = static_cast<const E*>(prepared.T) + slot * kMatrices;
    A_qk = static_cast<const E*>(prepared.A_qk) + slot * kMatrices;
    factors = prepared.factors + slot * (kFactors * kChunk);
  }
  // chunks is 1 or -1.
  __device__ void advance(int chunks) {
    q.advance_rows(chunks * kChunk);
    k.advance_rows(chunks * kChunk);
    values.advance_rows(chunks * kChunk);
    const int slots = chunks * value_heads;
    T += static_cast<std::int64_t>(slots) * kMatrices;
    A_qk += static_cast<std::int64_t>(slots) * kMatrices;
    factors += static_cast<std::int64_t>(slots) * (kFactors * kChunk);
  }
  static constexpr int kMatrices = operand_parts(kIsBf16<E>) * static_cast<int>(kChunkMatrix);
};

// A factor for each of the two tokens that an accumulator's elements belong to.
struct TokenPair {
  float2 x;
  __device__ float operator[](int element) const { return element % 2 == 0 ? x.x : x.y; }
};

// One stage of shared memory: the inputs of one chunk.
template <class E, int kKeyDim>
struct ScanTiles {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  Tile<E, kChunk, kKeyDim> q, k;
  Tile<E, kChunk, kBlockV> values;  // V, or dO
  Tile<E, kChunk, kChunk> T[kParts], A_qk[kParts];
  float* factors;  // [kScanFactors][kChunk]

  __device__ explicit ScanTiles(unsigned char* memory) {
    q.data = reinterpret_cast<E*>(memory);
    k.data = q.data + q.kElements;
    values.data = k.data + k.kElements;
    E* next = values.data + values.kElements;
    for (auto* matrix : {T, A_qk}) {
      for (int part = 0; part < kParts; ++part, next += kChunkMatrix) matrix[part].data = next;
    }
    factors = reinterpret_cast<float*>(next);
  }
  static constexpr int kBytes =
      (2 * kChunk * kKeyDim + kChunk * kBlockV + 2 * kParts * static_cast<int>(kChunkMatrix)) *
          static_cast<int>(sizeof(E)) +
      kScanFactors * kChunk * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes = (kBytes + 1023) / 1024 * 1024;  // the alignment of tiles

  // Issues the copies of a chunk of `rows` tokens.
  __device__ void load(const ScanTileIterator<E>& from, const Dims& dims, bool erases, int rows, int columns) const {
    load_tile<kThreads>(q, from.q, rows, dims.key_dim);
    load_tile<kThreads>(k, from.k, rows, dims.key_dim);
    load_tile<kThreads>(values, from.values, rows, columns);
    for (int part = 0; part < kParts; ++part) {
      load_workspace_tile<kThreads, true>(A_qk[part], from.A_qk + part * kChunkMatrix, kChunk);
      if (erases) load_workspace_tile<kThreads, true>(T[part], from.T + part * kChunkMatrix, kChunk);
    }
    static_assert(kScanFactors * kChunk <= 4 * kThreads);
    const int i = 4 * static_cast<int>(threadIdx.x);
    if (i < kScanFactors * kChunk) cp_async(factors + i, from.factors + i, true);
  }
  __device__ const float* factor(Factor which) const { return factors + which * kChunk; }
  // Of accumulator j of a warp tile of tokens.
  __device__ TokenPair pair(Factor which, int j, const Lane& lane) const {
    return {*reinterpret_cast<const float2*>(factor(which) + 8 * j + 2 * lane.quad)};
  }
  __device__ float gamma_C() const { return factor(kGamma)[kChunk - 1]; }
};

// The work of a block: a segment (or a chunk, in a forward scan per chunk), a value head, columns from block_column
// on; and of a warp: columns from warp_column on in the block, which is `column` in all.
struct ScanCoord {
  std::int64_t index;
  int head, block_column, warp_column, column;

  __device__ explicit ScanCoord(const Dims& dims)
      : index(blockIdx.x / dims.column_blocks / dims.value_heads),
        head(static_cast<int>(blockIdx.x / dims.column_blocks % dims.value_heads)),
        block_column(static_cast<int>(blockIdx.x % dims.column_blocks) * kBlockV),
        warp_column(static_cast<int>(threadIdx.x) / 32 * kWarpV),
        column(block_column + warp_column) {}
};

// The stage that a chunk is loaded to.
template <class E, int kKeyDim, int kStages>
__device__ inline ScanTiles<E, kKeyDim> stage_tiles(unsigned char* memory, std::int64_t chunk) {
  return ScanTiles<E, kKeyDim>(memory + static_cast<int>(chunk % kStages) * ScanTiles<E, kKeyDim>::kStageBytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products with a warp tile, transposed like it: to be called between mma_fence and mma_commit_and_wait.

// A warp tile as the A operand of products over its tokens.
template <class E>
__device__ inline void to_fragments(FragmentA<E> (&fragments)[kKSteps], const Accumulator (&tile)[kChunkAccumulators]) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) fragments[step] = to_fragment_a<E>(tile[2 * step], tile[2 * step + 1]);
}
// The low part of split bf16: what rounding took off the fragments.
__device__ inline void to_low_fragments(FragmentA<bf16> (&low)[kKSteps], const FragmentA<bf16> (&fragments)[kKSteps],
                                        const Accumulator (&tile)[kChunkAccumulators]) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    for (int i = 0; i < 4; ++i) {
      const float* exact = tile[2 * step + i / 2].x + i % 2 * 2;
      const std::uint32_t rounded = fragments[step].x[i];
      low[step].x[i] = pack_bf16x2(exact[0] - low_half(rounded), exact[1] - high_half(rounded));
    }
  }
}

// acc += M tile for a lower triangular matrix M, or M^T tile. Blocks of zeros are skipped, except by wgmma.
template <bool kTransposed, class E>
__device__ inline void mma_lower(Accumulator (&acc)[kChunkAccumulators], const FragmentA<E> (&tile)[kKSteps],
                                 const Tile<E, kChunk, kChunk>& matrix, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    if constexpr (kUsesWgmma<E>) {
      tile_mma<kChunk, kTransposed>(acc, tile[step], matrix, kTransposed ? 16 * step : 0, kTransposed ? 0 : 16 * step,
                                    lane);
    } else {
#pragma unroll
      for (int n = 0; n < kKSteps; ++n) {
        if (kTransposed ? n > step : n < step) continue;
        tile_mma<16, kTransposed>(acc + 2 * n, tile[step], matrix, 16 * (kTransposed ? step : n),
                                  16 * (kTransposed ? n : step), lane);
      }
    }
  }
}

// acc += rows state over the keys from `first` on; rows are those of Q or K.
template <class E, int kKeyDim, int kCount>
__device__ inline void mma_rows_state(Accumulator (&acc)[kChunkAccumulators], const Tile<E, kChunk, kKeyDim>& rows,
                                      const FragmentA<E> (&state)[kCount], int first, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kCount; ++step) tile_mma<kChunk, false>(acc, state[step], rows, 0, first + 16 * step, lane);
}

// state += rows^T tile
template <class E, int kKeyDim>
__device__ inline void mma_rows_transposed(Accumulator (&state)[kKeyDim / 8], const Tile<E, kChunk, kKeyDim>& rows,
                                           const FragmentA<E> (&tile)[kKSteps], const Lane& lane) {
  constexpr int kWide = kKeyDim < 128 ? kKeyDim : 128;
#pragma unroll
  for (int key = 0; key < kKeyDim; key += kWide) {
#pragma unroll
    for (int step = 0; step < kKSteps; ++step)
      tile_mma<kWide, true>(state + key / 8, tile[step], rows, 16 * step, key, lane);
  }
}

// Keys between two waits for wgmma: as many as there are registers for.
template <class E, int kKeyDim, int kStages>
constexpr int kKeysPerWait = kOverlapIo<kKeyDim, kStages> ? kKeyDim : 64;

// The keys from `first` on of a state, as A operand.
template <class E, int kAccumulators, int kCount>
__device__ inline void to_state_fragments(FragmentA<E> (&fragments)[kCount], const Accumulator (&state)[kAccumulators],
                                          int first) {
#pragma unroll
  for (int step = 0; step < kCount; ++step)
    fragments[step] = to_fragment_a<E>(state[first / 8 + 2 * step], state[first / 8 + 2 * step + 1]);
}

template <int kCount>
__device__ inline void scale(Accumulator (&accs)[kCount], float factor) {
#pragma unroll
  for (Accumulator& acc : accs) {
#pragma unroll
    for (float& x : acc.x) x *= factor;
  }
}
__device__ inline void zero(Accumulator (&tile)[kChunkAccumulators]) {
#pragma unroll
  for (Accumulator& acc : tile) acc = Accumulator();
}

// V' = T R, or dR = T^T dV', each in the place of what is multiplied.
template <bool kTransposed, class E, int kKeyDim>
__device__ inline void multiply_T(Accumulator (&tile)[kChunkAccumulators], const ScanTiles<E, kKeyDim>& tiles,
                                  const Lane& lane) {
  FragmentA<E> fragments[kKSteps];
  to_fragments(fragments, tile);
  zero(tile);
  mma_fence<E>(tile);
#pragma unroll
  for (const auto& part : tiles.T) mma_lower<kTransposed>(tile, fragments, part, lane);
  mma_commit_and_wait<E>(tile);
}

// Stores a warp tile of V' or dR to the workspace, as split bf16 (or in float32).
template <class E>
__device__ inline void store_split(const Accumulator (&tile)[kChunkAccumulators], void* data, const Dims& dims,
                                   std::int64_t slot, int column, const Lane& lane) {
  constexpr int kParts = operand_parts(kIsBf16<E>);
  const std::int64_t width = static_cast<std::int64_t>(dims.column_blocks) * kBlockV;
  E* first = static_cast<E*>(data) + slot * kParts * kChunk * width + column;
  store_warp_tile(tile, {reinterpret_cast<std::byte*>(first), width, kIsBf16<E>, true}, kChunk, kWarpV, lane);
  if constexpr (kIsBf16<E>) {
    Accumulator low[kChunkAccumulators];
#pragma unroll
    for (int j = 0; j < kChunkAccumulators; ++j) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const std::uint32_t rounded = pack_bf16x2(tile[j].x[i], tile[j].x[i + 1]);
        low[j].x[i] = tile[j].x[i] - low_half(rounded);
        low[j].x[i + 1] = tile[j].x[i + 1] - high_half(rounded);
      }
    }
    store_warp_tile(low, {reinterpret_cast<std::byte*>(first + kChunk * width), width, true, true}, kChunk, kWarpV,
                    lane);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches. A Scan has
//   Args                        its arguments
//   kernel<E, keys, stages>(args)
//   scans_per_head(args)        sequences, or chunks
//   allows_two_stages(args)     false where the arguments ask for something that only one stage has registers for

template <class Scan, class E, int kKeyDim, int kStages>
void launch_stages(const Context& context, const typename Scan::Args& args, std::int64_t blocks) {
  constexpr int kMemory = (kStages - 1) * ScanTiles<E, kKeyDim>::kStageBytes + ScanTiles<E, kKeyDim>::kBytes;
  const auto kernel = Scan::template kernel<E, kKeyDim, kStages>(args);
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), kMemory);
  kernel<<<static_cast<unsigned>(blocks), kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence scan");
}

template <class Scan, class E, int kKeyDim>
void launch_key_dim(const Context& context, const typename Scan::Args& args) {
  const std::int64_t blocks = Scan::scans_per_head(args) * args.dims.value_heads * args.dims.column_blocks;
  if constexpr (kIsBf16<E>) {
    constexpr int kMemory = 2 * ScanTiles<E, kKeyDim>::kStageBytes;
    if (blocks <= context.sm_count() && context.shared_memory() >= kMemory && Scan::allows_two_stages(args))
      return launch_stages<Scan, E, kKeyDim, 2>(context, args, blocks);
  }
  launch_stages<Scan, E, kKeyDim, 1>(context, args, blocks);
}

template <class Scan, class E>
void launch(const Context& context, const typename Scan::Args& args) {
  switch (padded_key_dim(args.dims.key_dim)) {
    case 64:
      return launch_key_dim<Scan, E, 64>(context, args);
    case 128:
      return launch_key_dim<Scan, E, 128>(context, args);
    default:
      return launch_key_dim<Scan, E, kMaxKeyDim>(context, args);
  }
}

}  // namespace qdelta::cuda::scan
