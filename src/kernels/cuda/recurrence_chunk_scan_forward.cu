// The forward scan: O, and optionally the states on entry to every chunk and V'. Formulas in recurrence_chunk_scan.cuh.
#include "kernels/cuda/recurrence_chunk_scan.cuh"

namespace qdelta::cuda {
namespace {

using namespace scan;

// Where registers are short, Q S is spilled to the shared memory of Q while V' is computed.
template <class E, int kKeyDim, int kStages>
constexpr bool kSpillQS = kIsBf16<E>&& kKeyDim >= (kStages == 1 ? 128 : 256);
template <class E>
__device__ inline void spill_to_shared(E* shared, const Accumulator (&tile)[kChunkAccumulators]) {
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j)
    reinterpret_cast<float4*>(shared)[j * kThreads + threadIdx.x] = {tile[j].x[0], tile[j].x[1], tile[j].x[2],
                                                                     tile[j].x[3]};
}
template <class E>
__device__ inline void reload_from_shared(Accumulator (&tile)[kChunkAccumulators], const E* shared) {
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j) {
    const float4 x = reinterpret_cast<const float4*>(shared)[j * kThreads + threadIdx.x];
    tile[j] = {{x.x, x.y, x.z, x.w}};
  }
}

// R = diag(write) V - diag(erase gamma) K S - diag(erase gamma mix) Q S, in the place of K S.
template <class E, int kKeyDim>
__device__ inline void to_residual(Accumulator (&ks)[kChunkAccumulators], const Accumulator (&qs)[kChunkAccumulators],
                                   const ScanTiles<E, kKeyDim>& tiles, int warp_column, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j) {
    const Accumulator value = load_accumulator(tiles.values, j, warp_column, lane);
    const TokenPair write = tiles.pair(kWrite, j, lane);
    const TokenPair erase_gamma_k = tiles.pair(kEraseGammaK, j, lane);
    const TokenPair erase_gamma_mix_q = tiles.pair(kEraseGammaMixQ, j, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ks[j].x[i] = write[i] * value.x[i] - erase_gamma_k[i] * ks[j].x[i] - erase_gamma_mix_q[i] * qs[j].x[i];
    }
  }
}

// Q S and K S; `meanwhile` is done while the products of the first keys run.
template <int kStages, class E, int kKeyDim, class Meanwhile>
__device__ inline void multiply_state(Accumulator (&qs)[kChunkAccumulators], Accumulator (&ks)[kChunkAccumulators],
                                      const Accumulator (&state)[kKeyDim / 8], const ScanTiles<E, kKeyDim>& tiles,
                                      bool needs_qs, bool needs_ks, const Lane& lane, const Meanwhile& meanwhile) {
  constexpr int kKeysAtATime = kKeysPerWait<E, kKeyDim, kStages>;
#pragma unroll
  for (int key = 0; key < kKeyDim; key += kKeysAtATime) {
    FragmentA<E> state_fragments[kKeysAtATime / 16];
    to_state_fragments(state_fragments, state, key);
    mma_fence<E>(qs, ks);
    if (needs_qs) mma_rows_state(qs, tiles.q, state_fragments, key, lane);
    if (needs_ks) mma_rows_state(ks, tiles.k, state_fragments, key, lane);
    if (key == 0) meanwhile();
    mma_commit_and_wait<E>(qs, ks);
  }
}

// O = scale diag(gamma) Q S + A_qk V', in the place of Q S, and S+ = gamma_C S + (diag(exp(G_C - G)) K)^T V': in one
// batch of products, or one after the other where registers are short. `v_new` is used up.
template <int kStages, class E, int kKeyDim, class StoreOutput>
__device__ inline void finish_chunk(Accumulator (&qs)[kChunkAccumulators], Accumulator (&state)[kKeyDim / 8],
                                    Accumulator (&v_new)[kChunkAccumulators], const ScanTiles<E, kKeyDim>& tiles,
                                    bool has_output, const Lane& lane, const StoreOutput& store_output) {
  FragmentA<E> fragments[kKSteps], low[kIsBf16<E> ? kKSteps : 1], decayed[kKSteps];
  to_fragments(fragments, v_new);
  if constexpr (kIsBf16<E>) to_low_fragments(low, fragments, v_new);
  const auto begin_output = [&] {
    if constexpr (kSpillQS<E, kKeyDim, kStages>) reload_from_shared(qs, tiles.q.data);
    scale_tokens(qs, tiles.factor(kScaleGammaQ), lane);
  };
  const auto mma_output = [&] {
    if constexpr (kIsBf16<E>) mma_lower<false>(qs, low, tiles.A_qk[0], lane);
#pragma unroll
    for (const auto& part : tiles.A_qk) mma_lower<false>(qs, fragments, part, lane);
  };
  const auto begin_state = [&] {
    scale_tokens(v_new, tiles.factor(kGammaToEndK), lane);
    to_fragments(decayed, v_new);
    scale(state, tiles.gamma_C());
  };
  const auto update_state = [&] { mma_rows_transposed<E, kKeyDim>(state, tiles.k, decayed, lane); };
  if constexpr (kOverlapIo<kKeyDim, kStages>) {
    begin_state();
    if (has_output) {
      begin_output();
      mma_fence<E>(qs, state);
      mma_output();
      update_state();
      mma_commit_and_wait<E>(qs, state);
      return store_output();
    }
  } else {
    if (has_output) {
      begin_output();
      mma_fence<E>(qs);
      mma_output();
      mma_commit_and_wait<E>(qs);
      store_output();
    }
    begin_state();
  }
  mma_fence<E>(state);
  update_state();
  mma_commit_and_wait<E>(state);
}

// A warp tile of M or N, in float32.
template <int kAccumulators>
__device__ inline void store_map(const ForwardScanArgs& a, const Accumulator (&tile)[kAccumulators], std::int64_t map,
                                 int column, bool is_m, const Lane& lane) {
  const int width = is_m ? a.dims.key_dim : a.dims.value_dim;
  float* to = (is_m ? a.maps.M : a.maps.N) + map * a.dims.key_dim * width + column;
  store_warp_tile(tile, {reinterpret_cast<std::byte*>(to), width, false, false}, a.dims.key_dim, width - column, lane);
}

// kMaps: the scan gives nothing but M and N of the segments. It has two accumulators live at once more often than the
// scan with outputs, which spills Q S: with three blocks on an SM ptxas would serialize its products.
template <class E, int kKeyDim, int kStages, bool kMaps>
constexpr int kForwardBlocksPerSm = kMaps&& kKeyDim > 64 && kIsBf16<E> ? 2 : kMinBlocksPerSm<E, kKeyDim, kStages>;

template <class E, int kKeyDim, int kStages, bool kMaps>
__global__ void __launch_bounds__(kThreads, (kForwardBlocksPerSm<E, kKeyDim, kStages, kMaps>))
    forward_kernel(const ForwardScanArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Lane lane;
  const auto [index, head, block_column, warp_column, column] = ScanCoord(a.dims);
  const int columns = a.dims.value_dim - column;
  const auto [sequence, begin, end, is_first, is_last] =
      a.per_chunk ? one_chunk_range(a.chunks, index) : segment_range(a.chunks, a.segments, index);
  const int m_column = column - a.maps.n_blocks * kBlockV;  // negative: columns of N
  const bool is_m = kMaps && m_column >= 0;
  if (kMaps && ((is_last && !a.maps.last) || (is_m && is_first && !a.maps.first))) return;
  const bool needs_qs = (!kMaps && a.o.data != nullptr) || a.mixes;

  const auto inputs_of = [&](std::int64_t chunk) {
    return ScanTileIterator<E>(a.dims, a.q, a.k, a.v, a.prepared, chunk, chunk_range(a.chunks, chunk, sequence), head,
                               block_column);
  };
  ScanTileIterator<E> next = inputs_of(begin);
  const auto load = [&](std::int64_t chunk) {
    if (chunk < end) {
      if (kStages == 1) next = inputs_of(chunk);  // recomputed, to save registers
      stage_tiles<E, kKeyDim, kStages>(memory, chunk)
          .load(next, a.dims, a.erases, chunk_range(a.chunks, chunk, sequence).tokens,
                is_m ? 0 : a.dims.value_dim - block_column);
      if (kStages == 2) next.advance(1);
    }
    cp_async_commit();
  };
  load(begin);
  Accumulator state[kKeyDim / 8];
  if (!kMaps && a.initial_states.data != nullptr)
    load_warp_tile(state, state_matrix(a.initial_states, index, head, 0, column), a.dims.key_dim,
                   a.initial_states.columns - column, lane);
  if (is_m) identity_warp_tile(state, m_column, lane);

  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const std::int64_t slot = chunk * a.dims.value_heads + head;
    const ScanTiles<E, kKeyDim> tiles = stage_tiles<E, kKeyDim, kStages>(memory, chunk);
    constexpr bool kOverlap = kOverlapIo<kKeyDim, kStages>;
    const auto store_state = [&] {
      if (!kMaps && a.chunk_states.data != nullptr) {
        store_warp_tile(state, state_matrix(a.chunk_states, chunk, head, 0, column), a.dims.key_dim,
                        a.chunk_states.columns - column, lane);
      }
    };
    if constexpr (!kOverlap) {
      if (kStages == 2) load(chunk + 1);
      if (kStages == 1 && chunk > begin) load(chunk);
      store_state();
    }
    cp_async_wait<kOverlap ? 0 : kStages - 1>();
    fence_async_proxy();
    __syncthreads();

    Accumulator qs[kChunkAccumulators], v_new[kChunkAccumulators];  // Q S, then O; K S, then R, then V'
    multiply_state<kStages>(qs, v_new, state, tiles, needs_qs, a.erases, lane, [&] {
      if constexpr (!kOverlap) return;
      store_state();
      load(chunk + 1);
    });
    to_residual(v_new, qs, tiles, warp_column, lane);
    const bool has_output = !kMaps && a.o.data != nullptr;
    if constexpr (kSpillQS<E, kKeyDim, kStages>) {
      __syncthreads();  // all warps have read Q
      if (has_output) spill_to_shared(tiles.q.data, qs);
    }
    if (a.erases) multiply_T<false>(v_new, tiles, lane);
    if (!kMaps && a.v_new != nullptr) store_split<E>(v_new, a.v_new, a.dims, slot, column, lane);
    finish_chunk<kStages>(qs, state, v_new, tiles, has_output, lane, [&] {
      const ChunkRange range = chunk_range(a.chunks, chunk, sequence);
      store_warp_tile(qs, chunk_rows(a.o, range, head, column), range.tokens, columns, lane);
    });
    __syncthreads();
  }
  if (!kMaps && a.final_states.data != nullptr && is_last)
    store_warp_tile(state, state_matrix(a.final_states, sequence, head, 0, column), a.dims.key_dim,
                    a.final_states.columns - column, lane);
  if (kMaps) store_map(a, state, index * a.dims.value_heads + head, is_m ? m_column : column, is_m, lane);
}

struct ForwardScan {
  using Args = ForwardScanArgs;
  template <class E, int kKeyDim, int kStages>
  static auto kernel(const Args& args) {
    if constexpr (kStages == 1) {
      if (args.maps.M != nullptr) return forward_kernel<E, kKeyDim, kStages, true>;
    }
    return forward_kernel<E, kKeyDim, kStages, false>;
  }
  static std::int64_t scans_per_head(const Args& args) {
    return args.per_chunk ? args.chunks.total : args.segments.total;
  }
  static bool allows_two_stages(const Args& args) { return args.maps.M == nullptr; }
};

}  // namespace

void launch_forward_scan(const Context& context, const ForwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch<ForwardScan, bf16>(context, args) : launch<ForwardScan, float>(context, args);
}

}  // namespace qdelta::cuda
