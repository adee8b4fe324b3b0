// The backward scan: dv, the gradients of the states, and dR, which recurrence_chunk_gradients.cu continues with.
// Formulas in recurrence_chunk_scan.cuh.
#include "kernels/cuda/recurrence_chunk_scan.cuh"

namespace qdelta::cuda {
namespace {

using namespace scan;

// dO as an operand, as it is in memory.
template <class E>
__device__ inline void load_operand(FragmentA<E> (&fragments)[kKSteps], const Tile<E, kChunk, kBlockV>& tile,
                                    int warp_column, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    fragments[step] = to_fragment_a<E>(load_accumulator(tile, 2 * step, warp_column, lane),
                                       load_accumulator(tile, 2 * step + 1, warp_column, lane));
  }
}

// K dS+, and (A_qk T)^T dO as the first part of dR; `meanwhile` is done while the products of the first keys run.
template <class E, int kKeyDim, class Matrices, class Meanwhile>
__device__ inline void multiply_state(Accumulator (&k_d_state)[kChunkAccumulators],
                                      Accumulator (&d_residual)[kChunkAccumulators], const FragmentA<E> (&d_o)[kKSteps],
                                      const Accumulator (&d_state)[kKeyDim / 8], const KeyTiles<E, kKeyDim>& keys,
                                      const Matrices& tiles, const Lane& lane, const Meanwhile& meanwhile) {
  constexpr int kKeysAtATime = kKeysPerWait<kKeyDim>;
#pragma unroll
  for (int key = 0; key < kKeyDim; key += kKeysAtATime) {
    FragmentA<E> state_fragments[kKeysAtATime / 16];
    to_state_fragments(state_fragments, d_state, key);
    mma_fence<E>(k_d_state, d_residual);
    mma_rows_state(k_d_state, keys.k, state_fragments, key, lane);
    if (key == 0) mma_lower<true>(d_residual, d_o, tiles.A_qkT, lane);
    mma_commit<E>();
    if (key == 0) meanwhile();
    mma_wait<E>(k_d_state, d_residual);
  }
}

// dR += T^T diag(exp(G_C - G)) K dS+; T = I where nothing is erased.
template <bool kErases, class E, class Matrices, class Meanwhile>
__device__ inline void add_state_part(Accumulator (&d_residual)[kChunkAccumulators],
                                      Accumulator (&k_d_state)[kChunkAccumulators], const Matrices& tiles,
                                      const Lane& lane, const Meanwhile& meanwhile) {
  if constexpr (kErases) {
    FragmentA<E> fragments[kKSteps];
    to_fragments(fragments, k_d_state, tiles.factor(kGammaToEndK), lane);
    mma_fence<E>(d_residual);
    mma_lower<true>(d_residual, fragments, tiles.T, lane);
    mma_commit<E>();
    meanwhile();
    mma_wait<E>(d_residual);
  } else {
    scale_tokens(k_d_state, tiles.factor(kGammaToEndK), lane);
#pragma unroll
    for (int j = 0; j < kChunkAccumulators; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d_residual[j].x[i] += k_d_state[j].x[i];
    }
    meanwhile();
  }
}

// What multiplies Q^T and K^T in dS: scale diag(gamma) dO - diag(erase gamma mix) dR, in the place of dO, and
// -diag(erase gamma) dR.
template <class E, class Matrices>
__device__ inline void state_operands(FragmentA<E> (&of_q)[kKSteps], FragmentA<E> (&of_k)[kKSteps],
                                      const Accumulator (&d_residual)[kChunkAccumulators], const Matrices& tiles,
                                      const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    Accumulator q_operand[2], k_operand[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = 2 * step + half;
      const TokenPair scale_gamma_q = token_pair(tiles.factor(kScaleGammaQ), j, lane);
      const TokenPair erase_gamma_mix_q = token_pair(tiles.factor(kEraseGammaMixQ), j, lane);
      const TokenPair erase_gamma_k = token_pair(tiles.factor(kEraseGammaK), j, lane);
      const Accumulator d_o = to_accumulator(of_q[step], half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float d_r = d_residual[j].x[i];
        q_operand[half].x[i] = scale_gamma_q[i] * d_o.x[i] - erase_gamma_mix_q[i] * d_r;
        k_operand[half].x[i] = -erase_gamma_k[i] * d_r;
      }
    }
    of_q[step] = to_fragment_a<E>(q_operand[0], q_operand[1]);
    of_k[step] = to_fragment_a<E>(k_operand[0], k_operand[1]);
  }
}

// One chunk: dS+ becomes dS. `stores`: dS+, dR and dv are wanted.
template <bool kErases, class E, int kKeyDim, class Pipeline>
__device__ __forceinline__ void backward_chunk(const BackwardScanArgs& a, Accumulator (&d_state)[kKeyDim / 8],
                                               Pipeline& pipeline, int chunk, int sequence, const ScanCoord& at,
                                               const Lane& lane) {
  const bool stores = a.segment_dN == nullptr;
  const typename Pipeline::Keys keys = pipeline.acquire_keys(chunk);
  const typename Pipeline::Matrices matrices = pipeline.acquire_matrices();
  Accumulator k_d_state[kChunkAccumulators], d_residual[kChunkAccumulators];
  FragmentA<E> of_q[kKSteps], of_k[kKSteps];  // operands of dS; of_q is dO first
  load_operand(of_q, matrices.values, at.warp_column, lane);
  multiply_state<E, kKeyDim>(k_d_state, d_residual, of_q, d_state, keys, matrices, lane, [&] {
    if (!stores) return;
    store_warp_tile(d_state, state_matrix(a.d_states, chunk, at.head, 0, at.column), a.dims.key_dim,
                    a.d_states.columns - at.column, lane);
  });
  add_state_part<kErases, E>(d_residual, k_d_state, matrices, lane, [&] { scale(d_state, matrices.gamma_C()); });
  state_operands(of_q, of_k, d_residual, matrices, lane);
  // dS = gamma_C dS+ + Q^T of_q + K^T of_k
  mma_fence<E>(d_state);
  mma_rows_transposed<E, kKeyDim>(d_state, keys.q, of_q, lane);
  if constexpr (kErases) mma_rows_transposed<E, kKeyDim>(d_state, keys.k, of_k, lane);
  mma_commit<E>();
  if (stores) {
    const ChunkRange range = chunk_range(a.chunks, chunk, sequence);
    store_split<E>(d_residual, a.d_residual, a.dims, std::int64_t{chunk} * a.dims.value_heads + at.head, at.column,
                   lane);
    scale_tokens(d_residual, matrices.factor(kWrite), lane);
    store_warp_tile(d_residual, chunk_rows(a.dv, range, at.head, at.column), range.tokens, a.dims.value_dim - at.column,
                    lane);
  }
  pipeline.release_matrices();
  mma_wait<E>(d_state);
  pipeline.release_keys();
}

// The gradient of the state on exit from the segment.
template <int kAccumulators>
__device__ inline void load_d_state(const BackwardScanArgs& a, Accumulator (&d_state)[kAccumulators],
                                    const ScanCoord& at, const Lane& lane) {
  if (a.segment_dN != nullptr || a.d_final_states.data == nullptr) return;
  load_warp_tile(d_state, state_matrix(a.d_final_states, at.index, at.head, 0, at.column), a.dims.key_dim,
                 a.d_final_states.columns - at.column, lane);
}
// That of the state on entry.
template <int kAccumulators>
__device__ inline void store_d_state(const BackwardScanArgs& a, const Accumulator (&d_state)[kAccumulators],
                                     const SegmentRange& range, const ScanCoord& at, const Lane& lane) {
  if (a.segment_dN != nullptr) {
    const std::int64_t width = a.dims.value_dim;
    float* to =
        a.segment_dN + (std::int64_t{at.index} * a.dims.value_heads + at.head) * a.dims.key_dim * width + at.column;
    store_warp_tile(d_state, {reinterpret_cast<std::byte*>(to), width, false, false}, a.dims.key_dim,
                    a.dims.value_dim - at.column, lane);
  } else if (a.d_initial_states.data != nullptr && range.first) {
    store_warp_tile(d_state, state_matrix(a.d_initial_states, range.sequence, at.head, 0, at.column), a.dims.key_dim,
                    a.d_initial_states.columns - at.column, lane);
  }
}

// kErases is a template parameter to have no branch around wgmma (see mma_fence).
template <class E, int kKeyDim, bool kErases, class Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, Pipeline::kMinBlocksPerSm)
    backward_kernel(const BackwardScanArgs a, const __grid_constant__ ScanMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Lane lane;
  ptx::let_next_begin();
  Pipeline::prefetch(maps);
  if (a.chunks.has_tables()) ptx::wait_for_previous();  // for what makes them
  const TeamJobs jobs(a.shared, team_blocks(a.dims, Pipeline::kWarpgroups), a.chunks.per_sequence);
  ScanCoord at(a.dims, Pipeline::kWarpgroups, jobs.last);
  SegmentRange range = segment_range(a.chunks, a.segments, at.index);
  const bool only_dN = a.segment_dN != nullptr;
  if (only_dN && range.first && !a.first_dN) return ptx::wait_for_previous();  // as in the forward scan
  const int blocks = min(a.dims.column_blocks - at.first_block, Pipeline::kWarpgroups);

  ScanWalk walk{};
  Pipeline pipeline(a, a.d_o, maps, at, walk, blocks, a.dims.value_dim - at.block_column, memory);
  ptx::wait_for_previous();
  const auto begin_job = [&](int job) {
    at = ScanCoord(a.dims, Pipeline::kWarpgroups, job);
    range = segment_range(a.chunks, a.segments, at.index);
    walk = {range.sequence, range.end - 1, range.end - range.begin, -1};
    jobs.cut(walk, job);
  };
  if (Pipeline::is_producer()) {
    Pipeline::begin_producing();
#pragma unroll 1
    for (int job = jobs.last; job >= jobs.first; --job) {
      begin_job(job);
      pipeline.produce([](int /*warpgroup*/) { return true; });
    }
    return;
  }
  Pipeline::begin_consuming();
  if (at.warpgroup >= blocks) return;
#pragma unroll 1
  for (int job = jobs.last; job >= jobs.first; --job) {
    begin_job(job);
    Accumulator d_state[kKeyDim / 8];
    jobs.begins_inside(job) ? jobs.take_over(d_state) : load_d_state(a, d_state, at, lane);
#pragma unroll 1
    for (int n = 0; n < walk.count; ++n)
      backward_chunk<kErases, E, kKeyDim>(a, d_state, pipeline, walk.first - n, walk.sequence, at, lane);

    if (jobs.ends_inside(job)) {
      jobs.hand_on(d_state);
    } else {
      store_d_state(a, d_state, range, at, lane);
    }
  }
}

struct BackwardScan {
  using Args = BackwardScanArgs;
  template <class E, int kKeyDim, class Pipeline>
  static auto kernel(const Args& args) {
    return args.erases ? backward_kernel<E, kKeyDim, true, Pipeline> : backward_kernel<E, kKeyDim, false, Pipeline>;
  }
  static std::int64_t scans_per_head(const Args& args) { return args.segments.total; }
  static const TokensIn& values(const Args& args) { return args.d_o; }
};

}  // namespace

void launch_backward_scan(const Context& context, const BackwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch<BackwardScan, bf16>(context, args) : launch<BackwardScan, float>(context, args);
}

}  // namespace qdelta::cuda
