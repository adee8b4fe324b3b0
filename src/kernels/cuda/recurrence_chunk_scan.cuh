// The forward and the backward scan over the chunks of a sequence. A warpgroup has kBlockV value columns of one value
// head, a warp 16 of them: it holds these columns of the state in registers, transposed (the warp tiles of
// recurrence_chunk_device.cuh), and needs nothing from the other warps. Warpgroups of one head share the tiles of a
// chunk, which a pipeline (recurrence_chunk_scan_pipeline.cuh) brings to shared memory.
//
// Forward, S the state on entry to a chunk, S+ on exit, V' (v_new) the values written, R the residual:
//   R  = diag(write) V - diag(erase gamma) X S           X S = K S + diag(mix) Q S
//   V' = T R
//   O  = scale diag(gamma) Q S + (A_qk T) R              (A_qk T) R = A_qk V', but does not wait for V'
//   S+ = gamma_C S + (diag(exp(G_C - G)) K)^T V'
//
// Backward, from the last chunk to the first, dS+ the gradient of S+:
//   dR = T^T diag(exp(G_C - G)) K dS+ + (A_qk T)^T dO    dV = diag(write) dR
//   dS = gamma_C dS+ + (scale diag(gamma) Q)^T dO - (diag(erase gamma) X)^T dR
//
// The L2 norms of Q and K are in the factors, so the products take q and k as they are in memory.
#pragma once

#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/recurrence_chunk_scan_pipeline.cuh"

namespace qdelta::cuda::scan {

inline constexpr int kChunkAccumulators = kChunk / 8;  // of a warp tile of tokens
inline constexpr int kKSteps = kChunk / 16;            // k16 steps of a product over the tokens

// ---------------------------------------------------------------------------------------------------------------------
// Warp tiles of tokens.

// A factor for each of the two tokens that an accumulator's elements belong to.
struct TokenPair {
  float2 x;
  __device__ float operator[](int element) const { return element % 2 == 0 ? x.x : x.y; }
};
// Of accumulator j.
__device__ inline TokenPair token_pair(const float* factors, int j, const Lane& lane) {
  return {*reinterpret_cast<const float2*>(factors + lane.pair(j))};
}

// A warp tile as the A operand of products over its tokens, multiplied by the tokens' factors.
template <class E>
__device__ inline void to_fragments(FragmentA<E> (&fragments)[kKSteps], const Accumulator (&tile)[kChunkAccumulators]) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) fragments[step] = to_fragment_a<E>(tile[2 * step], tile[2 * step + 1]);
}
template <class E>
__device__ inline void to_fragments(FragmentA<E> (&fragments)[kKSteps], const Accumulator (&tile)[kChunkAccumulators],
                                    const float* factors, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    Accumulator scaled[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = 2 * step + half;
      const TokenPair factor = token_pair(factors, j, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[half].x[i] = factor[i] * tile[j].x[i];
    }
    fragments[step] = to_fragment_a<E>(scaled[0], scaled[1]);
  }
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

// ---------------------------------------------------------------------------------------------------------------------
// Products with a warp tile, transposed like it: to be called between mma_fence and mma_commit_and_wait.

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
// With all parts of a split M.
template <bool kTransposed, class E, int kParts>
__device__ inline void mma_lower(Accumulator (&acc)[kChunkAccumulators], const FragmentA<E> (&tile)[kKSteps],
                                 const Tile<E, kChunk, kChunk> (&parts)[kParts], const Lane& lane) {
#pragma unroll
  for (const auto& part : parts) mma_lower<kTransposed>(acc, tile, part, lane);
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

// Keys of a state between two waits for wgmma: as many as there are registers for.
template <int kKeyDim>
constexpr int kKeysPerWait = kKeyDim <= 128 ? kKeyDim : 64;

// The keys from `first` on of a state, as A operand.
template <class E, int kAccumulators, int kCount>
__device__ inline void to_state_fragments(FragmentA<E> (&fragments)[kCount], const Accumulator (&state)[kAccumulators],
                                          int first) {
#pragma unroll
  for (int step = 0; step < kCount; ++step)
    fragments[step] = to_fragment_a<E>(state[first / 8 + 2 * step], state[first / 8 + 2 * step + 1]);
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
//   Args                              its arguments
//   kernel<E, keys, Pipeline>(args)
//   scans_per_head(args)              segments, or chunks
//   values(args)                      V or dO

template <class Scan, class E, int kKeyDim, class Pipeline>
void launch_pipeline(const Context& context, const typename Scan::Args& args, const ScanMaps& maps) {
  const int team = team_blocks(args.dims, Pipeline::kWarpgroups);
  std::int64_t teams = Scan::scans_per_head(args) * args.dims.value_heads;
  if (const SharedJobs& shared = args.shared; shared.chunks_per_team > 0) {
    teams = (teams * args.chunks.per_sequence + shared.chunks_per_team - 1) / shared.chunks_per_team;
    require(teams * team <= shared.most_blocks, "a scan of {} blocks that share sequences, in memory of {}",
            teams * team, shared.most_blocks);
    const std::size_t flags = static_cast<std::size_t>(teams * team) * (Pipeline::kThreads / 32);
    QDELTA_CUDA(cudaMemsetAsync(shared.ready, 0, flags * sizeof(*shared.ready), context.stream()));
  }
  const auto kernel = Scan::template kernel<E, kKeyDim, Pipeline>(args);
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), Pipeline::kBytes);
  launch_overlapped(context, "recurrence scan", kernel, static_cast<unsigned>(teams * team), Pipeline::kThreads,
                    Pipeline::kBytes, args, maps);
}

template <class Scan, class E, int kKeyDim>
void launch_key_dim(const Context& context, typename Scan::Args args) {
  if constexpr (kIsBf16<E> && kKeyDim <= CopyEnginePipeline<kKeyDim>::kMostKeys) {
    if (fits_copy_engine(context, args, Scan::values(args)))
      return launch_pipeline<Scan, E, kKeyDim, CopyEnginePipeline<kKeyDim>>(context, args,
                                                                            scan_maps(args, Scan::values(args)));
  }
  args.shared = {};
  launch_pipeline<Scan, E, kKeyDim, ThreadPipeline<E, kKeyDim>>(context, args, {});
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
