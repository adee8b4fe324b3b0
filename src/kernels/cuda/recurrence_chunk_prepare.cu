// Everything of a chunk that does not depend on v, one block for each chunk and value head:
//
//   G      running sum of the log decays            Gamma[r][i] = exp(G_r - G_i) for i <= r
//   A_qk = lower(scale Gamma . Q K^T)               with the diagonal
//   A_xk = strictLower(Gamma . X K^T)               X = K + diag(mix) Q
//   A    = diag(erase) A_xk                         T = (I + A)^-1, A_qk T
//
// and the factors of its tokens. The products take q and k as they are in memory; the L2 norms multiply the results, in
// float32. The inverse is taken of the decayed matrix: its entries are those of the recurrence itself, while without
// the decay they may overflow where the recurrence does not.
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda {
namespace {

constexpr int kThreads = 128;
// Log decays are clamped to this, whose exp is zero in float32: infinite ones become finite, so that differences of G
// exist, and G keeps its precision after a total decay.
constexpr float kTotalDecay = -120.0F;
constexpr double kLog2E = 1.4426950408889634;  // G is stored as log2(gamma)

// Row stride of a float matrix: eight rows fall into different banks.
constexpr int kStride = kChunk + 4;

struct ChunkGates {
  alignas(16) float log2_gamma_high[kChunk];
  float log2_gamma_low[kChunk];  // G = high + low
  float inv_norm_q[kChunk], inv_norm_k[kChunk], k_dot_k[kChunk];
  float erase[kChunk], mix[kChunk];
};

// The sum of the squares of a row, by four lanes.
template <class E, int kKeyDim>
__device__ float row_square(const Tile<E, kChunk, kKeyDim>& tile, int row, const Lane& lane) {
  constexpr int kVector = Tile<E, kChunk, kKeyDim>::kVector;
  float sum = 0;
#pragma unroll 4
  for (int column = kVector * lane.quad; column < kKeyDim; column += 4 * kVector) {
    const uint4 vector = *reinterpret_cast<const uint4*>(tile.at(row, column));
#pragma unroll
    for (const std::uint32_t word : {vector.x, vector.y, vector.z, vector.w}) {
      if constexpr (kIsBf16<E>) {
        sum += low_half(word) * low_half(word) + high_half(word) * high_half(word);
      } else {
        sum += __uint_as_float(word) * __uint_as_float(word);
      }
    }
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return sum;
}
// In double, for rows whose square overflows a float.
template <class E, int kKeyDim>
__device__ double row_square_double(const Tile<E, kChunk, kKeyDim>& tile, int row) {
  double sum = 0;
  for (int column = 0; column < kKeyDim; column += 2) {
    const float2 pair = pair_at(tile, row, column);
    sum += double{pair.x} * double{pair.x} + double{pair.y} * double{pair.y};
  }
  return sum;
}

template <class E, int kKeyDim>
__device__ void compute_norms(const PrepareArgs& a, const Tile<E, kChunk, kKeyDim>& q,
                              const Tile<E, kChunk, kKeyDim>& k, ChunkGates& gates, int warp, const Lane& lane) {
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * warp + lane.row(i);
    const float q_square = row_square(q, row, lane);
    const float k_square = row_square(k, row, lane);
    if (lane.quad == 0) {
      float inv_norm_q = 1;
      float inv_norm_k = 1;
      float square = k_square;
      if (a.qk_l2norm) {
        const double q_sum = isfinite(q_square) ? q_square : row_square_double(q, row);
        const double k_sum = isfinite(k_square) ? k_square : row_square_double(k, row);
        inv_norm_q = static_cast<float>(rsqrt(q_sum + kNormEpsilon));
        inv_norm_k = static_cast<float>(rsqrt(k_sum + kNormEpsilon));
        square = static_cast<float>(k_sum / (k_sum + kNormEpsilon));
      }
      gates.inv_norm_q[row] = inv_norm_q;
      gates.inv_norm_k[row] = inv_norm_k;
      gates.k_dot_k[row] = square;
    }
  }
}

// The inputs of the rule but k . k, of two adjacent tokens a lane.
__device__ inline void load_gates(RuleInputs<float> (&in)[2], const PrepareArgs& a, const ChunkRange& range, int head,
                                  const Lane& lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane.index + i;
    in[i] = {};
    if (row < range.tokens)
      in[i] = {load_gate(a.g, range, head, row), load_gate(a.beta, range, head, row),
               load_gate(a.lambda, range, head, row), 0.0F};
  }
}

// The rule and the running sum of the log decays, by the warp that loaded the gates.
__device__ void compute_gates(const PrepareArgs& a, RuleInputs<float> (&in)[2], int tokens, float* factors,
                              ChunkGates& gates, const Lane& lane) {
  RuleOutputs<float> out[2];
  double sum = 0;
  double g[2];
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane.index + i;
    out[i] = {};  // padding: a token that changes nothing
    if (row < tokens) {
      in[i].k_dot_k = gates.k_dot_k[row];
      out[i] = rule_forward(a.rule, in[i]);
    }
    g[i] = kLog2E * double{out[i].log_decay < kTotalDecay ? kTotalDecay : out[i].log_decay};
    sum += g[i];
  }
  double before = sum;  // inclusive, made exclusive below
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(~0u, before, step);
    if (lane.index >= step) before += other;
  }
  const double total = __shfl_sync(~0u, before, 31);
  before -= sum;
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane.index + i;
    const double here = i == 0 ? before + g[0] : before + sum;
    const auto high = static_cast<float>(here);
    gates.log2_gamma_high[row] = high;
    gates.log2_gamma_low[row] = static_cast<float>(here - double{high});
    gates.erase[row] = out[i].erase;
    gates.mix[row] = out[i].mix;
    const float decay = exp2f(static_cast<float>(here));
    const float to_end = exp2f(static_cast<float>(total - here));
    const float inv_norm_q = gates.inv_norm_q[row];
    const float inv_norm_k = gates.inv_norm_k[row];
    factors[kScaleGammaQ * kChunk + row] = a.scale * decay * inv_norm_q;
    factors[kEraseGammaK * kChunk + row] = out[i].erase * decay * inv_norm_k;
    factors[kEraseGammaMixQ * kChunk + row] = out[i].erase * decay * out[i].mix * inv_norm_q;
    factors[kWrite * kChunk + row] = out[i].write;
    factors[kGammaToEndK * kChunk + row] = to_end * inv_norm_k;
    factors[kGamma * kChunk + row] = decay;
    factors[kLog2GammaHigh * kChunk + row] = high;
    factors[kLog2GammaLow * kChunk + row] = gates.log2_gamma_low[row];
    factors[kErase * kChunk + row] = out[i].erase;
    factors[kMix * kChunk + row] = out[i].mix;
    factors[kInvNormQ * kChunk + row] = inv_norm_q;
    factors[kInvNormK * kChunk + row] = inv_norm_k;
    factors[kG * kChunk + row] = in[i].g;
    factors[kBeta * kChunk + row] = in[i].beta;
    factors[kLambda * kChunk + row] = in[i].lambda;
    factors[kKDotK * kChunk + row] = gates.k_dot_k[row];
  }
}

// Adjacent elements of a matrix: split into a high and a low part in bf16, as they are in float32.
__device__ inline void store_split_pair(bf16* to, float first, float second) {
  const std::uint32_t upper = pack_bf16x2(first, second);
  *reinterpret_cast<std::uint32_t*>(to) = upper;
  *reinterpret_cast<std::uint32_t*>(to + kChunkMatrix) =
      pack_bf16x2(first - low_half(upper), second - high_half(upper));
}
__device__ inline void store_split_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = {first, second};
}

// 16 bytes of each part of an operand, from a row of float32.
__device__ inline void split_vector(uint4 (&parts)[2], const float* row) {
  const float4 x[2] = {*reinterpret_cast<const float4*>(row), *reinterpret_cast<const float4*>(row + 4)};
  std::uint32_t high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float first = i % 2 == 0 ? x[i / 2].x : x[i / 2].z;
    const float second = i % 2 == 0 ? x[i / 2].y : x[i / 2].w;
    high[i] = pack_bf16x2(first, second);
    low[i] = pack_bf16x2(first - low_half(high[i]), second - high_half(high[i]));
  }
  parts[0] = {high[0], high[1], high[2], high[3]};
  parts[1] = {low[0], low[1], low[2], low[3]};
}
__device__ inline void split_vector(uint4 (&parts)[1], const float* row) {
  parts[0] = *reinterpret_cast<const uint4*>(row);
}

// The inverses of the four 16 x 16 diagonal blocks of I + A by forward substitution, a column for each of the first 64
// threads.
__device__ void invert_diagonal_blocks(const float* A, float* T) {
  const int block = static_cast<int>(threadIdx.x) / 16 * 16;
  const int column = static_cast<int>(threadIdx.x) % 16;
  float x[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const float* row = A + (block + r) * kStride + block;
    float value = r == column ? 1.0F : 0.0F;
#pragma unroll
    for (int i = 0; i < r; i += 4) {
      const float4 a = *reinterpret_cast<const float4*>(row + i);
      value -= a.x * x[i];
      if (i + 1 < r) value -= a.y * x[i + 1];
      if (i + 2 < r) value -= a.z * x[i + 2];
      if (i + 3 < r) value -= a.w * x[i + 3];
    }
    x[r] = value;
    T[(block + r) * kStride + block + column] = value;
  }
}

// A view of a float matrix of row stride kStride, as operands of products.
struct SquareTile {
  float* data;
  [[nodiscard]] __device__ float* at(int row, int column) const { return data + row * kStride + column; }
  [[nodiscard]] __device__ SquareTile block(int row, int column) const { return {at(row, column)}; }
};

// A[m][k] of 16 x 16 elements.
__device__ inline FragmentA<float> load_a(const SquareTile& from, const Lane& lane) {
  FragmentA<float> a;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const float2 upper = *reinterpret_cast<const float2*>(from.at(lane.row(0), lane.pair(s)));
    const float2 lower = *reinterpret_cast<const float2*>(from.at(lane.row(1), lane.pair(s)));
    a.x[s][0] = upper.x, a.x[s][1] = lower.x, a.x[s][2] = upper.y, a.x[s][3] = lower.y;
  }
  return a;
}
// B[k][n] of 16 x 8 elements.
__device__ inline FragmentB<float> load_b(const SquareTile& from, const Lane& lane) {
  FragmentB<float> b;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < 2; ++i) b.x[s][i] = *from.at(lane.pair(s) + i, lane.row(0));
  }
  return b;
}
__device__ inline void store(const SquareTile& to, const Accumulator& acc, float sign, const Lane& lane) {
  *reinterpret_cast<float2*>(to.at(lane.row(0), lane.pair(0))) = {sign * acc.x[0], sign * acc.x[1]};
  *reinterpret_cast<float2*>(to.at(lane.row(1), lane.pair(0))) = {sign * acc.x[2], sign * acc.x[3]};
}

// Eight columns of out = sign left right by one warp, for matrices of kBlocks x kBlocks blocks of 16 x 16. Blocks of
// `right` above row block `first` are zero, and those of a lower triangular `left` above its diagonal; neither is read.
template <int kBlocks, bool kLeftIsLower>
__device__ inline void matmul_columns(float sign, const SquareTile& left, const SquareTile& right, int first,
                                      const SquareTile& out, const Lane& lane) {
  FragmentB<float> b[kBlocks]{};
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    if (k >= first) b[k] = load_b(right.block(16 * k, 0), lane);
  }
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    Accumulator acc;
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      if (k >= first && (!kLeftIsLower || k <= m)) mma(acc, load_a(left.block(16 * m, 16 * k), lane), b[k]);
    }
    store(out.block(16 * m, 0), acc, sign, lane);
  }
}

// T21 = -T2 A21 T1, the lower left of the inverse of [I + A1, 0; A21, I + A2], in squares of 16 kBlocks. A warp has
// eight columns of it, for which it needs nothing from other warps; the first product goes through `scratch`.
template <int kBlocks>
__device__ inline void merge_inverses(const SquareTile& A, const SquareTile& T, const SquareTile& scratch, int at,
                                      int column, const Lane& lane) {
  constexpr int kSize = 16 * kBlocks;
  const SquareTile here = scratch.block(at, at + kSize + column);
  matmul_columns<kBlocks, false>(1.0F, A.block(at + kSize, at), T.block(at, at + column), column / 16, here, lane);
  __syncwarp();
  matmul_columns<kBlocks, true>(-1.0F, T.block(at + kSize, at + kSize), here, 0, T.block(at + kSize, at + column),
                                lane);
}

// T = (I + A)^-1, A strictly lower triangular: the diagonal blocks, then twice the merge of two neighbours, in float32
// (three tf32 products). The blocks of A above the diagonal are scratch.
__device__ void invert_unit_lower(float* A, float* T, int warp, const Lane& lane) {
  if (threadIdx.x < kChunk) invert_diagonal_blocks(A, T);
  __syncthreads();
  merge_inverses<1>({A}, {T}, {A}, warp / 2 * 32, warp % 2 * 8, lane);
  __syncthreads();
  merge_inverses<2>({A}, {T}, {A}, 0, 8 * warp, lane);
  __syncthreads();
}

template <class E, int kKeyDim>
constexpr int prepare_shared_bytes() {
  const int tiles = 2 * Tile<E, kChunk, kKeyDim>::kElements * static_cast<int>(sizeof(E));
  const int matrices = 2 * kChunk * kStride * static_cast<int>(sizeof(float));
  return tiles > matrices ? tiles : matrices;
}

// A warp's 16 rows of Q K^T and K K^T, up to the diagonal block.
template <class E, int kKeyDim>
__device__ inline void multiply_keys(Accumulator (&qk)[8], Accumulator (&kk)[8], const Tile<E, kChunk, kKeyDim>& q,
                                     const Tile<E, kChunk, kKeyDim>& k, bool erases, int warp, const Lane& lane) {
  for (int inner = 0; inner < kKeyDim; inner += 16) {
    const FragmentA<E> q_rows = load_a(q, 16 * warp, inner, lane);
    const FragmentA<E> k_rows = load_a(k, 16 * warp, inner, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > warp) break;
      const FragmentBPair<E> keys = load_b(k, 16 * n, inner, lane);
      mma(qk[2 * n], qk[2 * n + 1], q_rows, keys);
      if (erases) mma(kk[2 * n], kk[2 * n + 1], k_rows, keys);
    }
  }
}

// From Q K^T and K K^T to A_qk and A_xk, the warp's rows of them, with zeros above the diagonal: row r, column i are
// the products by the norms and the decay from i to r, gamma_r / gamma_i.
__device__ inline void to_chunk_matrices(const PrepareArgs& a, Accumulator (&qk)[8], Accumulator (&kk)[8],
                                         const ChunkGates& gates, int warp, const Lane& lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 16 * warp + lane.row(half);
    const float high = gates.log2_gamma_high[r];
    const float low = gates.log2_gamma_low[r];
    const float inv_norm_q = gates.inv_norm_q[r];
    const float inv_norm_k = gates.inv_norm_k[r];
    const float mix = gates.mix[r];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j > 2 * warp + 1) break;
      const int i = lane.pair(j);
      const float2 highs = *reinterpret_cast<const float2*>(gates.log2_gamma_high + i);
      const float2 lows = *reinterpret_cast<const float2*>(gates.log2_gamma_low + i);
      const float2 norms = *reinterpret_cast<const float2*>(gates.inv_norm_k + i);
      const float gamma_k[2] = {i <= r ? exp2_approx((high - highs.x) + (low - lows.x)) * norms.x : 0.0F,
                                i + 1 <= r ? exp2_approx((high - highs.y) + (low - lows.y)) * norms.y : 0.0F};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& q_product = qk[j].x[2 * half + e];
        float& k_product = kk[j].x[2 * half + e];
        q_product *= gamma_k[e] * inv_norm_q;
        k_product = i + e < r ? gamma_k[e] * inv_norm_k * k_product + mix * q_product : 0.0F;
        q_product *= a.scale;
      }
    }
  }
}

// The warp's rows of a chunk matrix, to the workspace: up to the diagonal, or with `whole` all of them.
template <class E>
__device__ inline void store_rows(void* matrices, std::int64_t slot, const Accumulator (&rows)[8], bool whole, int warp,
                                  const Lane& lane) {
  const Tile<E, kChunk, kChunk> to{static_cast<E*>(matrices) + slot * operand_parts(kIsBf16<E>) * kChunkMatrix};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (!whole && j > 2 * warp + 1) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      E* at = to.at(16 * warp + lane.row(half), lane.pair(j));
      store_split_pair(at, rows[j].x[2 * half], rows[j].x[2 * half + 1]);
    }
  }
}

// A = diag(erase) A_xk, the warp's rows, to shared memory.
__device__ inline void store_erased_rows(float* A, const Accumulator (&A_xk)[8], const ChunkGates& gates, int warp,
                                         const Lane& lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 16 * warp + lane.row(half);
    const float erase = gates.erase[r];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j > 2 * warp + 1) break;
      *reinterpret_cast<float2*>(A + r * kStride + lane.pair(j)) = {erase * A_xk[j].x[2 * half],
                                                                    erase * A_xk[j].x[2 * half + 1]};
    }
  }
}

// T as operands of products: to shared memory, and to the workspace. Blocks above the diagonal are zeros.
template <class E, int kParts>
__device__ inline void store_inverse(const PrepareArgs& a, std::int64_t slot, const float* T,
                                     const Tile<E, kChunk, kChunk> (&tiles)[kParts]) {
  using Matrix = Tile<E, kChunk, kChunk>;
  E* const to = static_cast<E*>(a.out.T) + slot * kParts * kChunkMatrix;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * Matrix::kVectorsPerRow; i += kThreads) {
    const int row = i / Matrix::kVectorsPerRow;
    const int column = i % Matrix::kVectorsPerRow * Matrix::kVector;
    uint4 parts[kParts]{};
    if (column / 16 <= row / 16) split_vector(parts, T + row * kStride + column);
    const auto offset = tiles[0].at(row, column) - tiles[0].data;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<uint4*>(tiles[part].data + offset) = parts[part];
      *reinterpret_cast<uint4*>(to + part * kChunkMatrix + offset) = parts[part];
    }
  }
}

// The warp's rows of A_qk T, in the place of A_qk. Of split operands the product of the low parts is left out.
template <class E, int kParts>
__device__ inline void multiply_inverse(Accumulator (&A_qk)[8], const Tile<E, kChunk, kChunk> (&T)[kParts], int warp,
                                        const Lane& lane) {
  FragmentA<E> rows[kParts][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    rows[0][k] = to_fragment_a<E>(A_qk[2 * k], A_qk[2 * k + 1]);
    if constexpr (kParts == 2) {
      Accumulator low[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Accumulator rounded = to_accumulator(rows[0][k], half);
#pragma unroll
        for (int i = 0; i < 4; ++i) low[half].x[i] = A_qk[2 * k + half].x[i] - rounded.x[i];
      }
      rows[1][k] = to_fragment_a<E>(low[0], low[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    A_qk[2 * n] = A_qk[2 * n + 1] = Accumulator();
#pragma unroll
    for (int k = n; k < 4; ++k) {
      if (k > warp) break;
      const FragmentBPair<E> high = load_b_transposed(T[0], 16 * k, 16 * n, lane);
      if constexpr (kParts == 2) {
        mma(A_qk[2 * n], A_qk[2 * n + 1], rows[1][k], high);
        mma(A_qk[2 * n], A_qk[2 * n + 1], rows[0][k], load_b_transposed(T[1], 16 * k, 16 * n, lane));
      }
      mma(A_qk[2 * n], A_qk[2 * n + 1], rows[0][k], high);
    }
  }
}

// More blocks hide each other's latencies; other widths would pay for it with spills.
template <class E, int kKeyDim>
constexpr int kMinBlocksPerSm = kIsBf16<E>&& kKeyDim == 128 ? 6 : 1;

template <class E, int kKeyDim>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerSm<E, kKeyDim>) prepare_kernel(const PrepareArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ ChunkGates gates;
  const Tile<E, kChunk, kKeyDim> q{reinterpret_cast<E*>(memory)};
  const Tile<E, kChunk, kKeyDim> k{q.data + kChunk * kKeyDim};
  // Reuses the memory of the tiles after the products.
  auto* A = reinterpret_cast<float*>(memory);
  float* T = A + kChunk * kStride;
  const Lane lane;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t slot = blockIdx.x;
  const int head = static_cast<int>(slot % a.dims.value_heads);
  const int q_head = head / a.dims.group_size;
  ptx::let_next_begin();
  ptx::wait_for_previous();
  const ChunkRange range = chunk_range(a.chunks, slot / a.dims.value_heads);

  RuleInputs<float> gate_inputs[2];  // on their way while the tiles are
  if (warp == 0) load_gates(gate_inputs, a, range, head, lane);
  load_tile<kThreads>(q, chunk_rows(a.q, range, q_head), range.tokens, a.dims.key_dim);
  load_tile<kThreads>(k, chunk_rows(a.k, range, q_head), range.tokens, a.dims.key_dim);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  compute_norms(a, q, k, gates, warp, lane);
  __syncthreads();
  if (warp == 0) compute_gates(a, gate_inputs, range.tokens, a.out.factors + slot * (kFactors * kChunk), gates, lane);

  Accumulator A_qk[8], A_xk[8];  // first the products of the rows
  multiply_keys(A_qk, A_xk, q, k, a.erases, warp, lane);
  __syncthreads();  // the tiles have been read, the gates written
  to_chunk_matrices(a, A_qk, A_xk, gates, warp, lane);
  if (a.out.A_qk != nullptr) store_rows<E>(a.out.A_qk, slot, A_qk, !a.erases, warp, lane);
  if (!a.erases) return;
  if (a.out.A_xk != nullptr) store_rows<E>(a.out.A_xk, slot, A_xk, false, warp, lane);
  store_erased_rows(A, A_xk, gates, warp, lane);
  __syncthreads();
  invert_unit_lower(A, T, warp, lane);
  Tile<E, kChunk, kChunk> T_tiles[operand_parts(kIsBf16<E>)];  // in the place of A
  for (auto& tile : T_tiles) tile.data = reinterpret_cast<E*>(memory) + (&tile - T_tiles) * kChunkMatrix;
  store_inverse(a, slot, T, T_tiles);
  __syncthreads();
  multiply_inverse(A_qk, T_tiles, warp, lane);
  store_rows<E>(a.out.A_qkT, slot, A_qk, true, warp, lane);
}

// The tables of packed sequences, by one block.
__global__ void build_chunk_tables_kernel(const Chunks chunks, const Segments segments) {
  if (threadIdx.x == 0) {
    std::int64_t chunk_sum = 0;
    std::int64_t segment_sum = 0;
    for (std::int64_t n = 0; n < chunks.sequences; ++n) {
      chunks.first_chunk[n] = chunk_sum;
      segments.first_segment[n] = segment_sum;
      const std::int64_t tokens = chunks.cu_seqlens[n + 1] - chunks.cu_seqlens[n];
      const std::int64_t count = (tokens + kChunk - 1) / kChunk;
      chunk_sum += count;
      if (segments.fixed) {
        segment_sum += tokens / (segments.chunks * kChunk) + 1;
      } else {
        segment_sum += count <= segments.chunks ? 1 : (count + segments.chunks - 1) / segments.chunks;
      }
    }
    chunks.first_chunk[chunks.sequences] = chunk_sum;
    segments.first_segment[chunks.sequences] = segment_sum;
    segments.first_chunk[segment_sum] = chunk_sum;
  }
  __syncthreads();
  for (std::int64_t n = threadIdx.x; n < chunks.sequences; n += blockDim.x) {
    for (std::int64_t c = chunks.first_chunk[n]; c < chunks.first_chunk[n + 1]; ++c)
      chunks.sequence[c] = static_cast<std::int32_t>(n);
    for (std::int64_t s = segments.first_segment[n]; s < segments.first_segment[n + 1]; ++s) {
      segments.sequence[s] = static_cast<std::int32_t>(n);
      segments.first_chunk[s] = chunks.first_chunk[n] + (s - segments.first_segment[n]) * segments.chunks;
    }
  }
}

template <class E, int kKeyDim>
void launch(const Context& context, const PrepareArgs& args) {
  constexpr int kMemory = prepare_shared_bytes<E, kKeyDim>();
  allow_shared_memory(context, reinterpret_cast<const void*>(prepare_kernel<E, kKeyDim>), kMemory);
  const auto blocks = static_cast<unsigned>(args.chunks.total * args.dims.value_heads);
  launch_overlapped(context, "recurrence prepare", prepare_kernel<E, kKeyDim>, blocks, kThreads, kMemory, args);
}

template <class E>
void launch_key_dim(const Context& context, const PrepareArgs& args) {
  switch (padded_key_dim(args.dims.key_dim)) {
    case 64:
      return launch<E, 64>(context, args);
    case 128:
      return launch<E, 128>(context, args);
    default:
      return launch<E, kMaxKeyDim>(context, args);
  }
}

}  // namespace

void launch_prepare(const Context& context, const PrepareArgs& args, bool bf16_operands) {
  bf16_operands ? launch_key_dim<bf16>(context, args) : launch_key_dim<float>(context, args);
}

void launch_build_chunk_tables(const Context& context, const Chunks& chunks, const Segments& segments) {
  build_chunk_tables_kernel<<<1, 256, 0, context.stream()>>>(chunks, segments);
  check_launch("recurrence build_chunk_tables");
}

}  // namespace qdelta::cuda
