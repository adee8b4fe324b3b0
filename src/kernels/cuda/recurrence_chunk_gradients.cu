// The gradients of q, k and the gates, one block for each chunk and value head, from the states S on entry and their
// gradients dS+ on exit, V', dR and dO (see recurrence_chunk_scan.cuh). All sums over value columns come first:
//
//   dO S^T   dR S^T   V' dS+^T   dO V'^T   dR V'^T   rowsum(dR . V) = dwrite
//
// and then, in the chunk, with sum(S . dS+) from the scan:
//   D1  = scale lower(Gamma . dO V'^T)          D2 = -diag(erase) strictLower(Gamma . dR V'^T)
//   dX  = -diag(erase gamma) dR S^T + D2 K
//   dQ  = scale diag(gamma) dO S^T + D1 K + diag(mix) dX
//   dK  = diag(Gamma_C) V' dS+^T + D1^T Q + D2^T X + dX
//   dmix = rowsum(dX . Q)
//   derase = -rowsum(diag(gamma) X . dR S^T) - rowsum(read . dR V'^T)
//
// dg_t is the sum of (value . gradient) over every decay factor that spans token t. No difference of such sums is
// taken. Last come the rule, and the norms of the rows: dq = (dQ - Q (Q . dQ)) / |q|.
//
// X = K / |k| + diag(mix) Q / |q| never exists: its products are those of k and q with the factors inside D1 and D2.
#include "kernels/cuda/recurrence_chunk_gradients.cuh"
#include "kernels/cuda/rows.h"

namespace qdelta::cuda {
namespace {

using namespace gradients;

// Where the tiles of columns come from, for the block of columns that is next.
template <class E>
struct ColumnSources {
  MatrixIn state, d_state, d_out;
  const E* d_residual;
  const E* fresh;
  int column = 0;
  std::int64_t width;

  __device__ ColumnSources(const GradientsArgs& a, const Block& b, int first_key)
      : state(matrix_of(a.states, b.chunk, b.head, first_key, 0)),
        d_state(matrix_of(a.d_states, b.chunk, b.head, first_key, 0)),
        d_out(rows_of(a.d_o, b.place, b.head)),
        width(static_cast<std::int64_t>(a.dims.blocks) * kColumns) {
    const std::int64_t own = b.slot * matrix_parts(kIsBf16<E>) * kChunk * width;
    d_residual = static_cast<const E*>(a.d_residual) + own;
    fresh = static_cast<const E*>(a.fresh) + own;
  }
  __device__ void advance() {
    state.skip_columns(kColumns);
    d_state.skip_columns(kColumns);
    d_out.skip_columns(kColumns);
    d_residual += kColumns;
    fresh += kColumns;
    column += kColumns;
  }
};

template <class E, int kKeys>
__device__ void load_columns(const GradientsArgs& a, const Block& b, const ColumnTiles<E, kKeys>& tiles,
                             const ColumnSources<E>& from, int keys) {
  load_tile<kThreads>(tiles.state, from.state, keys, a.states.columns - from.column);
  load_tile<kThreads>(tiles.d_state, from.d_state, keys, a.d_states.columns - from.column);
  load_tile<kThreads>(tiles.d_out, from.d_out, b.place.rows, a.dims.values - from.column);
  load_own_tile<kThreads, false>(tiles.d_residual, from.d_residual, from.width);
  load_own_tile<kThreads, false>(tiles.fresh, from.fresh, from.width);
  if constexpr (kIsBf16<E>) {
    const std::int64_t rest = kChunk * from.width;
    load_own_tile<kThreads, false>(tiles.d_residual_rest, from.d_residual + rest, from.width);
    load_own_tile<kThreads, false>(tiles.fresh_rest, from.fresh + rest, from.width);
  }
}

// The factors, and the matrices of the forward where those of the backward will be.
template <class E, int kKeys, int kStages>
__device__ void load_matrices(const GradientsArgs& a, const Block& b, const ChunkTiles<E, kKeys, kStages>& tiles,
                              GradientSums& s) {
  constexpr int kParts = matrix_parts(kIsBf16<E>);
  const E* attend = static_cast<const E*>(a.prepared.attend) + b.slot * kParts * kMatrix;
  const E* read = static_cast<const E*>(a.prepared.read) + b.slot * kParts * kMatrix;
  const int i = 4 * static_cast<int>(threadIdx.x);
  static_assert(kFactors * kChunk <= 4 * kThreads);
  if (i < kFactors * kChunk)
    copy_async(&s.factors[0][0] + i, a.prepared.factors + b.slot * (kFactors * kChunk) + i, true);
  load_own_tile<kThreads, true>(tiles.dq_from_keys, attend, kChunk);
  if (kParts == 2) load_own_tile<kThreads, true>(tiles.dk_from_dq, attend + kMatrix, kChunk);
  if (!a.erases) return;
  load_own_tile<kThreads, true>(tiles.dx_from_keys, read, kChunk);
  if (kParts == 2) load_own_tile<kThreads, true>(tiles.dk_from_mixed, read + kMatrix, kChunk);
}

// The sum of four lanes' values, in all of them.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
__device__ inline void set_row_sum(GradientSums& s, RowSum which, int row, float value, bool first, const Lane& lane) {
  value = quad_sum(value);
  if (lane.quad == 0) s.rows[which][row] = first ? value : s.rows[which][row] + value;
}

__device__ inline float decay_between(const GradientSums& s, int from, int to) {
  return exp2f((s.factors[kLogHigh][to] - s.factors[kLogHigh][from]) +
               (s.factors[kLogLow][to] - s.factors[kLogLow][from]));
}

template <class E>
__device__ inline float2 whole_pair(const Tile<E, kChunk, kChunk>& upper, const Tile<E, kChunk, kChunk>& lower, int row,
                                    int column) {
  float2 pair = pair_at(upper, row, column);
  if constexpr (kIsBf16<E>) {
    const float2 rest = pair_at(lower, row, column);
    pair.x += rest.x, pair.y += rest.y;
  }
  return pair;
}

// From dO V'^T to the matrices of D1 and the products of the decays' values and gradients that go through attend.
template <class E, int kKeys, int kStages>
__device__ void attend_gradient(const GradientsArgs& a, const Block& b, const Sum (&d_attend)[kTokenSums],
                                const ChunkTiles<E, kKeys, kStages>& tiles, const GradientSums& s) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    const float q_norm = s.factors[kQueryNorm][r];
#pragma unroll
    for (int j = 0; j < kTokenSums; ++j) {
      const int i = 8 * j + 2 * b.lane.quad;
      const float2 attend = whole_pair(tiles.dq_from_keys, tiles.dk_from_dq, r, i);
      const float* raw = d_attend[j].x + 2 * half;
      const float d1[2] = {i <= r ? a.scale * decay_between(s, i, r) * raw[0] : 0.0F,
                           i + 1 <= r ? a.scale * decay_between(s, i + 1, r) * raw[1] : 0.0F};
      tiles.along[r * kStride + i] = i < r ? raw[0] * attend.x : 0.0F;
      tiles.along[r * kStride + i + 1] = i + 1 < r ? raw[1] * attend.y : 0.0F;
      set_pair(tiles.dq_from_keys, r, i, d1[0] * s.factors[kKeyNorm][i], d1[1] * s.factors[kKeyNorm][i + 1]);
      set_pair(tiles.dk_from_dq, r, i, d1[0] * q_norm, d1[1] * q_norm);
    }
  }
}

// The same from dR V'^T = -dA to those of D2. The products go through read and erase, and stay in the sums.
template <class E, int kKeys, int kStages>
__device__ void correct_gradient(const Block& b, Sum (&d_correct)[kTokenSums],
                                 const ChunkTiles<E, kKeys, kStages>& tiles, GradientSums& s) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.row(half);
    const float erase = s.factors[kErase][r];
    const float k_norm = s.factors[kKeyNorm][r];
    const float mixed = s.factors[kMix][r] * s.factors[kQueryNorm][r];
    float through_reads = 0;
#pragma unroll
    for (int j = 0; j < kTokenSums; ++j) {
      const int i = 8 * j + 2 * b.lane.quad;
      const float2 read = whole_pair(tiles.dx_from_keys, tiles.dk_from_mixed, r, i);
      float* raw = d_correct[j].x + 2 * half;
      const float d2[2] = {i < r ? -erase * decay_between(s, i, r) * raw[0] : 0.0F,
                           i + 1 < r ? -erase * decay_between(s, i + 1, r) * raw[1] : 0.0F};
      raw[0] = i < r ? -raw[0] * read.x : 0.0F;
      raw[1] = i + 1 < r ? -raw[1] * read.y : 0.0F;
      through_reads += raw[0] + raw[1];
      raw[0] *= erase;
      raw[1] *= erase;
      set_pair(tiles.dx_from_keys, r, i, d2[0] * s.factors[kKeyNorm][i], d2[1] * s.factors[kKeyNorm][i + 1]);
      set_pair(tiles.dk_from_mixed, r, i, d2[0] * mixed, d2[1] * mixed);
      set_pair(tiles.dk_from_keys, r, i, d2[0] * k_norm, d2[1] * k_norm);
    }
    set_row_sum(s, kOfCorrect, r, through_reads, true, b.lane);
  }
}

// dg_t = the sum over r >= t > i of along[r][i], by the threads of the reads, two for a row or column, with a barrier
// between the steps: what is still in their sums is added, rows are summed up, and then columns.
__device__ inline void add_along(const Block& b, const Sum (&with)[kTokenSums], float* along) {
#pragma unroll
  for (int j = 0; j < kTokenSums; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) along[b.row(e / 2) * kStride + 8 * j + 2 * b.lane.quad + e % 2] += with[j].x[e];
  }
}
// Every element becomes the sum of all before it in its row.
__device__ inline void sum_along_rows(const Block& b, float* along) {
  const int part = b.thread % 2 * 32;
  float* row = along + b.thread / 2 * kStride + part;
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
__device__ inline void sum_along_columns(const Block& b, const float* along, GradientSums& s) {
  const int column = b.thread / 2;
  const int part = b.thread % 2 * 32;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const float value = along[(part + i) * kStride + column];
    if (part + i >= column) sum += value;
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (part == 0) s.decay[column] = sum;
}

// The gradients of the gates, by one warp, two neighbouring tokens to a lane.
__device__ void finish_gates(const GradientsArgs& a, const Block& b, GradientSums& s) {
  // Decays that cross the chunk's edges: gamma_r spans tokens 0..r, Gamma_C[i] tokens i+1..end, gamma_C all of them.
  float to_end[2], from_entry[2];
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * b.lane.index + i;
    to_end[i] = s.rows[kOfToEnd][t];
    from_entry[i] = s.rows[kOfReadOut][t] + (a.erases ? s.factors[kErase][t] * s.rows[kOfRead][t] : 0.0F);
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
  after += s.factors[kDecay][kChunk - 1] * s.state_sum + from_entry[1];

  for (int i = 0; i < 2; ++i) {
    const int t = 2 * b.lane.index + i;
    const float across = i == 0 ? before + (after + from_entry[0]) : before + to_end[0] + after;
    RuleOutputs<float> d_out{across + s.decay[t], 0.0F, 0.0F, s.write[t]};
    if (a.erases) {
      d_out.erase = s.rows[kOfRead][t] + s.rows[kOfCorrect][t];
      d_out.mix = s.rows[kOfMix][t];
    }
    const RuleInputs<float> in{s.factors[kG][t], s.factors[kBeta][t], s.factors[kLambda][t], s.factors[kKeySquare][t]};
    const RuleInputs<float> d_in = rule_backward(a.rule, in, d_out);
    s.key_extra[t] = 2.0F * d_in.k_dot_k;
    if (t >= b.place.rows) continue;
    set_gate(a.dg, b.place, b.head, t, d_in.g);
    set_gate(a.dbeta, b.place, b.head, t, d_in.beta);
    set_gate(a.dlambda, b.place, b.head, t, d_in.lambda);
    if (a.d_key_square != nullptr) {
      const std::int64_t token = b.place.batch * a.tokens + b.place.first + t;
      a.d_key_square[token * a.dims.value_heads + b.head] = s.key_extra[t];
    }
  }
}

// From a tile to rows in device memory, by the threads of a group.
template <class E, int kKeys>
__device__ void store_rows(const Tile<E, kChunk, kKeys>& tile, const MatrixOut& to, int rows, int keys, int thread) {
  constexpr int kUnit = Tile<E, kChunk, kKeys>::kUnit;
  constexpr int kUnits = Tile<E, kChunk, kKeys>::kUnits;
#pragma unroll 4
  for (int i = thread; i < kChunk * kUnits; i += kGroupThreads) {
    const int row = i / kUnits;
    const int column = i % kUnits * kUnit;
    if (row >= rows || column >= keys) continue;
    const E* from = tile.at(row, column);
    if (to.vectors && to.bf16 == kIsBf16<E>) {
      *reinterpret_cast<uint4*>(to.at(row, column)) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < kUnit; ++j) {
        if (column + j < keys) to.set(row, column + j, static_cast<float>(from[j]));
      }
    }
  }
}

__device__ inline float2 pair_of(const bf16* from) {
  const auto pair = *reinterpret_cast<const std::uint32_t*>(from);
  return {low_half(pair), high_half(pair)};
}
__device__ inline float2 pair_of(const float* from) { return *reinterpret_cast<const float2*>(from); }

// The dot product of two units of 16 bytes.
template <class E>
__device__ inline float unit_dot(const uint4& x, const uint4& y) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < static_cast<int>(16 / sizeof(E)); j += 2) {
    const float2 p = pair_of(reinterpret_cast<const E*>(&x) + j);
    const float2 q = pair_of(reinterpret_cast<const E*>(&y) + j);
    sum += p.x * q.x + p.y * q.y;
  }
  return sum;
}

// A thread's part of rowsum(dR . V): a quarter of a row of the block's columns. By the threads of the queries and of
// the keys, which have less to do than those of the reads. V comes straight from device memory; prefetch_values brings
// it nearer while the products before are made.
template <class E, int kKeys>
__device__ inline float write_product(const GradientsArgs& a, const Block& b, const ColumnTiles<E, kKeys>& tiles,
                                      int column) {
  constexpr int kUnit = 16 / sizeof(E);
  constexpr int kUnits = 16 / kUnit;
  const int row = b.written_row();
  const int part = b.thread % 4 * 16;
  const MatrixIn v = rows_of(a.v, b.place, b.head, column);
  const int columns = row < b.place.rows ? a.dims.values - column - part : 0;
  uint4 values[kUnits];
  if (v.vectors && v.bf16 == kIsBf16<E>) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) values[u] = load_unit(v.at(row, part + u * kUnit), u * kUnit < columns);
  } else {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      for (int j = u * kUnit; j < (u + 1) * kUnit; ++j)
        reinterpret_cast<E*>(values)[j] = static_cast<E>(j < columns ? v.get(row, part + j) : 0.0F);
    }
  }
  float sum = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    sum += unit_dot<E>(values[u], *reinterpret_cast<const uint4*>(tiles.d_residual.at(row, part + u * kUnit)));
    if constexpr (kIsBf16<E>) {
      sum += unit_dot<E>(values[u], *reinterpret_cast<const uint4*>(tiles.d_residual_rest.at(row, part + u * kUnit)));
    }
  }
  return sum;
}
__device__ inline void prefetch_values(const GradientsArgs& a, const Block& b, int column) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < b.place.rows && column < a.dims.values) prefetch(rows_of(a.v, b.place, b.head, column).at(row, 0));
}

// sum(S . dS+) of the chunk, by a warp.
__device__ inline void load_state_sum(const GradientsArgs& a, const Block& b, GradientSums& s) {
  const int parts = a.dims.blocks * kStrips;
  float sum = 0;
  for (int i = b.lane.index; i < parts; i += 32) sum += a.state_sums[b.slot * parts + i];
  sum = warp_sum(sum);
  if (b.lane.index == 0) s.state_sum = sum;
}

// sum += rows of `left` times B over 64 columns of both.
template <int kWidth, class E, int kRows>
__device__ inline void add_over_columns(Sum (&sum)[kWidth / 8], const FragmentA<E> (&left)[4],
                                        const Tile<E, kRows, kColumns>& right, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) add_product<kWidth, false>(sum, left[step], right, 0, 16 * step, lane);
}
// sum += (16 rows of) M rows, or M^T rows.
template <class E, int kKeys>
__device__ inline void add_matrix_times(Sum (&sum)[kKeys / 8], const Tile<E, kChunk, kChunk>& matrix, bool transposed,
                                        const Tile<E, kChunk, kKeys>& rows, const Block& b) {
  FragmentA<E> left[4];
  if (transposed) {
#pragma unroll
    for (int step = 0; step < 4; ++step) left[step] = load_a_transposed(matrix, 16 * step, b.rows, b.lane);
  } else {
#pragma unroll
    for (int step = 0; step < 4; ++step) left[step] = load_a(matrix, b.rows, 16 * step, b.lane);
  }
  begin_products<E>(sum);
#pragma unroll
  for (int step = 0; step < 4; ++step) add_product<kKeys, true>(sum, left[step], rows, 16 * step, 0, b.lane);
  wait_for_products<E>(sum);
}

// This lane's part of the dot products of its two rows with those of a tile.
template <class E, int kKeys>
__device__ inline void add_dots(float (&dots)[2], const Sum (&sums)[kKeys / 8], const Tile<E, kChunk, kKeys>& rows,
                                const Block& b) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = pair_at(rows, b.row(half), 8 * n + 2 * b.lane.quad);
      dots[half] += x.x * sums[n].x[2 * half] + x.y * sums[n].x[2 * half + 1];
    }
  }
}
template <int kSums>
__device__ inline void scale_rows(Sum (&sums)[kSums], const float (&factors)[2]) {
#pragma unroll
  for (Sum& sum : sums) sum.x[0] *= factors[0], sum.x[1] *= factors[0], sum.x[2] *= factors[1], sum.x[3] *= factors[1];
}

// The rows of dQ or dK, with `along` of the normalised row taken off, into the tile that their rows came from.
template <class E, int kKeys>
__device__ void put_rows(const Block& b, const Sum (&sums)[kKeys / 8], const Tile<E, kChunk, kKeys>& tile,
                         const float (&norms)[2], const float (&along)[2]) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = 8 * n + 2 * b.lane.quad;
      const float2 x = pair_at(tile, b.row(half), key);
      const float* y = sums[n].x + 2 * half;
      const float off = along[half] * norms[half];
      set_pair(tile, b.row(half), key, norms[half] * (y[0] - off * x.x), norms[half] * (y[1] - off * x.y));
    }
  }
}
template <int kSums>
__device__ void put_parts(const GradientsArgs& a, const Block& b, const Sum (&sums)[kSums], int first_key,
                          float* parts) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (b.row(half) >= b.place.rows) continue;
    const std::int64_t token = b.place.batch * a.tokens + b.place.first + b.row(half);
    float* row = parts + (token * a.dims.value_heads + b.head) * a.dims.keys;
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      const int key = first_key + 8 * n + 2 * b.lane.quad;
      if (key < a.dims.keys) row[key] = sums[n].x[2 * half];
      if (key + 1 < a.dims.keys) row[key + 1] = sums[n].x[2 * half + 1];
    }
  }
}

// kKeys keys at a time; all of them at once where that is enough.
template <class E, int kKeys, int kStages>
__global__ void __launch_bounds__(kThreads, 1) gradients_kernel(const GradientsArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ GradientSums s;
  constexpr int kStageBytes = ColumnTiles<E, kKeys>::kElements * static_cast<int>(sizeof(E));
  const Block b(a);
  const Lane& lane = b.lane;
  const ChunkTiles<E, kKeys, kStages> tiles(memory);
  float write_sum = 0;

  for (int first_key = 0; first_key < a.dims.keys; first_key += kKeys) {
    const bool first = first_key == 0;
    const bool last = first_key + kKeys >= a.dims.keys;
    Sum sums[kKeys / 8];     // dQ, dX or dK
    Sum matrix[kTokenSums];  // dO V'^T or dR V'^T
    ColumnSources<E> sources(a, b, first_key);
    const int keys = a.dims.keys - first_key;

    // Sums over the value columns. What comes after them is copied behind the first columns.
    for (int next = 0; next <= a.dims.blocks; ++next) {
      if (next < a.dims.blocks) {
        load_columns(a, b, ColumnTiles<E, kKeys>(memory + next % kStages * kStageBytes), sources, keys);
        if (first) prefetch_values(a, b, sources.column);
        sources.advance();
      }
      if (next == 1) {
        if (first) load_matrices(a, b, tiles, s);
        load_tile<kThreads>(tiles.q, rows_of(a.q, b.place, b.q_head, first_key), b.place.rows, keys);
        load_tile<kThreads>(tiles.k, rows_of(a.k, b.place, b.q_head, first_key), b.place.rows, keys);
      }
      commit_copies();
      const int block = kStages == 1 ? next : next - 1;
      if (block < 0 || block == a.dims.blocks) continue;
      wait_for_copies<kStages - 1>();
      publish_tiles();
      __syncthreads();
      const ColumnTiles<E, kKeys> columns(memory + block % kStages * kStageBytes);
      if (b.role != kOfReads || a.erases) {
        const Tile<E, kChunk, kColumns> left{b.role == kOfQueries ? columns.d_out.data
                                             : b.role == kOfReads ? columns.d_residual.data
                                                                  : columns.fresh.data};
        FragmentA<E> rows[4];
#pragma unroll
        for (int step = 0; step < 4; ++step) rows[step] = load_a(left, b.rows, 16 * step, lane);
        const Tile<E, kKeys, kColumns> states{b.role == kOfKeys ? columns.d_state.data : columns.state.data};
        if (first && b.role != kOfKeys) {
          begin_products<E>(sums, matrix);
          add_over_columns<kKeys>(sums, rows, states, lane);
          add_over_columns<kChunk>(matrix, rows, columns.fresh, lane);
          if constexpr (kIsBf16<E>) add_over_columns<kChunk>(matrix, rows, columns.fresh_rest, lane);
          wait_for_products<E>(sums, matrix);
        } else {
          begin_products<E>(sums);
          add_over_columns<kKeys>(sums, rows, states, lane);
          wait_for_products<E>(sums);
        }
        // Of V' and dR, the rest.
        if constexpr (kIsBf16<E>) {
          if (b.role != kOfQueries) {
            const Tile<E, kChunk, kColumns> rest{b.role == kOfReads ? columns.d_residual_rest.data
                                                                    : columns.fresh_rest.data};
#pragma unroll
            for (int step = 0; step < 4; ++step) rows[step] = load_a(rest, b.rows, 16 * step, lane);
            if (first && b.role == kOfReads) {
              begin_products<E>(sums, matrix);
              add_over_columns<kKeys>(sums, rows, states, lane);
              add_over_columns<kChunk>(matrix, rows, columns.fresh, lane);
              wait_for_products<E>(sums, matrix);
            } else {
              begin_products<E>(sums);
              add_over_columns<kKeys>(sums, rows, states, lane);
              wait_for_products<E>(sums);
            }
          }
        }
      }
      if (first && b.role != kOfReads) write_sum += write_product(a, b, columns, block * kColumns);
      if (first && block == 0 && b.role == kOfKeys && b.rows == 0) load_state_sum(a, b, s);
      __syncthreads();
    }
    wait_for_copies<0>();
    publish_tiles();
    __syncthreads();

    // The chunk's own terms.
    if (first) {
      if (b.role == kOfQueries) attend_gradient(a, b, matrix, tiles, s);
      if (b.role == kOfReads && a.erases) correct_gradient(b, matrix, tiles, s);
      write_sum = quad_sum(write_sum);
      if (b.role != kOfReads && lane.quad == 0) s.write[b.written_row()] = write_sum;
    }
    __syncthreads();

    // From here on the groups do the same with different things. `own` are the rows that the sums are gradients of.
    const bool works = b.role != kOfReads || a.erases;
    const Tile<E, kChunk, kKeys> own{b.role == kOfKeys ? tiles.k.data : tiles.q.data};
    const float norms[2] = {s.factors[b.role == kOfKeys ? kKeyNorm : kQueryNorm][b.row(0)],
                            s.factors[b.role == kOfKeys ? kKeyNorm : kQueryNorm][b.row(1)]};
    if (works) {
      float factors[2], dots[2] = {0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = b.row(half);
        factors[half] = b.role == kOfKeys      ? decay_between(s, r, kChunk - 1)
                        : b.role == kOfQueries ? a.scale * s.factors[kDecay][r]
                                               : -s.factors[kDecay][r];
      }
      scale_rows(sums, factors);
      add_dots<E, kKeys>(dots, sums, own, b);
      if (b.role == kOfReads) {
        float of_keys[2] = {0, 0};
        add_dots<E, kKeys>(of_keys, sums, tiles.k, b);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          dots[half] = s.factors[kMix][b.row(half)] * norms[half] * dots[half] +
                       s.factors[kKeyNorm][b.row(half)] * of_keys[half];
          factors[half] = s.factors[kErase][b.row(half)];
        }
        scale_rows(sums, factors);
      } else {
        dots[0] *= norms[0], dots[1] *= norms[1];
      }
      const RowSum which = b.role == kOfKeys ? kOfToEnd : b.role == kOfQueries ? kOfReadOut : kOfRead;
      set_row_sum(s, which, b.row(0), dots[0], first, lane);
      set_row_sum(s, which, b.row(1), dots[1], first, lane);

      const int matrices = b.role == kOfKeys && a.erases ? 3 : 1;
#pragma unroll 1
      for (int i = 0; i < matrices; ++i) {
        const Tile<E, kChunk, kChunk> left{b.role == kOfQueries ? tiles.dq_from_keys.data
                                           : b.role == kOfReads ? tiles.dx_from_keys.data
                                           : i == 0             ? tiles.dk_from_dq.data
                                           : i == 1             ? tiles.dk_from_mixed.data
                                                                : tiles.dk_from_keys.data};
        const Tile<E, kChunk, kKeys> right{b.role == kOfKeys && i < 2 ? tiles.q.data : tiles.k.data};
        add_matrix_times<E, kKeys>(sums, left, b.role == kOfKeys, right, b);
      }
      // dX, for the same places of dQ and dK, which are in the same threads of the other groups.
      if (b.role == kOfReads) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          reinterpret_cast<float4*>(tiles.dx)[n * kGroupThreads + b.thread] = {sums[n].x[0], sums[n].x[1], sums[n].x[2],
                                                                               sums[n].x[3]};
      }
    }
    __syncthreads();

    if (b.role != kOfReads && a.erases) {
      const float mix[2] = {b.role == kOfQueries ? s.factors[kMix][b.row(0)] : 1.0F,
                            b.role == kOfQueries ? s.factors[kMix][b.row(1)] : 1.0F};
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float4 dx = reinterpret_cast<const float4*>(tiles.dx)[n * kGroupThreads + b.thread];
        sums[n].x[0] += mix[0] * dx.x, sums[n].x[1] += mix[0] * dx.y;
        sums[n].x[2] += mix[1] * dx.z, sums[n].x[3] += mix[1] * dx.w;
      }
    }
    // Q . dQ and K . dK for the norms, Q . dX for mix.
    float along[2] = {0, 0};
    if (works) {
      add_dots<E, kKeys>(along, sums, own, b);
      along[0] = norms[0] * quad_sum(along[0]);
      along[1] = norms[1] * quad_sum(along[1]);
    }
    if (b.role == kOfReads && a.erases) {
      if (lane.quad == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          s.rows[kOfMix][b.row(half)] = first ? along[half] : s.rows[kOfMix][b.row(half)] + along[half];
      }
      if (first) add_along(b, matrix, tiles.along);
    }
    if (!a.norm) along[0] = along[1] = 0;
    __syncthreads();  // Q and K are used up: dQ and dK can take their places

    // The threads of the reads go on to the gates. The others finish their rows meanwhile, unless finish_rows will, or
    // the gates have something to add.
    const auto out_rows = [&] {
      store_rows(own, rows_of(b.role == kOfKeys ? a.dk : a.dq, b.place, b.q_head), b.place.rows, a.dims.keys, b.thread);
    };
    const bool meanwhile = b.role != kOfReads && a.dq_parts == nullptr && !a.adds_keys;
    if (b.role == kOfReads && first) sum_along_rows(b, tiles.along);
    if (meanwhile) put_rows<E, kKeys>(b, sums, own, norms, along);
    __syncthreads();
    if (b.role == kOfReads && first) sum_along_columns(b, tiles.along, s);
    if (b.role == kOfQueries && a.dq_parts != nullptr) put_parts(a, b, sums, first_key, a.dq_parts);
    if (b.role == kOfKeys && a.dq_parts != nullptr) put_parts(a, b, sums, first_key, a.dk_parts);
    __syncthreads();
    if (last && b.role == kOfReads && b.rows == 0) finish_gates(a, b, s);
    if (meanwhile) out_rows();
    if (a.adds_keys && a.dq_parts == nullptr) {
      // The rule gives dK extra K more, and (K . K) times as much goes off along K.
      __syncthreads();
      if (b.role == kOfKeys) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = b.row(half);
          along[half] += s.key_extra[r] * ((a.norm ? s.factors[kKeySquare][r] : 0.0F) - 1.0F);
        }
      }
      if (b.role != kOfReads) put_rows<E, kKeys>(b, sums, own, norms, along);
      __syncthreads();
      if (b.role != kOfReads) out_rows();
    }
    __syncthreads();
  }
}

template <class E, int kKeys, int kStages>
void launch(const Context& context, const GradientsArgs& args) {
  constexpr int kMemory = ChunkTiles<E, kKeys, kStages>::kBytes;
  const auto kernel = gradients_kernel<E, kKeys, kStages>;
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), kMemory);
  const auto blocks = static_cast<unsigned>(args.chunks.total * args.dims.value_heads);
  kernel<<<blocks, kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence gradients");
}

template <int kKeys>
void launch_bf16(const Context& context, const GradientsArgs& args) {
  constexpr int kNeeded = ChunkTiles<bf16, kKeys, 2>::kBytes + static_cast<int>(sizeof(GradientSums));
  context.shared_memory() >= kNeeded ? launch<bf16, kKeys, 2>(context, args) : launch<bf16, kKeys, 1>(context, args);
}

}  // namespace

void launch_gradients(const Context& context, const GradientsArgs& args, bool bf16_operands) {
  const int keys = gradient_keys(padded_keys(args.dims.keys), bf16_operands);
  if (!bf16_operands) return launch<float, 64, 1>(context, args);
  keys == 64 ? launch_bf16<64>(context, args) : launch_bf16<128>(context, args);
}

}  // namespace qdelta::cuda
