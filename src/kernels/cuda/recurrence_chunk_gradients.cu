// The gradients of q, k and the gates, one block for each chunk and value head, from the states S on entry and their
// gradients dS+ on exit, dR and dO (see recurrence_chunk_scan.cuh). First the sums over value columns:
//
//   dO S^T   dR S^T   V' dS+^T   dO V'^T   dR V'^T   rowsum(dR . V) = dwrite   sum(S . dS+)
//
// then, within the chunk:
//   D1  = scale lower(Gamma . dO V'^T)          D2 = diag(erase) (Gamma . dA),  dA = -strictLower(dR V'^T)
//   dX  = -diag(erase gamma) dR S^T + D2 K
//   dQ  = scale diag(gamma) dO S^T + D1 K + diag(mix) dX
//   dK  = diag(exp(G_C - G)) V' dS+^T + D1^T Q + D2^T X + dX
//   dmix = rowsum(dX . Q)
//   derase = -rowsum(diag(gamma) X . dR S^T) + rowsum((Gamma . X K^T) . dA)
//
// dg_t is the sum of (value . gradient) over every decay factor that spans token t, never a difference of such sums.
// Last come the backward of the rule and of the L2 norms: dq = (dQ - Q (Q . dQ)) / |q|.
//
// X = k / |k| + diag(mix) q / |q| is never formed: its products are those of k and q with the factors inside D1 and D2.
// Q K^T and X K^T are computed here again, which moves fewer bytes than to keep them.
//
// The three warpgroups have a role each: dQ with D1, dX with D2 and the gates, dK. What they do alike is one piece of
// code with other operands, because the code of three roles by themselves does not fit into the instruction cache (2.5
// times the time on an H200).
#include <algorithm>
#include <limits>

#include "kernels/cuda/recurrence_chunk_gradients.cuh"

namespace qdelta::cuda {
namespace {

using namespace gradients;

template <class E, int kKeyTile, class ColumnPipeline>
struct KernelContext {
  using Element = E;
  using Pipeline = ColumnPipeline;
  using Tiles = typename Pipeline::Tiles;
  using KeyAccumulators = Accumulator[kKeyTile / 8];
  static constexpr int kKeys = kKeyTile;
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  const GradientsArgs& a;
  const BlockCoord& b;
  const Tiles& tiles;
  GradientShared& s;

  [[nodiscard]] __device__ RowPair factor(Factor which) const { return factors_of(s, which, b); }
  [[nodiscard]] __device__ float decay_between(int from, int to) const {
    return exp2f((s.factors[kLog2GammaHigh][to] - s.factors[kLog2GammaHigh][from]) +
                 (s.factors[kLog2GammaLow][to] - s.factors[kLog2GammaLow][from]));
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// D1 and D2, and the products for the decays within the chunk.

// What D1 and D2 have besides the decays: scale, or minus erase.
template <class Context>
__device__ __forceinline__ RowPair matrix_factor(const Context& context) {
  return context.b.role == kDqWarpgroup ? RowPair{{context.a.scale, context.a.scale}} : -1.0F * context.factor(kErase);
}

// From dO V'^T, the gradient of A_qk, to the matrices of D1, or from dR V'^T = -dA to those of D2: by the dQ and the dX
// warpgroup, with one code. Gamma . dO V'^T or Gamma . dR V'^T, over |k_i|, is left below the diagonal.
template <class Context>
__device__ __forceinline__ void write_matrices(const Context& context, Accumulator (&d_matrix)[kChunkAccumulators]) {
  const auto& [a, b, tiles, s] = context;
  const bool is_d1 = b.role == kDqWarpgroup;
  const AccumulatorView from_k(tiles.from_k(b.role), b);
  const AccumulatorView from_q(tiles.from_q(b.role), b);
  const AccumulatorView dk_from_k(tiles.dk_from_k(), b);
  const RowPair ones{{1.0F, 1.0F}};
  const RowPair factor = matrix_factor(context);
  const RowPair q_factor = factor * (is_d1 ? ones : context.factor(kMix)) * context.factor(kInvNormQ);
  const RowPair k_factor = factor * context.factor(kInvNormK);
  const RowPair log2_gamma_high = context.factor(kLog2GammaHigh);
  const RowPair log2_gamma_low = context.factor(kLog2GammaLow);
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j) {
    const int i = b.lane.pair(j);
    const float2 high = *reinterpret_cast<const float2*>(&s.factors[kLog2GammaHigh][i]);
    const float2 low = *reinterpret_cast<const float2*>(&s.factors[kLog2GammaLow][i]);
    const float2 inv_norms_k = *reinterpret_cast<const float2*>(&s.factors[kInvNormK][i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = b.row(half);
      const int last = is_d1 ? r : r - 1;  // D1 has a diagonal
      // Gamma[r][i] and Gamma[r][i + 1], of any use only up to the diagonal.
      const float decay[2] = {exp2_approx((log2_gamma_high.x[half] - high.x) + (log2_gamma_low.x[half] - low.x)),
                              exp2_approx((log2_gamma_high.x[half] - high.y) + (log2_gamma_low.x[half] - low.y))};
      float* d = d_matrix[j].x + 2 * half;
      const float D[2] = {i <= last ? decay[0] * d[0] : 0.0F, i + 1 <= last ? decay[1] * d[1] : 0.0F};
      const float D_k[2] = {D[0] * inv_norms_k.x, D[1] * inv_norms_k.y};
      store_pair(from_k.at(j, half), factor.x[half] * D_k[0], factor.x[half] * D_k[1]);
      store_pair(from_q.at(j, half), q_factor.x[half] * D[0], q_factor.x[half] * D[1]);
      if (!is_d1) store_pair(dk_from_k.at(j, half), k_factor.x[half] * D[0], k_factor.x[half] * D[1]);
      d[0] = i < r ? D_k[0] : 0.0F;
      d[1] = i + 1 < r ? D_k[1] : 0.0F;
    }
  }
}

// The pass's part of Q K^T, or for the dX warpgroup of X K^T |k_r|, but for the norms of Q and of K on the right.
template <class Context>
__device__ __forceinline__ void multiply_keys(const Context& context, Accumulator (&products)[kChunkAccumulators]) {
  using E = typename Context::Element;
  const auto& [a, b, tiles, s] = context;
#pragma unroll 1
  for (int term = 0; term < (b.role == kDqWarpgroup ? 1 : 2); ++term) {
    if (term == 1) scale_rows(products, context.factor(kMix) * context.factor(kInvNormQ) / context.factor(kInvNormK));
    mma_fence<E>(products);
    mma_over_columns<kChunk>(products, tiles.rows(term), tiles.k(), b);
    mma_commit_and_wait<E>(products);
  }
}

// A fragment B of ones where row - column < limit, else zeros.
template <class E>
__device__ inline FragmentB<E> ones_up_to(int limit, const Lane& lane) {
  FragmentB<E> ones;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int difference = lane.pair(s) - lane.group;
    const float first = difference < limit ? 1.0F : 0.0F;
    const float second = difference + 1 < limit ? 1.0F : 0.0F;
    if constexpr (kIsBf16<E>) {
      ones.x[s] = pack_bf16x2(first, second);
    } else {
      ones.x[s][0] = first, ones.x[s][1] = second;
    }
  }
  return ones;
}
// Sums over the lanes of equal quad, of 16 values each: the lane of group g gets those of values 2 g and 2 g + 1. Every
// step adds the half of the values that the other lane gives up.
template <int kHalf = 8>
__device__ inline float2 sum_over_groups(float (&values)[16], const Lane& lane) {
  const bool upper = (lane.index & 2 * kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float given = upper ? values[i] : values[i + kHalf];
    values[i] = (upper ? values[i + kHalf] : values[i]) + __shfl_xor_sync(~0u, given, 2 * kHalf);
  }
  if constexpr (kHalf == 2)
    return {values[0], values[1]};
  else
    return sum_over_groups<kHalf / 2>(values, lane);
}

// The (value . gradient) products of Gamma in A_qk, or in A, [r][i], from what write_matrices left and multiply_keys
// gave; and what their sums over i are of derase.
template <class Context>
__device__ __forceinline__ void multiply_gradients(const Context& context, bool first,
                                                   const Accumulator (&d_matrix)[kChunkAccumulators],
                                                   Accumulator (&products)[kChunkAccumulators]) {
  const auto& [a, b, tiles, s] = context;
  const RowPair inv_norm = context.factor(b.role == kDqWarpgroup ? kInvNormQ : kInvNormK);
  RowPair sums{};
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products[j].x[i] *= d_matrix[j].x[i];
      sums.x[i / 2] += products[j].x[i];
    }
  }
  const RowPair d_erase = -1.0F * inv_norm * RowPair{{quad_sum(sums.x[0]), quad_sum(sums.x[1])}};
  if (b.role == kDxWarpgroup) store_row_dots(s, kEraseXkDot, d_erase, first, b);
  scale_rows(products, matrix_factor(context) * inv_norm);
}

// dg_t = the sum over r >= t > i of products[r][i]: the sums over i as products with ones, then those over the warp's
// tokens r.
template <class E>
__device__ __forceinline__ void sum_decay_products(const BlockCoord& b, bool first,
                                                   const Accumulator (&products)[kChunkAccumulators],
                                                   float (&dg)[kWarps][kChunk]) {
  const FragmentB<E> before_column[2] = {ones_up_to<E>(0, b.lane), ones_up_to<E>(8, b.lane)};
  const FragmentB<E> all = ones_up_to<E>(kChunk, b.lane);
  const auto add = [](Accumulator& sum, const SplitBlock<E>& block, const FragmentB<E>& ones) {
#pragma unroll
    for (const FragmentA<E>& part : block.parts) mma(sum, part, ones);
  };
  Accumulator blocks_before;  // [r]: the sum over the blocks of 16 that are done
  float sums[2 * kChunkAccumulators];
#pragma unroll
  for (int step = 0; step < kKSteps; ++step) {
    const SplitBlock<E> block = split_block<E>(products[2 * step], products[2 * step + 1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = 2 * step + half;
      Accumulator before = blocks_before;  // [r][t]: the sum over i < t
      add(before, block, before_column[half]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int t = b.lane.pair(j) + e;
        sums[2 * j + e] = (b.row(0) >= t ? before.x[e] : 0.0F) + (b.row(1) >= t ? before.x[2 + e] : 0.0F);
      }
    }
    if (step + 1 < kKSteps) add(blocks_before, block, all);
  }
  float2 sum = sum_over_groups(sums, b.lane);
  auto* const to = reinterpret_cast<float2*>(dg[b.warp_row / 16]) + b.lane.index;
  if (!first) sum.x += to->x, sum.y += to->y;
  *to = sum;
}

// The gradients of the gates, by one warp, two adjacent tokens a lane.
__device__ __forceinline__ void gate_gradients(const GradientsArgs& a, const BlockCoord& b, GradientShared& s) {
  // Decays across the edges of the chunk: gamma_r spans tokens 0..r, exp(G_C - G_i) tokens i+1..end, gamma_C all.
  float to_end[2], from_entry[2];
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * b.lane.index + i;
    to_end[i] = s.row_dots[kToEndDot][t];
    from_entry[i] =
        s.row_dots[kOutputDot][t] + (a.erases ? s.factors[kErase][t] * s.row_dots[kEraseStateDot][t] : 0.0F);
  }
  float before = to_end[0] + to_end[1];
  float after = from_entry[0] + from_entry[1];
  for (int step = 1; step < 32; step *= 2) {
    const float earlier = __shfl_up_sync(~0u, before, step);
    const float later = __shfl_down_sync(~0u, after, step);
    if (b.lane.index >= step) before += earlier;
    if (b.lane.index + step < 32) after += later;
  }
  before = __shfl_up_sync(~0u, before, 1);
  after = __shfl_down_sync(~0u, after, 1);
  if (b.lane.index == 0) before = 0;
  if (b.lane.index == 31) after = 0;
  const float state_dot = (s.state_dots[0] + s.state_dots[1]) + (s.state_dots[2] + s.state_dots[3]);
  after += s.factors[kGamma][kChunk - 1] * state_dot + from_entry[1];

  for (int i = 0; i < 2; ++i) {
    const int t = 2 * b.lane.index + i;
    const float across = i == 0 ? before + (after + from_entry[0]) : before + to_end[0] + after;
    float within = 0;
    for (const auto& dg : s.dg_of_A_qk) within += dg[t];
    for (const auto& dg : s.dg_of_A_xk) within += a.erases ? dg[t] : 0.0F;
    RuleOutputs<float> d_rule{across + within, 0.0F, 0.0F, s.d_write[t]};
    if (a.erases) {
      d_rule.erase = s.row_dots[kEraseStateDot][t] + s.row_dots[kEraseXkDot][t];
      d_rule.mix = s.row_dots[kMixDot][t];
    }
    const RuleInputs<float> in{s.factors[kG][t], s.factors[kBeta][t], s.factors[kLambda][t], s.factors[kKDotK][t]};
    const RuleInputs<float> d_in = rule_backward(a.rule, in, d_rule);
    s.k_factor[t] = 2.0F * d_in.k_dot_k;
    if (t >= b.range.tokens) continue;
    store_gate(a.dg, b.range, b.head, t, d_in.g);
    store_gate(a.dbeta, b.range, b.head, t, d_in.beta);
    store_gate(a.dlambda, b.range, b.head, t, d_in.lambda);
    if (a.dk_factors != nullptr) {
      const std::int64_t token = b.range.batch * a.tokens + b.range.first + t;
      a.dk_factors[token * a.dims.value_heads + b.head] = s.k_factor[t];
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The sums over value columns.

// rowsum(dR . V) over a block of columns, of the lane's two tokens, of use where RowDots has sums. V is on its way
// while the products run.
template <class Context>
class WriteDots {
 public:
  using E = typename Context::Element;
  __device__ WriteDots(const Context& context, int column) {
    const auto& [a, b, tiles, s] = context;
    const MatrixIn v = chunk_rows(a.v, b.range, b.head, column);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      load_row_slice(values_[half], v, b.row(half), b.range.tokens, a.dims.value_dim - column, b.lane);
  }
  template <class Columns>
  [[nodiscard]] __device__ RowPair sums(const BlockCoord& b, const Columns& columns) const {
    RowDots<E> dots;
#pragma unroll
    for (int part = 0; part < Context::kParts; ++part) dots.add(columns.d_residual(part), b.warp_row, values_, b.lane);
    return dots.sums(b.lane);
  }

 private:
  RowSlice<E> values_[2];
};

// The warpgroup's part of sum(S . dS+) over a block of columns, in the lanes where RowDots has sums.
template <class Context, class Columns>
__device__ __forceinline__ float state_dot(const BlockCoord& b, const Columns& columns) {
  RowDots<typename Context::Element> dots;
#pragma unroll 2
  for (int key = b.warp_row; key < Context::kKeys; key += 16 * kWarps)
    dots.add(columns.state(), columns.d_state(), key, b.lane);
  const RowPair sums = dots.sums(b.lane);
  return sums.x[0] + sums.x[1];
}

// acc += left right^T: dO S^T, dR S^T or V' dS+^T, with all parts of what is on the left.
template <class Context, int kLeftParts, class Columns>
__device__ __forceinline__ void add_products(const BlockCoord& b, const Columns& columns,
                                             typename Context::KeyAccumulators& acc) {
  using E = typename Context::Element;
  mma_fence<E>(acc);
#pragma unroll
  for (int part = 0; part < kLeftParts; ++part)
    mma_over_columns<Context::kKeys>(acc, columns.left(b.role, part), columns.right(b.role), b);
  mma_commit_and_wait<E>(acc);
}
// The same with matrix += left V'^T: dO V'^T or dR V'^T. Of split operands the product of the low parts is left out.
template <class Context, int kLeftParts, class Columns>
__device__ __forceinline__ void add_products(const BlockCoord& b, const Columns& columns,
                                             typename Context::KeyAccumulators& acc,
                                             Accumulator (&matrix)[kChunkAccumulators]) {
  using E = typename Context::Element;
  mma_fence<E>(acc, matrix);
#pragma unroll
  for (int part = 0; part < kLeftParts; ++part) {
    mma_over_columns<Context::kKeys>(acc, columns.left(b.role, part), columns.right(b.role), b);
#pragma unroll
    for (int of_v_new = 0; of_v_new < Context::kParts - part; ++of_v_new)
      mma_over_columns<kChunk>(matrix, columns.left(b.role, part), columns.v_new(of_v_new), b);
  }
  mma_commit_and_wait<E>(acc, matrix);
}

template <class Context>
__device__ __forceinline__ void sum_over_columns(const Context& context, const KeyPass& pass,
                                                 typename Context::Pipeline& pipeline,
                                                 typename Context::KeyAccumulators& acc,
                                                 Accumulator (&matrix)[kChunkAccumulators]) {
  constexpr int kParts = Context::kParts;
  const auto& [a, b, tiles, s] = context;
  const bool active = b.role != kDxWarpgroup || a.erases;
  float state_dots = 0;
  RowPair d_write{};
  pipeline.begin(b, pass);
#pragma unroll 1
  for (int block = 0; block < a.dims.column_blocks; ++block) {
    const auto columns = pipeline.acquire(b, pass, block);
    // One batch of products for each role, without a wait inside it.
    if (b.role == kDqWarpgroup) {
      pass.first ? add_products<Context, 1>(b, columns, acc, matrix) : add_products<Context, 1>(b, columns, acc);
      state_dots += state_dot<Context>(b, columns);
    } else if (b.role == kDxWarpgroup && pass.first) {
      if (active) add_products<Context, kParts>(b, columns, acc, matrix);
    } else if (!pass.first) {
      if (active) add_products<Context, kParts>(b, columns, acc);
    } else {
      const WriteDots<Context> dots(context, block * kBlockV);
      add_products<Context, kParts>(b, columns, acc);
      d_write = d_write + dots.sums(b, columns);
    }
    pipeline.release(block);
  }
  pipeline.finish(b);
  const bool has_sums = RowDots<typename Context::Element>::has_sums(b.lane);
  if (b.role == kDqWarpgroup) {
    state_dots = warp_sum(has_sums ? state_dots : 0.0F);
    float& sum = s.state_dots[b.warp_row / 16];
    if (b.lane.index == 0) sum = pass.first ? state_dots : sum + state_dots;
  } else if (b.role == kDkWarpgroup && pass.first && has_sums) {
    for (int half = 0; half < 2; ++half) s.d_write[b.row(half)] = d_write.x[half];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The part within the chunk.

// From the sums over columns to the terms of dQ, dX and dK that pass through the state: multiplied by the decays to the
// edge of the chunk, which get their gradients' dot products.
template <class Context>
__device__ __forceinline__ void scale_by_decays(const Context& context, bool first,
                                                typename Context::KeyAccumulators& acc, const RowPair& inv_norms) {
  const auto& [a, b, tiles, s] = context;
  RowPair factors = (b.role == kDqWarpgroup ? a.scale : -1.0F) * context.factor(kGamma);
  if (b.role == kDkWarpgroup)
    factors = {{context.decay_between(b.row(0), kChunk - 1), context.decay_between(b.row(1), kChunk - 1)}};
  scale_rows(acc, factors);
  RowPair dots{};
#pragma unroll 1
  for (int i = 0; i < (b.role == kDxWarpgroup ? 2 : 1); ++i) {  // dX: with diag(mix) Q, then with K
    RowPair dot = row_dots(acc, tiles.rows(i == 0 && b.role != kDkWarpgroup ? 0 : 1), b);
    dot = (i == 0 ? inv_norms : context.factor(kInvNormK)) * dot;
    dots = dots + (i == 0 && b.role == kDxWarpgroup ? context.factor(kMix) * dot : dot);
  }
  if (b.role == kDxWarpgroup) scale_rows(acc, context.factor(kErase));
  const RowDot which = b.role == kDkWarpgroup ? kToEndDot : b.role == kDqWarpgroup ? kOutputDot : kEraseStateDot;
  store_row_dots(s, which, dots, first, b);
}

// The terms of dQ, dX and dK that stay within the chunk: D1 K, D2 K, and D1^T Q + D2^T X.
template <class Context>
__device__ __forceinline__ void add_chunk_terms(const Context& context, typename Context::KeyAccumulators& acc) {
  const auto& [a, b, tiles, s] = context;
  const int terms = b.role == kDkWarpgroup && a.erases ? 3 : 1;
#pragma unroll 1
  for (int i = 0; i < terms; ++i)
    mma_matrix(acc, tiles.term_matrix(b.role, i), b.role == kDkWarpgroup, tiles.term_rows(b.role, i), b);
}

// The gradient of k.k adds k_factor K to dK, and so k_factor (K . K) to K . dK, less what the backward of the norm
// takes off.
__device__ inline void add_k_dot_k(const GradientsArgs& a, const BlockCoord& b, const GradientShared& s,
                                   RowPair& x_dot_dx) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    x_dot_dx.x[half] += s.k_factor[r] * ((a.qk_l2norm ? s.factors[kKDotK][r] : 0.0F) - 1.0F);
  }
}

// dq and dk from dQ and dK; K . dK has a part that the gates add, where dk waits for them.
template <class Context>
__device__ __forceinline__ void store_gradients(const Context& context, const KeyPass& pass,
                                                const typename Context::KeyAccumulators& acc,
                                                const RowPair& inv_norms) {
  using E = typename Context::Element;
  const auto& [a, b, tiles, s] = context;
  const bool is_dk = b.role == kDkWarpgroup;
  if (a.dq_partials != nullptr) return store_partials(a, b, acc, pass.first_key, is_dk ? a.dk_partials : a.dq_partials);
  const auto own_rows = tiles.own_rows(b.role);
  RowPair x_dot_dx{};
  if (a.qk_l2norm) x_dot_dx = inv_norms * row_dots(acc, own_rows, b);
  if (is_dk && a.has_d_k_dot_k) {
    __syncthreads();  // the gates are done
    add_k_dot_k(a, b, s, x_dot_dx);
  }
  write_gradient_rows<E, Context::kKeys>(b, acc, own_rows, inv_norms, x_dot_dx);
  store_warp_rows(own_rows, chunk_rows(is_dk ? a.dk : a.dq, b.range, b.q_head), b.range.tokens, a.dims.key_dim, b);
}

template <class Context>
__device__ __forceinline__ void key_pass(const Context& context, typename Context::Pipeline& pipeline,
                                         const KeyPass& pass, Accumulator (&matrix)[kChunkAccumulators]) {
  using E = typename Context::Element;
  const auto& [a, b, tiles, s] = context;
  typename Context::KeyAccumulators acc;  // dQ, dX or dK
  sum_over_columns(context, pass, pipeline, acc, matrix);

  const bool active = b.role != kDxWarpgroup || a.erases;
  const RowPair inv_norms = context.factor(b.role == kDkWarpgroup ? kInvNormK : kInvNormQ);
  if (pass.first && active && b.role != kDkWarpgroup) write_matrices(context, matrix);
  if (active) scale_by_decays(context, pass.first, acc, inv_norms);
  fence_async_proxy();
  __syncthreads();  // the matrices are there

  if (active) add_chunk_terms(context, acc);
  if (b.role == kDxWarpgroup && a.erases)
    store_row_dots(s, kMixDot, inv_norms * row_dots(acc, tiles.q(), b), pass.first, b);
  if (active && b.role != kDkWarpgroup) {
    Accumulator products[kChunkAccumulators];
    multiply_keys(context, products);
    multiply_gradients(context, pass.first, matrix, products);
    sum_decay_products<E>(b, pass.first, products, b.role == kDqWarpgroup ? s.dg_of_A_qk : s.dg_of_A_xk);
  }
  __syncthreads();  // all dot products are there, and no product reads the matrices, Q and K any more
  if (b.role == kDxWarpgroup && a.erases) store_accumulators(acc, tiles.exchange(a.dq_partials != nullptr), b);
  __syncthreads();  // dX is there

  const bool dk_waits = a.has_d_k_dot_k && a.dq_partials == nullptr;
  if (b.role == kDxWarpgroup) {
    if (pass.last && b.warp_row == 0) gate_gradients(a, b, s);
    if (dk_waits) __syncthreads();
  } else {
    if (b.role == kDqWarpgroup && dk_waits) __syncthreads();
    if (a.erases) {
      const RowPair ones{{1.0F, 1.0F}};
      add_accumulators(acc, b.role == kDqWarpgroup ? context.factor(kMix) : ones,
                       tiles.exchange(a.dq_partials != nullptr), b);
    }
    store_gradients(context, pass, acc, inv_norms);
  }
  fence_async_proxy();
  __syncthreads();  // tiles may be loaded again
}

// A block of threads takes every gridDim.x-th slot.
template <class E, int kKeyTile, class Pipeline>
__global__ void __launch_bounds__(kThreads, 1)
    gradients_kernel(const GradientsArgs a, const __grid_constant__ GradientMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ GradientShared s;
  using Context = KernelContext<E, kKeyTile, Pipeline>;
  const typename Context::Tiles tiles{memory};
  Pipeline pipeline(a, maps, tiles, s);
  const int slots = static_cast<int>(a.chunks.total) * a.dims.value_heads;
#pragma unroll 1
  for (int slot = static_cast<int>(blockIdx.x); slot < slots; slot += static_cast<int>(gridDim.x)) {
    const BlockCoord b(a, slot);
    const Context context{a, b, tiles, s};
    Accumulator matrix[kChunkAccumulators];  // dO V'^T or dR V'^T, of the first pass
#pragma unroll 1
    for (int first_key = 0; first_key < a.dims.key_dim; first_key += kKeyTile)
      key_pass(context, pipeline, KeyPass(first_key, kKeyTile, a.dims.key_dim), matrix);
  }
}

template <class E, int kKeyTile, class Pipeline>
void launch(const Context& context, const GradientsArgs& args, const GradientMaps& maps, std::int64_t blocks) {
  const auto kernel = gradients_kernel<E, kKeyTile, Pipeline>;
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), Pipeline::Tiles::kBytes);
  kernel<<<static_cast<unsigned>(blocks), kThreads, Pipeline::Tiles::kBytes, context.stream()>>>(args, maps);
  check_launch("recurrence gradients");
}

// Whether the copy engine can take everything from where it is.
bool fits_copy_engine(const Context& context, const GradientsArgs& a) {
  const auto fits = [](const auto& tensor) { return tensor.bf16 && tensor.aligned16; };
  const std::int64_t rows = a.chunks.total * a.dims.value_heads * operand_parts(true) * kChunk;
  return rows <= std::numeric_limits<std::int32_t>::max() && has_tensor_copies(context) && fits(a.q) && fits(a.k) &&
         fits(a.v) && fits(a.d_o) && fits(a.states) && fits(a.d_states);
}

GradientMaps tensor_maps(const GradientsArgs& a, int key_tile) {
  const TensorExtents keys{a.dims.key_dim, a.tokens, a.dims.heads, a.batch};
  const TensorExtents values{a.dims.value_dim, a.tokens, a.dims.value_heads, a.batch};
  const auto states = [&](const StatesIn& of) {
    return tensor_map(of, {of.columns, a.dims.key_dim, a.dims.value_heads, a.chunks.total}, key_tile);
  };
  constexpr int kBoth = operand_parts(true) * kChunk;  // rows of both parts of an operand
  const std::int64_t rows = a.chunks.total * a.dims.value_heads * kBoth;
  const std::int64_t width = std::int64_t{a.dims.column_blocks} * kBlockV;
  return {.q = tensor_map(a.q, keys, kChunk),
          .k = tensor_map(a.k, keys, kChunk),
          .v = tensor_map(a.v, values, kChunk),
          .d_o = tensor_map(a.d_o, values, kChunk),
          .states = states(a.states),
          .d_states = states(a.d_states),
          .d_residual = tensor_map(a.d_residual, rows, width, kBoth),
          .v_new = tensor_map(a.v_new, rows, width, kBoth)};
}

template <int kKeyTile>
void launch_bf16(const Context& context, const GradientsArgs& args, std::int64_t slots) {
  using ByEngine = CopyEnginePipeline<kKeyTile>;
  using TwoStages = ThreadPipeline<bf16, kKeyTile, 2>;
  if (fits_copy_engine(context, args)) {
    return launch<bf16, kKeyTile, ByEngine>(context, args, tensor_maps(args, kKeyTile),
                                            std::min<std::int64_t>(slots, context.sm_count()));
  }
  constexpr int kNeeded = TwoStages::Tiles::kBytes + static_cast<int>(sizeof(GradientShared));
  context.shared_memory() >= kNeeded
      ? launch<bf16, kKeyTile, TwoStages>(context, args, {}, slots)
      : launch<bf16, kKeyTile, ThreadPipeline<bf16, kKeyTile, 1>>(context, args, {}, slots);
}

}  // namespace

void launch_gradients(const Context& context, const GradientsArgs& args, bool bf16_operands) {
  const std::int64_t slots = args.chunks.total * args.dims.value_heads;
  if (!bf16_operands) return launch<float, 64, ThreadPipeline<float, 64, 1>>(context, args, {}, slots);
  args.dims.key_dim <= 64 ? launch_bf16<64>(context, args, slots) : launch_bf16<128>(context, args, slots);
}

}  // namespace qdelta::cuda
