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

// kKeyTile keys in a pass; the first pass also does what does not depend on keys.
template <class E, int kKeyTile, int kStages>
__global__ void __launch_bounds__(kThreads, 1) gradients_kernel(const GradientsArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ GradientShared s;
  constexpr int kStageBytes = ColumnTiles<E, kKeyTile>::kElements * static_cast<int>(sizeof(E));
  const BlockCoord b(a);
  const Lane& lane = b.lane;
  const ChunkTiles<E, kKeyTile, kStages> tiles(memory);
  float d_write = 0;

  for (int first_key = 0; first_key < a.dims.key_dim; first_key += kKeyTile) {
    const bool first = first_key == 0;
    const bool last = first_key + kKeyTile >= a.dims.key_dim;
    Accumulator acc[kKeyTile / 8];           // dQ, dX or dK
    Accumulator matrix[kChunkAccumulators];  // dO V'^T or dR V'^T
    ColumnTileIterator<E> source(a, b, first_key);
    const int keys = a.dims.key_dim - first_key;

    // Sums over the value columns. The inputs of the second part are copied behind the first block of columns.
    for (int next = 0; next <= a.dims.column_blocks; ++next) {
      if (next < a.dims.column_blocks) {
        load_columns(a, b, ColumnTiles<E, kKeyTile>(memory + next % kStages * kStageBytes), source, keys);
        if (first) prefetch_v(a, b, source.column);
        source.advance();
      }
      if (next == 1) {
        if (first) load_matrices(a, b, tiles, s);
        load_tile<kThreads>(tiles.q, chunk_rows(a.q, b.range, b.q_head, first_key), b.range.tokens, keys);
        load_tile<kThreads>(tiles.k, chunk_rows(a.k, b.range, b.q_head, first_key), b.range.tokens, keys);
      }
      cp_async_commit();
      const int block = kStages == 1 ? next : next - 1;
      if (block < 0 || block == a.dims.column_blocks) continue;
      cp_async_wait<kStages - 1>();
      fence_async_proxy();
      __syncthreads();
      const ColumnTiles<E, kKeyTile> columns(memory + block % kStages * kStageBytes);
      if (b.role != kDxWarpgroup || a.erases) {
        const Tile<E, kChunk, kBlockV> left{b.role == kDqWarpgroup   ? columns.d_o.data
                                            : b.role == kDxWarpgroup ? columns.d_residual.data
                                                                     : columns.v_new.data};
        FragmentA<E> rows[4];
#pragma unroll
        for (int step = 0; step < 4; ++step) rows[step] = load_a(left, b.warp_row, 16 * step, lane);
        const Tile<E, kKeyTile, kBlockV> states{b.role == kDkWarpgroup ? columns.d_state.data : columns.state.data};
        if (first && b.role != kDkWarpgroup) {
          mma_fence<E>(acc, matrix);
          mma_over_columns<kKeyTile>(acc, rows, states, lane);
          mma_over_columns<kChunk>(matrix, rows, columns.v_new, lane);
          if constexpr (kIsBf16<E>) mma_over_columns<kChunk>(matrix, rows, columns.v_new_low, lane);
          mma_commit_and_wait<E>(acc, matrix);
        } else {
          mma_fence<E>(acc);
          mma_over_columns<kKeyTile>(acc, rows, states, lane);
          mma_commit_and_wait<E>(acc);
        }
        // The low parts of V' and dR.
        if constexpr (kIsBf16<E>) {
          if (b.role != kDqWarpgroup) {
            const Tile<E, kChunk, kBlockV> low{b.role == kDxWarpgroup ? columns.d_residual_low.data
                                                                      : columns.v_new_low.data};
#pragma unroll
            for (int step = 0; step < 4; ++step) rows[step] = load_a(low, b.warp_row, 16 * step, lane);
            if (first && b.role == kDxWarpgroup) {
              mma_fence<E>(acc, matrix);
              mma_over_columns<kKeyTile>(acc, rows, states, lane);
              mma_over_columns<kChunk>(matrix, rows, columns.v_new, lane);
              mma_commit_and_wait<E>(acc, matrix);
            } else {
              mma_fence<E>(acc);
              mma_over_columns<kKeyTile>(acc, rows, states, lane);
              mma_commit_and_wait<E>(acc);
            }
          }
        }
      }
      if (first && b.role != kDxWarpgroup) d_write += d_write_dot(a, b, columns, block * kBlockV);
      if (first && block == 0 && b.role == kDkWarpgroup && b.warp_row == 0) load_state_dot(a, b, s);
      __syncthreads();
    }
    cp_async_wait<0>();
    fence_async_proxy();
    __syncthreads();

    // Terms within the chunk.
    if (first) {
      if (b.role == kDqWarpgroup) gradient_of_A_qk(a, b, matrix, tiles, s);
      if (b.role == kDxWarpgroup && a.erases) gradient_of_A_xk(b, matrix, tiles, s);
      d_write = quad_sum(d_write);
      if (b.role != kDxWarpgroup && lane.quad == 0) s.d_write[b.d_write_row()] = d_write;
    }
    __syncthreads();

    // From here on the warpgroups do the same for dQ, dX and dK. own_rows are the rows that acc is the gradient of.
    const bool active = b.role != kDxWarpgroup || a.erases;
    const Tile<E, kChunk, kKeyTile> own_rows{b.role == kDkWarpgroup ? tiles.k.data : tiles.q.data};
    const float norms[2] = {s.factors[b.role == kDkWarpgroup ? kInvNormK : kInvNormQ][b.row(0)],
                            s.factors[b.role == kDkWarpgroup ? kInvNormK : kInvNormQ][b.row(1)]};
    if (active) {
      float factors[2], dots[2] = {0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = b.row(half);
        factors[half] = b.role == kDkWarpgroup   ? decay_between(s, r, kChunk - 1)
                        : b.role == kDqWarpgroup ? a.scale * s.factors[kGamma][r]
                                                 : -s.factors[kGamma][r];
      }
      scale_rows(acc, factors);
      add_row_dots<E, kKeyTile>(dots, acc, own_rows, b);
      if (b.role == kDxWarpgroup) {
        float k_dots[2] = {0, 0};
        add_row_dots<E, kKeyTile>(k_dots, acc, tiles.k, b);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          dots[half] = s.factors[kMix][b.row(half)] * norms[half] * dots[half] +
                       s.factors[kInvNormK][b.row(half)] * k_dots[half];
          factors[half] = s.factors[kErase][b.row(half)];
        }
        scale_rows(acc, factors);
      } else {
        dots[0] *= norms[0], dots[1] *= norms[1];
      }
      const RowDot which = b.role == kDkWarpgroup ? kToEndDot : b.role == kDqWarpgroup ? kOutputDot : kEraseStateDot;
      store_row_dot(s, which, b.row(0), dots[0], first, lane);
      store_row_dot(s, which, b.row(1), dots[1], first, lane);

      const int matrices = b.role == kDkWarpgroup && a.erases ? 3 : 1;
#pragma unroll 1
      for (int i = 0; i < matrices; ++i) {
        const Tile<E, kChunk, kChunk> left{b.role == kDqWarpgroup   ? tiles.dq_from_k.data
                                           : b.role == kDxWarpgroup ? tiles.dx_from_k.data
                                           : i == 0                 ? tiles.dk_from_q.data
                                           : i == 1                 ? tiles.dk_from_mix_q.data
                                                                    : tiles.dk_from_k.data};
        const Tile<E, kChunk, kKeyTile> right{b.role == kDkWarpgroup && i < 2 ? tiles.q.data : tiles.k.data};
        mma_matrix<E, kKeyTile>(acc, left, b.role == kDkWarpgroup, right, b);
      }
      // dX to shared memory, in the layout of the accumulators: the same threads of the other warpgroups add it.
      if (b.role == kDxWarpgroup) {
#pragma unroll
        for (int n = 0; n < kKeyTile / 8; ++n)
          reinterpret_cast<float4*>(tiles.dx)[n * kWarpgroupThreads + b.thread] = {acc[n].x[0], acc[n].x[1],
                                                                                   acc[n].x[2], acc[n].x[3]};
      }
    }
    __syncthreads();

    if (b.role != kDxWarpgroup && a.erases) {
      const float mix[2] = {b.role == kDqWarpgroup ? s.factors[kMix][b.row(0)] : 1.0F,
                            b.role == kDqWarpgroup ? s.factors[kMix][b.row(1)] : 1.0F};
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        const float4 dx = reinterpret_cast<const float4*>(tiles.dx)[n * kWarpgroupThreads + b.thread];
        acc[n].x[0] += mix[0] * dx.x, acc[n].x[1] += mix[0] * dx.y;
        acc[n].x[2] += mix[1] * dx.z, acc[n].x[3] += mix[1] * dx.w;
      }
    }
    // Q . dQ and K . dK for the L2 norms, Q . dX for mix.
    float x_dot_dx[2] = {0, 0};
    if (active) {
      add_row_dots<E, kKeyTile>(x_dot_dx, acc, own_rows, b);
      x_dot_dx[0] = norms[0] * quad_sum(x_dot_dx[0]);
      x_dot_dx[1] = norms[1] * quad_sum(x_dot_dx[1]);
    }
    if (b.role == kDxWarpgroup && a.erases) {
      if (lane.quad == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          s.row_dots[kMixDot][b.row(half)] = first ? x_dot_dx[half] : s.row_dots[kMixDot][b.row(half)] + x_dot_dx[half];
      }
      if (first) add_decay_products(b, matrix, tiles.decay_products);
    }
    if (!a.qk_l2norm) x_dot_dx[0] = x_dot_dx[1] = 0;
    __syncthreads();  // all have read Q and K: dQ and dK may overwrite them

    // The dX warpgroup continues with the gates. The others store dq and dk at the same time, unless reduce_dqk does,
    // or the gates have something to add.
    const auto store_output = [&] {
      store_rows(own_rows, chunk_rows(b.role == kDkWarpgroup ? a.dk : a.dq, b.range, b.q_head), b.range.tokens,
                 a.dims.key_dim, b.thread);
    };
    const bool stores_early = b.role != kDxWarpgroup && a.dq_partials == nullptr && !a.has_d_k_dot_k;
    if (b.role == kDxWarpgroup && first) prefix_sum_rows(b, tiles.decay_products);
    if (stores_early) write_gradient_rows<E, kKeyTile>(b, acc, own_rows, norms, x_dot_dx);
    __syncthreads();
    if (b.role == kDxWarpgroup && first) suffix_sum_columns(b, tiles.decay_products, s);
    if (b.role == kDqWarpgroup && a.dq_partials != nullptr) store_partials(a, b, acc, first_key, a.dq_partials);
    if (b.role == kDkWarpgroup && a.dq_partials != nullptr) store_partials(a, b, acc, first_key, a.dk_partials);
    __syncthreads();
    if (last && b.role == kDxWarpgroup && b.warp_row == 0) gate_gradients(a, b, s);
    if (stores_early) store_output();
    if (a.has_d_k_dot_k && a.dq_partials == nullptr) {
      // The gradient of k.k adds k_factor K to dK, and k_factor (K . K) to K . dK.
      __syncthreads();
      if (b.role == kDkWarpgroup) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = b.row(half);
          x_dot_dx[half] += s.k_factor[r] * ((a.qk_l2norm ? s.factors[kKDotK][r] : 0.0F) - 1.0F);
        }
      }
      if (b.role != kDxWarpgroup) write_gradient_rows<E, kKeyTile>(b, acc, own_rows, norms, x_dot_dx);
      __syncthreads();
      if (b.role != kDxWarpgroup) store_output();
    }
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
