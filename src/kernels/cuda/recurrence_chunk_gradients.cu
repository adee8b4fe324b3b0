// The gradients of q, k and the gates, one block for each chunk and value head, from the states S on entry and their
// gradients dS+ on exit, V', dR and dO (see recurrence_chunk_scan.cuh). First the sums over value columns:
//
//   dO S^T   dR S^T   V' dS+^T   dO V'^T   dR V'^T   rowsum(dR . V) = dwrite
//
// then, within the chunk, with sum(S . dS+) from the scan:
//   D1  = scale lower(Gamma . dO V'^T)          D2 = diag(erase) (Gamma . dA),  dA = -strictLower(dR V'^T)
//   dX  = -diag(erase gamma) dR S^T + D2 K
//   dQ  = scale diag(gamma) dO S^T + D1 K + diag(mix) dX
//   dK  = diag(exp(G_C - G)) V' dS+^T + D1^T Q + D2^T X + dX
//   dmix = rowsum(dX . Q)
//   derase = -rowsum(diag(gamma) X . dR S^T) + rowsum(A_xk . dA)
//
// dg_t is the sum of (value . gradient) over every decay factor that spans token t, never a difference of such sums.
// Last come the backward of the rule and of the L2 norms: dq = (dQ - Q (Q . dQ)) / |q|.
//
// X = k / |k| + diag(mix) q / |q| is never formed: its products are those of k and q with the factors inside D1 and D2.
#include "kernels/cuda/recurrence_chunk_gradients.cuh"

namespace qdelta::cuda {
namespace {

using namespace gradients;

// Points at the inputs of one block of value columns in global memory.
template <class E>
struct ColumnTileIterator {
  MatrixIn state, d_state, d_o;
  const E* d_residual;
  const E* v_new;
  int column = 0;
  std::int64_t width;

  __device__ ColumnTileIterator(const GradientsArgs& a, const BlockCoord& b, int first_key)
      : state(state_matrix(a.states, b.chunk, b.head, first_key, 0)),
        d_state(state_matrix(a.d_states, b.chunk, b.head, first_key, 0)),
        d_o(chunk_rows(a.d_o, b.range, b.head)),
        width(static_cast<std::int64_t>(a.dims.column_blocks) * kBlockV) {
    const std::int64_t offset = b.slot * operand_parts(kIsBf16<E>) * kChunk * width;
    d_residual = static_cast<const E*>(a.d_residual) + offset;
    v_new = static_cast<const E*>(a.v_new) + offset;
  }
  __device__ void advance() {
    state.advance_columns(kBlockV);
    d_state.advance_columns(kBlockV);
    d_o.advance_columns(kBlockV);
    d_residual += kBlockV;
    v_new += kBlockV;
    column += kBlockV;
  }
};

template <class E, int kKeyTile>
__device__ void load_columns(const GradientsArgs& a, const BlockCoord& b, const ColumnTiles<E, kKeyTile>& tiles,
                             const ColumnTileIterator<E>& from, int keys) {
  load_tile<kThreads>(tiles.state, from.state, keys, a.states.columns - from.column);
  load_tile<kThreads>(tiles.d_state, from.d_state, keys, a.d_states.columns - from.column);
  load_tile<kThreads>(tiles.d_o, from.d_o, b.range.tokens, a.dims.value_dim - from.column);
  load_workspace_tile<kThreads, false>(tiles.d_residual, from.d_residual, from.width);
  load_workspace_tile<kThreads, false>(tiles.v_new, from.v_new, from.width);
  if constexpr (kIsBf16<E>) {
    const std::int64_t low_part = kChunk * from.width;
    load_workspace_tile<kThreads, false>(tiles.d_residual_low, from.d_residual + low_part, from.width);
    load_workspace_tile<kThreads, false>(tiles.v_new_low, from.v_new + low_part, from.width);
  }
}

// The factors, A_qk and A_xk. The matrices of the backward overwrite the latter.
template <class E, int kKeyTile, int kStages>
__device__ void load_matrices(const GradientsArgs& a, const BlockCoord& b,
                              const ChunkTiles<E, kKeyTile, kStages>& tiles, GradientShared& s) {
  constexpr int kParts = operand_parts(kIsBf16<E>);
  const E* A_qk = static_cast<const E*>(a.prepared.A_qk) + b.slot * kParts * kChunkMatrix;
  const E* A_xk = static_cast<const E*>(a.prepared.A_xk) + b.slot * kParts * kChunkMatrix;
  const int i = 4 * static_cast<int>(threadIdx.x);
  static_assert(kFactors * kChunk <= 4 * kThreads);
  if (i < kFactors * kChunk)
    cp_async(&s.factors[0][0] + i, a.prepared.factors + b.slot * (kFactors * kChunk) + i, true);
  load_workspace_tile<kThreads, true>(tiles.dq_from_k, A_qk, kChunk);
  if (kParts == 2) load_workspace_tile<kThreads, true>(tiles.dk_from_q, A_qk + kChunkMatrix, kChunk);
  if (!a.erases) return;
  load_workspace_tile<kThreads, true>(tiles.dx_from_k, A_xk, kChunk);
  if (kParts == 2) load_workspace_tile<kThreads, true>(tiles.dk_from_mix_q, A_xk + kChunkMatrix, kChunk);
}

__device__ inline void store_row_dot(GradientShared& s, RowDot which, int row, float value, bool first,
                                     const Lane& lane) {
  value = quad_sum(value);
  if (lane.quad == 0) s.row_dots[which][row] = first ? value : s.row_dots[which][row] + value;
}

__device__ inline void add_mix_dots(const BlockCoord& b, bool first, const float (&dots)[2], GradientShared& s) {
  if (b.lane.quad != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    s.row_dots[kMixDot][b.row(half)] = first ? dots[half] : s.row_dots[kMixDot][b.row(half)] + dots[half];
}

__device__ inline float decay_between(const GradientShared& s, int from, int to) {
  return exp2f((s.factors[kLog2GammaHigh][to] - s.factors[kLog2GammaHigh][from]) +
               (s.factors[kLog2GammaLow][to] - s.factors[kLog2GammaLow][from]));
}

template <class E>
__device__ inline float2 split_pair_at(const Tile<E, kChunk, kChunk>& upper, const Tile<E, kChunk, kChunk>& lower,
                                       int row, int column) {
  float2 pair = pair_at(upper, row, column);
  if constexpr (kIsBf16<E>) {
    const float2 rest = pair_at(lower, row, column);
    pair.x += rest.x, pair.y += rest.y;
  }
  return pair;
}

// From dO V'^T, the gradient of A_qk, to the matrices of D1 and the (value . gradient) products of Gamma in A_qk.
template <class E, int kKeyTile, int kStages>
__device__ void gradient_of_A_qk(const GradientsArgs& a, const BlockCoord& b,
                                 const Accumulator (&d_A_qk)[kChunkAccumulators],
                                 const ChunkTiles<E, kKeyTile, kStages>& tiles, const GradientShared& s) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    const float inv_norm_q = s.factors[kInvNormQ][r];
#pragma unroll
    for (int j = 0; j < kChunkAccumulators; ++j) {
      const int i = 8 * j + 2 * b.lane.quad;
      const float2 A_qk = split_pair_at(tiles.dq_from_k, tiles.dk_from_q, r, i);
      const float* raw = d_A_qk[j].x + 2 * half;
      const float d1[2] = {i <= r ? a.scale * decay_between(s, i, r) * raw[0] : 0.0F,
                           i + 1 <= r ? a.scale * decay_between(s, i + 1, r) * raw[1] : 0.0F};
      tiles.decay_products[r * kStride + i] = i < r ? raw[0] * A_qk.x : 0.0F;
      tiles.decay_products[r * kStride + i + 1] = i + 1 < r ? raw[1] * A_qk.y : 0.0F;
      set_pair(tiles.dq_from_k, r, i, d1[0] * s.factors[kInvNormK][i], d1[1] * s.factors[kInvNormK][i + 1]);
      set_pair(tiles.dk_from_q, r, i, d1[0] * inv_norm_q, d1[1] * inv_norm_q);
    }
  }
}

// From dR V'^T = -dA to the matrices of D2. The (value . gradient) products of Gamma in A are left in the accumulators.
template <class E, int kKeyTile, int kStages>
__device__ void gradient_of_A_xk(const BlockCoord& b, Accumulator (&d_A_xk)[kChunkAccumulators],
                                 const ChunkTiles<E, kKeyTile, kStages>& tiles, GradientShared& s) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    const float erase = s.factors[kErase][r];
    const float inv_norm_k = s.factors[kInvNormK][r];
    const float mix_inv_norm_q = s.factors[kMix][r] * s.factors[kInvNormQ][r];
    float d_erase = 0;
#pragma unroll
    for (int j = 0; j < kChunkAccumulators; ++j) {
      const int i = 8 * j + 2 * b.lane.quad;
      const float2 A_xk = split_pair_at(tiles.dx_from_k, tiles.dk_from_mix_q, r, i);
      float* raw = d_A_xk[j].x + 2 * half;
      const float d2[2] = {i < r ? -erase * decay_between(s, i, r) * raw[0] : 0.0F,
                           i + 1 < r ? -erase * decay_between(s, i + 1, r) * raw[1] : 0.0F};
      raw[0] = i < r ? -raw[0] * A_xk.x : 0.0F;
      raw[1] = i + 1 < r ? -raw[1] * A_xk.y : 0.0F;
      d_erase += raw[0] + raw[1];
      raw[0] *= erase;
      raw[1] *= erase;
      set_pair(tiles.dx_from_k, r, i, d2[0] * s.factors[kInvNormK][i], d2[1] * s.factors[kInvNormK][i + 1]);
      set_pair(tiles.dk_from_mix_q, r, i, d2[0] * mix_inv_norm_q, d2[1] * mix_inv_norm_q);
      set_pair(tiles.dk_from_k, r, i, d2[0] * inv_norm_k, d2[1] * inv_norm_k);
    }
    store_row_dot(s, kEraseXkDot, r, d_erase, true, b.lane);
  }
}

// dg_t = the sum over r >= t > i of decay_products[r][i], by the dX warpgroup, two threads for a row or column, with a
// barrier between the steps: add the products of A from the accumulators, sum along rows, then along columns.
__device__ inline void add_decay_products(const BlockCoord& b, const Accumulator (&with)[kChunkAccumulators],
                                          float* decay_products) {
#pragma unroll
  for (int j = 0; j < kChunkAccumulators; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      decay_products[b.row(e / 2) * kStride + 8 * j + 2 * b.lane.quad + e % 2] += with[j].x[e];
  }
}
// Exclusive prefix sum of every row.
__device__ inline void prefix_sum_rows(const BlockCoord& b, float* decay_products) {
  const int part = b.thread % 2 * 32;
  float* row = decay_products + b.thread / 2 * kStride + part;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) sum += row[i];
  const float other = __shfl_xor_sync(~0u, sum, 1);
  sum = part == 0 ? 0.0F : other;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const float value = row[i];
    row[i] = sum;
    sum += value;
  }
}
__device__ inline void suffix_sum_columns(const BlockCoord& b, const float* decay_products, GradientShared& s) {
  const int column = b.thread / 2;
  const int part = b.thread % 2 * 32;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const float value = decay_products[(part + i) * kStride + column];
    if (part + i >= column) sum += value;
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (part == 0) s.dg[column] = sum;
}

// The gradients of the gates, by one warp, two adjacent tokens a lane.
__device__ void gate_gradients(const GradientsArgs& a, const BlockCoord& b, GradientShared& s) {
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
  after += s.factors[kGamma][kChunk - 1] * s.state_dot + from_entry[1];

  for (int i = 0; i < 2; ++i) {
    const int t = 2 * b.lane.index + i;
    const float across = i == 0 ? before + (after + from_entry[0]) : before + to_end[0] + after;
    RuleOutputs<float> d_rule{across + s.dg[t], 0.0F, 0.0F, s.d_write[t]};
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

// A pass over kKeyTile keys. The first one also does what does not depend on keys.
struct KeyPass {
  int first_key, keys;  // the first, and how many there are from it on
  bool first, last;
};

// The sums over the value columns, kBlockV at a time, into acc (dQ, dX or dK) and matrix (dO V'^T or dR V'^T), with
// kStages - 1 blocks of columns copied ahead. What the second part needs is copied behind the first block.
template <class E, int kKeyTile, int kStages>
__device__ inline void sum_over_columns(const GradientsArgs& a, const BlockCoord& b, const KeyPass& pass,
                                        unsigned char* memory, const ChunkTiles<E, kKeyTile, kStages>& tiles,
                                        Accumulator (&acc)[kKeyTile / 8], Accumulator (&matrix)[kChunkAccumulators],
                                        float& d_write, GradientShared& s) {
  constexpr int kStageBytes = ColumnTiles<E, kKeyTile>::kElements * static_cast<int>(sizeof(E));
  ColumnTileIterator<E> source(a, b, pass.first_key);
  for (int next = 0; next <= a.dims.column_blocks; ++next) {
    if (next < a.dims.column_blocks) {
      load_columns(a, b, ColumnTiles<E, kKeyTile>(memory + next % kStages * kStageBytes), source, pass.keys);
      if (pass.first) prefetch_v(a, b, source.column);
      source.advance();
    }
    if (next == 1) {
      if (pass.first) load_matrices(a, b, tiles, s);
      load_tile<kThreads>(tiles.q, chunk_rows(a.q, b.range, b.q_head, pass.first_key), b.range.tokens, pass.keys);
      load_tile<kThreads>(tiles.k, chunk_rows(a.k, b.range, b.q_head, pass.first_key), b.range.tokens, pass.keys);
    }
    cp_async_commit();
    const int block = kStages == 1 ? next : next - 1;
    if (block < 0 || block == a.dims.column_blocks) continue;
    cp_async_wait<kStages - 1>();
    fence_async_proxy();
    __syncthreads();
    const ColumnTiles<E, kKeyTile> columns(memory + block % kStages * kStageBytes);
    if (b.role != kDxWarpgroup || a.erases) mma_columns(acc, matrix, columns, pass.first, b);
    if (pass.first && b.role != kDxWarpgroup) d_write += d_write_dot(a, b, columns, block * kBlockV);
    if (pass.first && block == 0 && b.role == kDkWarpgroup && b.warp_row == 0) load_state_dot(a, b, s);
    __syncthreads();
  }
  cp_async_wait<0>();
  fence_async_proxy();
  __syncthreads();
}

// From the sums over columns to the terms of dQ, dX and dK that pass through the state: multiplied by the decays to the
// edge of the chunk, which get their gradients' dot products.
template <class E, int kKeyTile, int kStages>
__device__ inline void scale_by_decays(const GradientsArgs& a, const BlockCoord& b, bool first,
                                       const ChunkTiles<E, kKeyTile, kStages>& tiles, Accumulator (&acc)[kKeyTile / 8],
                                       const float (&norms)[2], GradientShared& s) {
  float factors[2], dots[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    factors[half] = b.role == kDkWarpgroup   ? decay_between(s, r, kChunk - 1)
                    : b.role == kDqWarpgroup ? a.scale * s.factors[kGamma][r]
                                             : -s.factors[kGamma][r];
  }
  scale_rows(acc, factors);
  add_row_dots<E, kKeyTile>(dots, acc, tiles.own_rows(b.role), b);
  if (b.role == kDxWarpgroup) {
    float k_dots[2] = {0, 0};
    add_row_dots<E, kKeyTile>(k_dots, acc, tiles.k, b);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      dots[half] =
          s.factors[kMix][b.row(half)] * norms[half] * dots[half] + s.factors[kInvNormK][b.row(half)] * k_dots[half];
      factors[half] = s.factors[kErase][b.row(half)];
    }
    scale_rows(acc, factors);
  } else {
    dots[0] *= norms[0], dots[1] *= norms[1];
  }
  const RowDot which = b.role == kDkWarpgroup ? kToEndDot : b.role == kDqWarpgroup ? kOutputDot : kEraseStateDot;
  store_row_dot(s, which, b.row(0), dots[0], first, b.lane);
  store_row_dot(s, which, b.row(1), dots[1], first, b.lane);
}

// The terms of dQ, dX and dK that stay within the chunk: D1 K, D2 K, and D1^T Q + D2^T X.
template <class E, int kKeyTile, int kStages>
__device__ inline void add_chunk_terms(const GradientsArgs& a, const BlockCoord& b,
                                       const ChunkTiles<E, kKeyTile, kStages>& tiles,
                                       Accumulator (&acc)[kKeyTile / 8]) {
  const int terms = b.role == kDkWarpgroup && a.erases ? 3 : 1;
#pragma unroll 1
  for (int i = 0; i < terms; ++i)
    mma_matrix<E, kKeyTile>(acc, tiles.term_matrix(b.role, i), b.role == kDkWarpgroup, tiles.term_rows(b.role, i), b);
}

// dX goes through shared memory, in the layout of the accumulators: the same threads of the other warpgroups add it.
template <int kCount>
__device__ inline void store_dx(const BlockCoord& b, const Accumulator (&acc)[kCount], float* dx) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    reinterpret_cast<float4*>(dx)[n * kWarpgroupThreads + b.thread] = {acc[n].x[0], acc[n].x[1], acc[n].x[2],
                                                                       acc[n].x[3]};
}
// dQ += diag(mix) dX, dK += dX.
template <int kCount>
__device__ inline void add_dx(const BlockCoord& b, Accumulator (&acc)[kCount], const float* dx,
                              const GradientShared& s) {
  const float mix[2] = {b.role == kDqWarpgroup ? s.factors[kMix][b.row(0)] : 1.0F,
                        b.role == kDqWarpgroup ? s.factors[kMix][b.row(1)] : 1.0F};
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const float4 x = reinterpret_cast<const float4*>(dx)[n * kWarpgroupThreads + b.thread];
    acc[n].x[0] += mix[0] * x.x, acc[n].x[1] += mix[0] * x.y;
    acc[n].x[2] += mix[1] * x.z, acc[n].x[3] += mix[1] * x.w;
  }
}

// The gradient of k.k adds k_factor K to dK, and so k_factor (K . K) to K . dK, less what the backward of the norm
// takes off.
__device__ inline void add_k_dot_k(const GradientsArgs& a, const BlockCoord& b, const GradientShared& s,
                                   float (&x_dot_dx)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    x_dot_dx[half] += s.k_factor[r] * ((a.qk_l2norm ? s.factors[kKDotK][r] : 0.0F) - 1.0F);
  }
}

// All that comes after dQ, dX and dK: the dX warpgroup goes on with the gates, while the others store dq and dk, unless
// reduce_dqk does that, or the gates have something to add first.
template <class E, int kKeyTile, int kStages>
__device__ inline void finish_pass(const GradientsArgs& a, const BlockCoord& b, const KeyPass& pass,
                                   const ChunkTiles<E, kKeyTile, kStages>& tiles,
                                   const Accumulator (&acc)[kKeyTile / 8], const float (&norms)[2],
                                   float (&x_dot_dx)[2], GradientShared& s) {
  const Tile<E, kChunk, kKeyTile> own_rows = tiles.own_rows(b.role);
  const auto store_output = [&] {
    store_rows(own_rows, chunk_rows(b.role == kDkWarpgroup ? a.dk : a.dq, b.range, b.q_head), b.range.tokens,
               a.dims.key_dim, b.thread);
  };
  const bool stores_early = b.role != kDxWarpgroup && a.dq_partials == nullptr && !a.has_d_k_dot_k;
  if (b.role == kDxWarpgroup && pass.first) prefix_sum_rows(b, tiles.decay_products);
  if (stores_early) write_gradient_rows<E, kKeyTile>(b, acc, own_rows, norms, x_dot_dx);
  __syncthreads();
  if (b.role == kDxWarpgroup && pass.first) suffix_sum_columns(b, tiles.decay_products, s);
  if (b.role == kDqWarpgroup && a.dq_partials != nullptr) store_partials(a, b, acc, pass.first_key, a.dq_partials);
  if (b.role == kDkWarpgroup && a.dq_partials != nullptr) store_partials(a, b, acc, pass.first_key, a.dk_partials);
  __syncthreads();
  if (pass.last && b.role == kDxWarpgroup && b.warp_row == 0) gate_gradients(a, b, s);
  if (stores_early) store_output();
  if (a.has_d_k_dot_k && a.dq_partials == nullptr) {
    __syncthreads();
    if (b.role == kDkWarpgroup) add_k_dot_k(a, b, s, x_dot_dx);
    if (b.role != kDxWarpgroup) write_gradient_rows<E, kKeyTile>(b, acc, own_rows, norms, x_dot_dx);
    __syncthreads();
    if (b.role != kDxWarpgroup) store_output();
  }
}

template <class E, int kKeyTile, int kStages>
__global__ void __launch_bounds__(kThreads, 1) gradients_kernel(const GradientsArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ GradientShared s;
  const BlockCoord b(a);
  const ChunkTiles<E, kKeyTile, kStages> tiles(memory);
  float d_write = 0;

  for (int first_key = 0; first_key < a.dims.key_dim; first_key += kKeyTile) {
    const KeyPass pass{first_key, a.dims.key_dim - first_key, first_key == 0, first_key + kKeyTile >= a.dims.key_dim};
    Accumulator acc[kKeyTile / 8];           // dQ, dX or dK
    Accumulator matrix[kChunkAccumulators];  // dO V'^T or dR V'^T
    sum_over_columns(a, b, pass, memory, tiles, acc, matrix, d_write, s);

    if (pass.first) {
      if (b.role == kDqWarpgroup) gradient_of_A_qk(a, b, matrix, tiles, s);
      if (b.role == kDxWarpgroup && a.erases) gradient_of_A_xk(b, matrix, tiles, s);
      d_write = quad_sum(d_write);
      if (b.role != kDxWarpgroup && b.lane.quad == 0) s.d_write[b.d_write_row()] = d_write;
    }
    __syncthreads();

    const bool active = b.role != kDxWarpgroup || a.erases;
    const Factor norm = b.role == kDkWarpgroup ? kInvNormK : kInvNormQ;
    const float norms[2] = {s.factors[norm][b.row(0)], s.factors[norm][b.row(1)]};
    if (active) {
      scale_by_decays(a, b, pass.first, tiles, acc, norms, s);
      add_chunk_terms(a, b, tiles, acc);
      if (b.role == kDxWarpgroup) store_dx(b, acc, tiles.dx);
    }
    __syncthreads();

    if (b.role != kDxWarpgroup && a.erases) add_dx(b, acc, tiles.dx, s);
    // Q . dQ and K . dK for the L2 norms, Q . dX for mix.
    float x_dot_dx[2] = {0, 0};
    if (active) {
      add_row_dots<E, kKeyTile>(x_dot_dx, acc, tiles.own_rows(b.role), b);
      x_dot_dx[0] = norms[0] * quad_sum(x_dot_dx[0]);
      x_dot_dx[1] = norms[1] * quad_sum(x_dot_dx[1]);
    }
    if (b.role == kDxWarpgroup && a.erases) {
      add_mix_dots(b, pass.first, x_dot_dx, s);
      if (pass.first) add_decay_products(b, matrix, tiles.decay_products);
    }
    if (!a.qk_l2norm) x_dot_dx[0] = x_dot_dx[1] = 0;
    __syncthreads();  // all have read Q and K: dQ and dK may overwrite them
    finish_pass(a, b, pass, tiles, acc, norms, x_dot_dx, s);
    __syncthreads();
  }
}

template <class E, int kKeyTile, int kStages>
void launch(const Context& context, const GradientsArgs& args) {
  constexpr int kMemory = ChunkTiles<E, kKeyTile, kStages>::kBytes;
  const auto kernel = gradients_kernel<E, kKeyTile, kStages>;
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), kMemory);
  const auto blocks = static_cast<unsigned>(args.chunks.total * args.dims.value_heads);
  kernel<<<blocks, kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence gradients");
}

template <int kKeyTile>
void launch_bf16(const Context& context, const GradientsArgs& args) {
  constexpr int kNeeded = ChunkTiles<bf16, kKeyTile, 2>::kBytes + static_cast<int>(sizeof(GradientShared));
  context.shared_memory() >= kNeeded ? launch<bf16, kKeyTile, 2>(context, args)
                                     : launch<bf16, kKeyTile, 1>(context, args);
}

}  // namespace

void launch_gradients(const Context& context, const GradientsArgs& args, bool bf16_operands) {
  const int keys = gradient_key_tile(padded_key_dim(args.dims.key_dim), bf16_operands);
  if (!bf16_operands) return launch<float, 64, 1>(context, args);
  keys == 64 ? launch_bf16<64>(context, args) : launch_bf16<128>(context, args);
}

}  // namespace qdelta::cuda
