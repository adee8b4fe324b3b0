// Everything of a chunk that does not depend on v, one block for each chunk and value head:
//
//   G      running sum of the log decays            Gamma[r][i] = exp(G_r - G_i) for i <= r
//   A_qk = lower(scale Gamma . Q K^T)               with the diagonal
//   A    = diag(erase) strictLower(Gamma . X K^T)   X = K + diag(mix) Q
//   T    = (I + A)^-1, A_qk T
//
// and the factors of its tokens. The products take q and k as they are in memory; the L2 norms multiply the results, in
// float32. The inverse is taken of the decayed matrix: its entries are those of the recurrence itself, while without
// the decay they may overflow where the recurrence does not.
//
// A warp has 16 tokens: their factors, and their rows of every matrix.
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/recurrence_chunk_inverse.cuh"
#include "kernels/cuda/tensor_copy.cuh"

namespace qdelta::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == kBlocks);
// Log decays are clamped to this, whose exp is zero in float32: infinite ones become finite, so that differences of G
// exist, and G keeps its precision after a total decay.
constexpr float kTotalDecay = -120.0F;
constexpr double kLog2E = 1.4426950408889634;  // G is stored as log2(gamma)

// The gates of all tokens, and what the matrices need of them.
struct ChunkGates {
  double log2_gamma[kChunk], log2_gamma_at_end;
  float g[kChunk], beta[kChunk], lambda[kChunk];
  alignas(16) float log2_gamma_high[kChunk];  // G, rounded; the other factors have what is missing
  float key_column[kChunk];                   // of a column: 1 / |k|
  float query_row[kChunk];                    // of a row: scale / |q|
  float key_row[kChunk], mix_row[kChunk];     // erase / |k|, erase mix / |q|
};

// ---------------------------------------------------------------------------------------------------------------------
// Gates and norms.

// Three warps load a gate each, two tokens a lane, and the first one sums the decays.
__device__ inline void load_gates(const PrepareArgs& a, const ChunkRange& range, int head, ChunkGates& gates, int warp,
                                  const Lane& lane) {
  if (warp > 2) return;
  const TokensIn& gate = warp == 0 ? a.g : warp == 1 ? a.beta : a.lambda;
  float* const to = warp == 0 ? gates.g : warp == 1 ? gates.beta : gates.lambda;
  float values[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane.index + i;
    values[i] = row < range.tokens ? load_gate(gate, range, head, row) : 0.0F;  // padding: a token that changes nothing
    to[row] = values[i];
  }
  if (warp != 0) return;
  double log_decays[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float log_decay = rule_forward(a.rule, RuleInputs<float>{.g = values[i]}).log_decay;  // it depends on g alone
    log_decays[i] = kLog2E * double{log_decay < kTotalDecay ? kTotalDecay : log_decay};
  }
  double sum = log_decays[0] + log_decays[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(~0u, sum, step);
    if (lane.index >= step) sum += before;
  }
  gates.log2_gamma[2 * lane.index] = sum - log_decays[1];
  gates.log2_gamma[2 * lane.index + 1] = sum;
  if (lane.index == 31) gates.log2_gamma_at_end = sum;
}

// The squares of the warp's 16 rows: that of row lane % 16. In bf16 from the diagonal of their product with each other,
// for which tensor cores have time to spare; they round sums towards zero, which would show in float32.
template <int kKeyDim>
__device__ float row_square(const Tile<float, kChunk, kKeyDim>& tile, int warp, const Lane& lane) {
  const int row = kBlock * warp + lane.index % kBlock;
  float sum = 0;
#pragma unroll 4
  for (int column = lane.index / kBlock * 4; column < kKeyDim; column += 8) {
    const float4 x = *reinterpret_cast<const float4*>(tile.at(row, column));
    sum += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
  }
  return sum + __shfl_xor_sync(~0u, sum, kBlock);
}
template <int kKeyDim>
__device__ float row_square(const Tile<bf16, kChunk, kKeyDim>& tile, int warp, const Lane& lane) {
  Accumulator upper, lower;
#pragma unroll
  for (int inner = 0; inner < kKeyDim; inner += 16) {
    const FragmentA<bf16> rows = load_a(tile, kBlock * warp, inner, lane);
    mma(upper, lower, rows, load_b(tile, kBlock * warp, inner, lane));
  }
  const int row = lane.index % kBlock;
  const int owner = row % 8 * 4 + row % 8 / 2;  // the lane whose accumulators have element (row, row % 8)
  const bool odd = lane.group % 2 == 1;         // in the second column of its pair
  const float upper_square = __shfl_sync(~0u, odd ? upper.x[1] : upper.x[0], owner);
  const float lower_square = __shfl_sync(~0u, odd ? lower.x[3] : lower.x[2], owner);
  return row < 8 ? upper_square : lower_square;
}

struct RowNorm {
  float inverse = 1, square = 0;  // 1 / |x|, and x.x of the row as the recurrence sees it
};
// Of a row whose square is no finite float. A function, so that its code is not amidst what every chunk runs.
template <class E, int kKeyDim>
__device__ RowNorm norm_in_double(const E* tile, int row) {
  double sum = 0;
#pragma unroll 1
  for (int column = 0; column < kKeyDim; column += 2) {
    const float2 pair = pair_at(Tile<E, kChunk, kKeyDim>{const_cast<E*>(tile)}, row, column);
    sum += double{pair.x} * double{pair.x} + double{pair.y} * double{pair.y};
  }
  return {static_cast<float>(rsqrt(sum + kNormEpsilon)), static_cast<float>(sum / (sum + kNormEpsilon))};
}
// Of row lane % 16 of the warp's.
template <class E, int kKeyDim>
__device__ RowNorm row_norm(const Tile<E, kChunk, kKeyDim>& tile, bool qk_l2norm, int warp, const Lane& lane) {
  const float square = row_square(tile, warp, lane);
  if (!qk_l2norm) return {1.0F, square};
  if (!isfinite(square)) return norm_in_double<E, kKeyDim>(tile.data, kBlock * warp + lane.index % kBlock);
  if constexpr (kIsBf16<E>) {
    const float inverse = rsqrtf(square + static_cast<float>(kNormEpsilon));
    return {inverse, square * inverse * inverse};
  } else {
    const double sum = double{square} + kNormEpsilon;
    return {static_cast<float>(rsqrt(sum)), static_cast<float>(square / sum)};
  }
}

// The rule and the factors of the warp's tokens, by half of its lanes.
__device__ inline void write_factors(const PrepareArgs& a, const RowNorm& q, const RowNorm& k, int tokens,
                                     float* factors, ChunkGates& gates, int row) {
  const RuleInputs<float> in{gates.g[row], gates.beta[row], gates.lambda[row], k.square};
  const RuleOutputs<float> out = row < tokens ? rule_forward(a.rule, in) : RuleOutputs<float>{};
  const double log2_gamma = gates.log2_gamma[row];
  const auto high = static_cast<float>(log2_gamma);
  const auto low = static_cast<float>(log2_gamma - double{high});
  const float rest = exp2f(low);
  const float gamma = exp2f(high) * rest;
  const float gamma_to_end = exp2f(static_cast<float>(gates.log2_gamma_at_end - log2_gamma));
  gates.log2_gamma_high[row] = high;
  gates.key_column[row] = k.inverse / rest;
  gates.query_row[row] = a.scale * q.inverse * rest;
  gates.key_row[row] = out.erase * k.inverse * rest;
  gates.mix_row[row] = out.erase * out.mix * q.inverse * rest;
  factors += row;
  factors[kScaleGammaQ * kChunk] = a.scale * gamma * q.inverse;
  factors[kEraseGammaK * kChunk] = out.erase * gamma * k.inverse;
  factors[kEraseGammaMixQ * kChunk] = out.erase * gamma * out.mix * q.inverse;
  factors[kWrite * kChunk] = out.write;
  factors[kGammaToEndK * kChunk] = gamma_to_end * k.inverse;
  factors[kGamma * kChunk] = gamma;
  factors[kLog2GammaHigh * kChunk] = high;
  factors[kLog2GammaLow * kChunk] = low;
  factors[kErase * kChunk] = out.erase;
  factors[kMix * kChunk] = out.mix;
  factors[kInvNormQ * kChunk] = q.inverse;
  factors[kInvNormK * kChunk] = k.inverse;
  factors[kG * kChunk] = in.g;
  factors[kBeta * kChunk] = in.beta;
  factors[kLambda * kChunk] = in.lambda;
  factors[kKDotK * kChunk] = in.k_dot_k;
}

// ---------------------------------------------------------------------------------------------------------------------
// The matrices, the warp's 16 rows of each.

// Q K^T and K K^T. Without wgmma up to the block on the diagonal.
template <class E, int kKeyDim>
__device__ inline void multiply_keys(Accumulator (&qk)[8], Accumulator (&kk)[8], const Tile<E, kChunk, kKeyDim>& q,
                                     const Tile<E, kChunk, kKeyDim>& k, int warp, const Lane& lane) {
  if constexpr (kUsesWgmma<E>) {
    mma_fence<E>(qk, kk);
#pragma unroll
    for (int inner = 0; inner < kKeyDim; inner += 16) {
      const std::uint64_t keys = wgmma_descriptor<false>(k, 0, inner);
      wgmma<kChunk>(qk, wgmma_descriptor<false>(q, 0, inner), keys);
      wgmma<kChunk>(kk, keys, keys);
    }
    mma_commit_and_wait<E>(qk, kk);
  } else {
    for (int inner = 0; inner < kKeyDim; inner += 16) {
      const FragmentA<E> q_rows = load_a(q, kBlock * warp, inner, lane);
      const FragmentA<E> k_rows = load_a(k, kBlock * warp, inner, lane);
#pragma unroll
      for (int n = 0; n < kWarps; ++n) {
        if (n > warp) break;
        const FragmentBPair<E> keys = load_b(k, 16 * n, inner, lane);
        mma(qk[2 * n], qk[2 * n + 1], q_rows, keys);
        mma(kk[2 * n], kk[2 * n + 1], k_rows, keys);
      }
    }
  }
}

// From 16 columns of Q K^T and K K^T to those of A_qk and A: row r, column i are the products by the norms and the
// decay from i to r, gamma_r / gamma_i. Zeros above the diagonal; A has something on it that nobody reads.
__device__ inline void to_chunk_block(Accumulator* qk, Accumulator* kk, const ChunkGates& gates, int warp, int n,
                                      const Lane& lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = kBlock * warp + lane.row(half);
    const float high = gates.log2_gamma_high[r];
    const float query_row = gates.query_row[r];
    const float key_row = gates.key_row[r];
    const float mix_row = gates.mix_row[r];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = 16 * n + lane.pair(j);
      const float2 highs = *reinterpret_cast<const float2*>(gates.log2_gamma_high + i);
      const float2 columns = *reinterpret_cast<const float2*>(gates.key_column + i);
      const float decays[2] = {exp2_approx(high - highs.x) * columns.x, exp2_approx(high - highs.y) * columns.y};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float decay = i + e <= r ? decays[e] : 0.0F;
        float& q_product = qk[j].x[2 * half + e];
        float& k_product = kk[j].x[2 * half + e];
        k_product = decay * (key_row * k_product + mix_row * q_product);
        q_product *= decay * query_row;
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------

// q and k, then in the same memory A and T. A_qk T passes through that of A on its way to the workspace.
template <class E, int kKeyDim>
struct PrepareMemory {
  using Keys = Tile<E, kChunk, kKeyDim>;
  static constexpr int kTileBytes = 2 * Keys::kElements * static_cast<int>(sizeof(E));
  static constexpr int kMatrixBytes = 2 * BlockMatrix<E>::kBytes;
  static constexpr int kBytes = kTileBytes > kMatrixBytes ? kTileBytes : kMatrixBytes;
  E* data;

  [[nodiscard]] __device__ Keys q() const { return {data}; }
  [[nodiscard]] __device__ Keys k() const { return {data + Keys::kElements}; }
  [[nodiscard]] __device__ BlockMatrix<E> A() const { return {data}; }
  [[nodiscard]] __device__ BlockMatrix<E> T() const { return {data + BlockMatrix<E>::kParts * kChunkMatrix}; }
};

struct KeyMaps {
  TensorMap q, k;
};

// Brings q and k of a chunk: begin(), then after a barrier of the block wait(). By all threads ...
template <class E, int kKeyDim>
class ThreadCopies {
 public:
  using Tiles = PrepareMemory<E, kKeyDim>;
  __device__ explicit ThreadCopies(const KeyMaps& /*maps*/) {}
  __device__ void begin(const PrepareArgs& a, const KeyMaps& /*maps*/, const ChunkRange& range, int head,
                        const Tiles& tiles) {
    load_tile<kThreads>(tiles.q(), chunk_rows(a.q, range, head), range.tokens, a.dims.key_dim);
    load_tile<kThreads>(tiles.k(), chunk_rows(a.k, range, head), range.tokens, a.dims.key_dim);
    cp_async_commit();
  }
  // Before the barrier, then after it.
  __device__ void finish_own() {
    cp_async_wait<0>();
    fence_async_proxy();
  }
  __device__ void wait(const PrepareArgs& /*a*/, const ChunkRange& /*range*/, const Tiles& /*tiles*/) {}
};
// ... or by the copy engine, in bf16.
template <int kKeyDim>
class EngineCopies {
 public:
  using Tiles = PrepareMemory<bf16, kKeyDim>;
  __device__ explicit EngineCopies(const KeyMaps& maps) : there_(barrier()) {
    if (!is_issuer()) return;
    prefetch_map(maps.q);
    prefetch_map(maps.k);
    there_.init(1);
  }
  __device__ void begin(const PrepareArgs& a, const KeyMaps& maps, const ChunkRange& range, int head,
                        const Tiles& tiles) {
    if (!is_issuer()) return;
    there_.expect(Tiles::kTileBytes);
#pragma unroll
    for (int panel = 0; panel < kKeyDim / kBlockV; ++panel) {
      const BoxOrigin at{panel * kBlockV, static_cast<int>(range.first), head, static_cast<int>(range.batch)};
      copy_box(tiles.q().data + panel * kChunk * kBlockV, maps.q, at, there_);
      copy_box(tiles.k().data + panel * kChunk * kBlockV, maps.k, at, there_);
    }
  }
  __device__ void finish_own() {}
  __device__ void wait(const PrepareArgs& a, const ChunkRange& range, const Tiles& tiles) {
    there_.wait(0);
    // Behind the end of a packed sequence are the tokens of the next one, where there should be zeros.
    if (a.chunks.cu_seqlens == nullptr || range.tokens == kChunk) return;
    clear_rows(tiles.q(), range.tokens, 0, kThreads);
    clear_rows(tiles.k(), range.tokens, 0, kThreads);
    fence_async_proxy();
    __syncthreads();
  }

 private:
  static __device__ bool is_issuer() { return threadIdx.x == kThreads - 32; }  // of the warp that has no gate to load
  static __device__ CopyBarrier& barrier() {
    __shared__ CopyBarrier there;
    return there;
  }
  CopyBarrier& there_;
};

// As many as hide each other's latencies and fit the registers without spills.
template <class E, int kKeyDim>
constexpr int kMinBlocksPerSm = !kIsBf16<E>      ? 1
                                : kKeyDim <= 128 ? 5
                                                 : 3;

template <class E, int kKeyDim, class Copies>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerSm<E, kKeyDim>)
    prepare_kernel(const PrepareArgs a, const __grid_constant__ KeyMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory_bytes[];
  __shared__ ChunkGates gates;
  __shared__ DiagonalBlocks diagonal;
  const PrepareMemory<E, kKeyDim> memory{reinterpret_cast<E*>(memory_bytes)};
  const BlockMatrix<E> A = memory.A();
  const BlockMatrix<E> T = memory.T();
  const Lane lane;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int slot = static_cast<int>(blockIdx.x);
  const int chunk = slot / a.dims.value_heads;
  const int head = slot - chunk * a.dims.value_heads;
  ptx::let_next_begin();
  Copies copies(maps);
  if (a.chunks.has_tables()) ptx::wait_for_previous();  // for what makes them
  const ChunkRange range = chunk_range(a.chunks, chunk);
  ptx::wait_for_previous();

  copies.begin(a, maps, range, head / a.dims.group_size, memory);
  load_gates(a, range, head, gates, warp, lane);
  copies.finish_own();
  __syncthreads();
  copies.wait(a, range, memory);

  const RowNorm q_norm = row_norm(memory.q(), a.qk_l2norm, warp, lane);
  const RowNorm k_norm = row_norm(memory.k(), a.qk_l2norm, warp, lane);
  if (lane.index < kBlock) {
    write_factors(a, q_norm, k_norm, range.tokens, a.out.factors + std::int64_t{slot} * (kFactors * kChunk), gates,
                  kBlock * warp + lane.index);
  }
  Accumulator qk[8], kk[8];
  multiply_keys(qk, kk, memory.q(), memory.k(), warp, lane);
  __syncthreads();  // the tiles have been read, the gates written

#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    Accumulator* const from_q = qk + 2 * n;
    Accumulator* const from_k = kk + 2 * n;
    if (n > warp) {
      from_q[0] = from_q[1] = {};
      continue;
    }
    to_chunk_block(from_q, from_k, gates, warp, n, lane);
    n < warp ? A.set(warp, n, split_block<E>(from_k[0], from_k[1]), lane) : diagonal.set(warp, from_k, lane);
  }
  if (a.erases) invert_unit_lower(A, diagonal, T, warp, lane);
  SplitBlock<E> A_qk[kBlocks];
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) A_qk[n] = split_block<E>(qk[2 * n], qk[2 * n + 1]);
  if (a.erases) {
    fence_async_proxy();
    __syncthreads();
    store_row(a.out.T, slot, T, warp, lane);
    Accumulator A_qkT[kChunk / 8];
    mma_blocks(A_qkT, A_qk, T, lane);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) A_qk[n] = split_block<E>(A_qkT[2 * n], A_qkT[2 * n + 1]);
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) A.set(warp, n, A_qk[n], lane);
  store_row(a.out.A_qkT, slot, A, warp, lane);
  wait_for_row();
}

template <class E, int kKeyDim, class Copies>
void launch(const Context& context, const PrepareArgs& args, const KeyMaps& maps) {
  constexpr int kMemory = PrepareMemory<E, kKeyDim>::kBytes;
  const auto kernel = prepare_kernel<E, kKeyDim, Copies>;
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), kMemory);
  const auto blocks = static_cast<unsigned>(args.chunks.total * args.dims.value_heads);
  launch_overlapped(context, "recurrence prepare", kernel, blocks, kThreads, kMemory, args, maps);
}

template <int kKeyDim>
void launch_key_dim(const Context& context, const PrepareArgs& args, bool bf16_operands) {
  const auto fits = [](const TokensIn& tensor) { return tensor.bf16 && tensor.aligned16; };
  if (!bf16_operands) return launch<float, kKeyDim, ThreadCopies<float, kKeyDim>>(context, args, {});
  if (!has_tensor_copies(context) || !fits(args.q) || !fits(args.k))
    return launch<bf16, kKeyDim, ThreadCopies<bf16, kKeyDim>>(context, args, {});
  const TensorExtents keys{args.dims.key_dim, args.tokens, args.dims.heads, args.batch};
  launch<bf16, kKeyDim, EngineCopies<kKeyDim>>(
      context, args, {.q = tensor_map(args.q, keys, kChunk), .k = tensor_map(args.k, keys, kChunk)});
}

}  // namespace

void launch_prepare(const Context& context, const PrepareArgs& args, bool bf16_operands) {
  switch (padded_key_dim(args.dims.key_dim)) {
    case 64:
      return launch_key_dim<64>(context, args, bf16_operands);
    case 128:
      return launch_key_dim<128>(context, args, bf16_operands);
    default:
      return launch_key_dim<kMaxKeyDim>(context, args, bf16_operands);
  }
}

}  // namespace qdelta::cuda
