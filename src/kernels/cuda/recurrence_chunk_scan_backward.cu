// The backward scan: dv, the gradients of the states, and dR, which recurrence_chunk_gradients.cu continues with.
// Formulas in recurrence_chunk_scan.cuh.
#include "kernels/cuda/recurrence_chunk_scan.cuh"

namespace qdelta::cuda {
namespace {

using namespace scan;

// dV' = A_qk^T dO + diag(exp(G_C - G)) K dS+, then dR = T^T dV'; `meanwhile` is done while the first product runs.
// Leaves dO as an operand, too.
template <int kStages, class E, int kKeyDim, class Meanwhile>
__device__ inline void residual_gradient(Accumulator (&d_residual)[kChunkAccumulators], FragmentA<E> (&d_o)[kKSteps],
                                         const Accumulator (&d_state)[kKeyDim / 8], const ScanTiles<E, kKeyDim>& tiles,
                                         int warp_column, bool erases, const Lane& lane, const Meanwhile& meanwhile) {
  constexpr int kKeysAtATime = kKeysPerWait<E, kKeyDim, kStages>;
#pragma unroll
  for (int key = 0; key < kKeyDim; key += kKeysAtATime) {
    FragmentA<E> state_fragments[kKeysAtATime / 16];
    to_state_fragments(state_fragments, d_state, key);
    mma_fence<E>(d_residual);
    mma_rows_state(d_residual, tiles.k, state_fragments, key, lane);
    if (key == 0) meanwhile();
    mma_commit_and_wait<E>(d_residual);
  }
  scale_tokens(d_residual, tiles.factor(kGammaToEndK), lane);
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    d_o[step] = to_fragment_a<E>(load_accumulator(tiles.values, 2 * step, warp_column, lane),
                                 load_accumulator(tiles.values, 2 * step + 1, warp_column, lane));
  }
  mma_fence<E>(d_residual);
#pragma unroll
  for (const auto& part : tiles.A_qk) mma_lower<true>(d_residual, d_o, part, lane);
  mma_commit_and_wait<E>(d_residual);
  if (erases) multiply_T<true>(d_residual, tiles, lane);
}

// What multiplies Q^T and K^T in dS: scale diag(gamma) dO - diag(erase gamma mix) dR, in the place of dO, and
// -diag(erase gamma) dR.
template <class E, int kKeyDim>
__device__ inline void state_operands(FragmentA<E> (&of_q)[kKSteps], FragmentA<E> (&of_k)[kKSteps],
                                      const Accumulator (&d_residual)[kChunkAccumulators],
                                      const ScanTiles<E, kKeyDim>& tiles, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    Accumulator q_operand[2], k_operand[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = 2 * step + half;
      const TokenPair scale_gamma_q = tiles.pair(kScaleGammaQ, j, lane);
      const TokenPair erase_gamma_mix_q = tiles.pair(kEraseGammaMixQ, j, lane);
      const TokenPair erase_gamma_k = tiles.pair(kEraseGammaK, j, lane);
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

// kErases is a template parameter in bf16 to have no branch around wgmma (see mma_fence). kSegmentsOnly: the scan gives
// nothing but segment_dN.
template <class E, int kKeyDim, int kStages, bool kErases, bool kSegmentsOnly>
__global__ void __launch_bounds__(kThreads, (kMinBlocksPerSm<E, kKeyDim, kStages>))
    backward_kernel(const BackwardScanArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const bool erases = kIsBf16<E> ? kErases : a.erases;
  const Lane lane;
  const auto [index, head, block_column, warp_column, column] = ScanCoord(a.dims);
  const int columns = a.dims.value_dim - column;
  const auto [sequence, begin, end, is_first, is_last] = segment_range(a.chunks, a.segments, index);
  const std::int64_t last = end - 1;
  if (kSegmentsOnly && is_first && !a.first_dN) return;

  const auto inputs_of = [&](std::int64_t chunk) {
    return ScanTileIterator<E>(a.dims, a.q, a.k, a.d_o, a.prepared, chunk, chunk_range(a.chunks, chunk, sequence), head,
                               block_column);
  };
  ScanTileIterator<E> next = inputs_of(last);
  const auto load = [&](std::int64_t chunk) {
    if (chunk >= begin) {
      if (kStages == 1) next = inputs_of(chunk);  // recomputed, to save registers
      stage_tiles<E, kKeyDim, kStages>(memory, chunk)
          .load(next, a.dims, erases, chunk_range(a.chunks, chunk, sequence).tokens, a.dims.value_dim - block_column);
      if (kStages == 2) next.advance(-1);
    }
    cp_async_commit();
  };
  load(last);
  Accumulator d_state[kKeyDim / 8];
  if (!kSegmentsOnly && a.d_final_states.data != nullptr)
    load_warp_tile(d_state, state_matrix(a.d_final_states, index, head, 0, column), a.dims.key_dim,
                   a.d_final_states.columns - column, lane);

  for (std::int64_t chunk = last; chunk >= begin; --chunk) {
    const std::int64_t slot = chunk * a.dims.value_heads + head;
    const ScanTiles<E, kKeyDim> tiles = stage_tiles<E, kKeyDim, kStages>(memory, chunk);
    if (kStages == 2) {
      load(chunk - 1);
    } else if (chunk < last) {
      load(chunk);
    }
    constexpr bool kOverlap = kOverlapIo<kKeyDim, kStages>;
    const auto store_state = [&] {
      store_warp_tile(d_state, state_matrix(a.d_states, chunk, head, 0, column), a.dims.key_dim,
                      a.d_states.columns - column, lane);
    };
    if (!kSegmentsOnly && !kOverlap) store_state();
    cp_async_wait<kStages - 1>();
    fence_async_proxy();
    __syncthreads();

    const ChunkRange range = chunk_range(a.chunks, chunk, sequence);
    Accumulator d_residual[kChunkAccumulators];           // dV', then dR
    FragmentA<E> q_operand[kKSteps], k_operand[kKSteps];  // of dS; the former is dO first
    residual_gradient<kStages>(d_residual, q_operand, d_state, tiles, warp_column, erases, lane, [&] {
      if (!kSegmentsOnly && kOverlap) store_state();
    });
    state_operands(q_operand, k_operand, d_residual, tiles, lane);
    const auto store_gradients = [&] {
      store_split<E>(d_residual, a.d_residual, a.dims, slot, column, lane);
      scale_tokens(d_residual, tiles.factor(kWrite), lane);
      store_warp_tile(d_residual, chunk_rows(a.dv, range, head, column), range.tokens, columns, lane);
    };
    if (!kSegmentsOnly && !kOverlap) store_gradients();
    // dS = gamma_C dS+ + Q^T q_operand + K^T k_operand
    scale(d_state, tiles.gamma_C());
    mma_fence<E>(d_state);
    mma_rows_transposed<E, kKeyDim>(d_state, tiles.q, q_operand, lane);
    if (erases) mma_rows_transposed<E, kKeyDim>(d_state, tiles.k, k_operand, lane);
    if (!kSegmentsOnly && kOverlap) store_gradients();
    mma_commit_and_wait<E>(d_state);
    __syncthreads();
  }
  if constexpr (kSegmentsOnly) {
    const std::int64_t width = a.dims.value_dim;
    float* to = a.segment_dN + (index * a.dims.value_heads + head) * a.dims.key_dim * width + column;
    store_warp_tile(d_state, {reinterpret_cast<std::byte*>(to), width, false, false}, a.dims.key_dim, columns, lane);
  } else if (a.d_initial_states.data != nullptr && is_first) {
    store_warp_tile(d_state, state_matrix(a.d_initial_states, sequence, head, 0, column), a.dims.key_dim,
                    a.d_initial_states.columns - column, lane);
  }
}

struct BackwardScan {
  using Args = BackwardScanArgs;
  template <class E, int kKeyDim, int kStages>
  static auto kernel(const Args& args) {
    if constexpr (kStages == 1) {
      if (args.segment_dN != nullptr) return choose<E, kKeyDim, kStages, true>(args.erases);
    }
    return choose<E, kKeyDim, kStages, false>(args.erases);
  }
  static std::int64_t scans_per_head(const Args& args) { return args.segments.total; }
  static bool allows_two_stages(const Args& args) { return args.segment_dN == nullptr; }

 private:
  template <class E, int kKeyDim, int kStages, bool kSegmentsOnly>
  static auto choose(bool erases) {
    if constexpr (kIsBf16<E>) {
      if (!erases) return backward_kernel<E, kKeyDim, kStages, false, kSegmentsOnly>;
    }
    return backward_kernel<E, kKeyDim, kStages, true, kSegmentsOnly>;
  }
};

}  // namespace

void launch_backward_scan(const Context& context, const BackwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch<BackwardScan, bf16>(context, args) : launch<BackwardScan, float>(context, args);
}

}  // namespace qdelta::cuda
