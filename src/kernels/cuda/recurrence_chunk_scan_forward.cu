// The forward scan: O, and optionally the states on entry to every chunk and V'. Formulas in recurrence_chunk_scan.cuh.
#include "kernels/cuda/recurrence_chunk_scan.cuh"

namespace qdelta::cuda {
namespace {

using namespace scan;

// Q S and K S; `meanwhile` is done while the products of the first keys run.
template <bool kErases, class E, int kKeyDim, class Meanwhile>
__device__ inline void multiply_state(Accumulator (&qs)[kChunkAccumulators], Accumulator (&ks)[kChunkAccumulators],
                                      const Accumulator (&state)[kKeyDim / 8], const KeyTiles<E, kKeyDim>& keys,
                                      const Lane& lane, const Meanwhile& meanwhile) {
  constexpr int kKeysAtATime = kKeysPerWait<kKeyDim>;
#pragma unroll
  for (int key = 0; key < kKeyDim; key += kKeysAtATime) {
    FragmentA<E> state_fragments[kKeysAtATime / 16];
    to_state_fragments(state_fragments, state, key);
    mma_fence<E>(qs, ks);
    mma_rows_state(qs, keys.q, state_fragments, key, lane);
    if constexpr (kErases) mma_rows_state(ks, keys.k, state_fragments, key, lane);
    mma_commit<E>();
    if (key == 0) meanwhile();
    mma_wait<E>(qs, ks);
  }
}

// R = diag(write) V - diag(erase gamma) K S - diag(erase gamma mix) Q S, in the place of K S.
template <class Matrices>
__device__ inline void to_residual(Accumulator (&ks)[kChunkAccumulators], const Accumulator (&qs)[kChunkAccumulators],
                                   const Matrices& tiles, int warp_column, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j) {
    const Accumulator value = load_accumulator(tiles.values, j, warp_column, lane);
    const TokenPair write = token_pair(tiles.factor(kWrite), j, lane);
    const TokenPair erase_gamma_k = token_pair(tiles.factor(kEraseGammaK), j, lane);
    const TokenPair erase_gamma_mix_q = token_pair(tiles.factor(kEraseGammaMixQ), j, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ks[j].x[i] = write[i] * value.x[i] - erase_gamma_k[i] * ks[j].x[i] - erase_gamma_mix_q[i] * qs[j].x[i];
    }
  }
}

// V' = T R, in the place of R, and O = scale diag(gamma) Q S + (A_qk T) R, in the place of Q S. Where T = I, R is not
// rounded: its low part counts as well.
template <bool kErases, class E, class Matrices, class Meanwhile>
__device__ inline void multiply_residual(Accumulator (&residual)[kChunkAccumulators],
                                         Accumulator (&qs)[kChunkAccumulators], const Matrices& tiles, const Lane& lane,
                                         const Meanwhile& meanwhile) {
  constexpr bool kSplits = !kErases && kIsBf16<E>;
  FragmentA<E> fragments[kKSteps], low[kSplits ? kKSteps : 1];
  to_fragments(fragments, residual);
  if constexpr (kSplits) to_low_fragments(low, fragments, residual);
  if constexpr (kErases) zero(residual);
  scale_tokens(qs, tiles.factor(kScaleGammaQ), lane);
  mma_fence<E>(residual, qs);
  if constexpr (kErases) mma_lower<false>(residual, fragments, tiles.T, lane);
  mma_lower<false>(qs, fragments, tiles.A_qkT, lane);
  if constexpr (kSplits) mma_lower<false>(qs, low, tiles.A_qkT[0], lane);
  mma_commit<E>();
  meanwhile();
  mma_wait<E>(residual, qs);
}

// A warp tile of M or N, in float32.
template <int kAccumulators>
__device__ inline void store_map(const ForwardScanArgs& a, const Accumulator (&tile)[kAccumulators],
                                 const ScanCoord& at, const Lane& lane) {
  const int m_column = at.column - a.maps.n_blocks * kBlockV;
  const bool is_m = m_column >= 0;
  const int width = is_m ? a.dims.key_dim : a.dims.value_dim;
  const int column = is_m ? m_column : at.column;
  const std::int64_t map = std::int64_t{at.index} * a.dims.value_heads + at.head;
  float* to = (is_m ? a.maps.M : a.maps.N) + map * a.dims.key_dim * width + column;
  store_warp_tile(tile, {reinterpret_cast<std::byte*>(to), width, false, false}, a.dims.key_dim, width - column, lane);
}

// The state on entry to the segment.
template <int kAccumulators>
__device__ inline void load_state(const ForwardScanArgs& a, Accumulator (&state)[kAccumulators], const ScanCoord& at,
                                  const Lane& lane) {
  const int m_column = at.column - a.maps.n_blocks * kBlockV;
  if (a.maps.M != nullptr && m_column >= 0) {
    identity_warp_tile(state, m_column, lane);
  } else if (a.maps.M == nullptr && a.initial_states.data != nullptr) {
    load_warp_tile(state, state_matrix(a.initial_states, at.index, at.head, 0, at.column), a.dims.key_dim,
                   a.initial_states.columns - at.column, lane);
  }
}

// One chunk: S becomes S+.
template <bool kErases, class E, int kKeyDim, class Pipeline>
__device__ __forceinline__ void forward_chunk(const ForwardScanArgs& a, Accumulator (&state)[kKeyDim / 8],
                                              Pipeline& pipeline, int chunk, int sequence, const ScanCoord& at,
                                              const Lane& lane) {
  const typename Pipeline::Keys keys = pipeline.acquire_keys(chunk);
  Accumulator qs[kChunkAccumulators], v_new[kChunkAccumulators];  // Q S, then O; K S, then R, then V'
  multiply_state<kErases, E, kKeyDim>(qs, v_new, state, keys, lane, [&] {
    if (a.chunk_states.data == nullptr) return;
    store_warp_tile(state, state_matrix(a.chunk_states, chunk, at.head, 0, at.column), a.dims.key_dim,
                    a.chunk_states.columns - at.column, lane);
  });
  const typename Pipeline::Matrices matrices = pipeline.acquire_matrices();
  to_residual(v_new, qs, matrices, at.warp_column, lane);
  multiply_residual<kErases, E>(v_new, qs, matrices, lane, [&] { scale(state, matrices.gamma_C()); });

  FragmentA<E> decayed[kKSteps];
  to_fragments(decayed, v_new, matrices.factor(kGammaToEndK), lane);
  pipeline.release_matrices();
  mma_fence<E>(state);
  mma_rows_transposed<E, kKeyDim>(state, keys.k, decayed, lane);
  mma_commit<E>();
  if (a.o.data != nullptr) {
    const ChunkRange range = chunk_range(a.chunks, chunk, sequence);
    store_warp_tile(qs, chunk_rows(a.o, range, at.head, at.column), range.tokens, a.dims.value_dim - at.column, lane);
  }
  if (a.v_new != nullptr)
    store_split<E>(v_new, a.v_new, a.dims, std::int64_t{chunk} * a.dims.value_heads + at.head, at.column, lane);
  mma_wait<E>(state);
  pipeline.release_keys();
}

__device__ inline SegmentRange job_range(const ForwardScanArgs& a, const ScanCoord& at) {
  return a.per_chunk ? one_chunk_range(a.chunks, at.index) : segment_range(a.chunks, a.segments, at.index);
}

// kErases is a template parameter to have no branch around wgmma (see mma_fence).
template <class E, int kKeyDim, bool kErases, class Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, Pipeline::kMinBlocksPerSm)
    forward_kernel(const ForwardScanArgs a, const __grid_constant__ ScanMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Lane lane;
  ptx::let_next_begin();
  Pipeline::prefetch(maps);
  if (a.chunks.has_tables()) ptx::wait_for_previous();  // for what makes them
  const TeamJobs jobs(a.shared, team_blocks(a.dims, Pipeline::kWarpgroups), a.chunks.per_sequence);
  ScanCoord at(a.dims, Pipeline::kWarpgroups, jobs.last);
  SegmentRange range = job_range(a, at);
  // In a scan for maps the columns of N have values, those of M have none, and may not be wanted.
  const bool is_for_maps = a.maps.M != nullptr;
  const bool is_wanted = !is_for_maps || !range.last || a.maps.last;
  const int n_blocks = is_for_maps ? a.maps.n_blocks : a.dims.column_blocks;
  const int wanted = is_for_maps && range.first && !a.maps.first ? n_blocks : a.dims.column_blocks;
  const int blocks = min(wanted - at.first_block, Pipeline::kWarpgroups);
  if (!is_wanted || blocks <= 0) return ptx::wait_for_previous();  // a kernel's end says that all before it are done

  ScanWalk walk{};
  const bool is_n = at.first_block + at.warpgroup < n_blocks;
  Pipeline pipeline(a, a.v, maps, at, walk, blocks, is_n ? a.dims.value_dim - at.block_column : 0, memory);
  ptx::wait_for_previous();
  const auto begin_job = [&](int job) {
    at = ScanCoord(a.dims, Pipeline::kWarpgroups, job);
    range = job_range(a, at);
    walk = {range.sequence, range.begin, range.end - range.begin, 1};
    jobs.cut(walk, job);
  };
  if (Pipeline::is_producer()) {
    Pipeline::begin_producing();
#pragma unroll 1
    for (int job = jobs.last; job >= jobs.first; --job) {
      begin_job(job);
      pipeline.produce([&](int w) { return at.first_block + w < n_blocks; });
    }
    return;
  }
  Pipeline::begin_consuming();
  if (at.warpgroup >= blocks) return;
#pragma unroll 1
  for (int job = jobs.last; job >= jobs.first; --job) {
    begin_job(job);
    Accumulator state[kKeyDim / 8];
    jobs.begins_inside(job) ? jobs.take_over(state) : load_state(a, state, at, lane);
#pragma unroll 1
    for (int n = 0; n < walk.count; ++n)
      forward_chunk<kErases, E, kKeyDim>(a, state, pipeline, walk.first + n, walk.sequence, at, lane);

    if (jobs.ends_inside(job)) {
      jobs.hand_on(state);
    } else if (is_for_maps) {
      store_map(a, state, at, lane);
    } else if (a.final_states.data != nullptr && range.last) {
      store_warp_tile(state, state_matrix(a.final_states, range.sequence, at.head, 0, at.column), a.dims.key_dim,
                      a.final_states.columns - at.column, lane);
    }
  }
}

struct ForwardScan {
  using Args = ForwardScanArgs;
  template <class E, int kKeyDim, class Pipeline>
  static auto kernel(const Args& args) {
    return args.erases ? forward_kernel<E, kKeyDim, true, Pipeline> : forward_kernel<E, kKeyDim, false, Pipeline>;
  }
  static std::int64_t scans_per_head(const Args& args) {
    return args.per_chunk ? args.chunks.total : args.segments.total;
  }
  static const TokensIn& values(const Args& args) { return args.v; }
};

}  // namespace

void launch_forward_scan(const Context& context, const ForwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch<ForwardScan, bf16>(context, args) : launch<ForwardScan, float>(context, args);
}

}  // namespace qdelta::cuda
