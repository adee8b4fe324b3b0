// Everything of a chunk that does not involve v, one block for each chunk and value head:
//
//   G      the running sum of the log decays         Gamma[r][i] = exp(G_r - G_i) for i <= r
//   attend = lower(scale Gamma . Q K^T)              the diagonal included
//   read   = strictLower(Gamma . X K^T)              X = K + diag(mix) Q
//   T      = (I + diag(erase) read)^-1
//
// and the factors of its tokens. Q and K are taken as they are; the norms multiply the products, in float32. The
// inverse is taken of the decayed matrix: its entries are those of the recurrence itself, while without the decay they
// may overflow where the recurrence does not.
#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda {
namespace {

constexpr int kThreads = 128;
// A token that decays by more than this forgets everything: in float32 exp of it is zero. Infinite decays become
// finite, so that differences of sums exist, and what comes after a total decay keeps its digits.
constexpr float kTotalDecay = -120.0F;
constexpr double kLog2E = 1.4426950408889634;  // G is kept in units of log 2

// Rows of a float matrix, far enough apart that eight of them lie in different banks.
constexpr int kStride = kChunk + 4;

struct ChunkGates {
  alignas(16) float high[kChunk];
  float low[kChunk];  // G = high + low
  float q_norm[kChunk], k_norm[kChunk], k_square[kChunk];
  float erase[kChunk], mix[kChunk];
};

// The sum of the squares of a row, by four lanes.
template <class E, int kKeys>
__device__ float row_square(const Tile<E, kChunk, kKeys>& tile, int row, const Lane& lane) {
  constexpr int kUnit = Tile<E, kChunk, kKeys>::kUnit;
  float sum = 0;
#pragma unroll 4
  for (int column = kUnit * lane.quad; column < kKeys; column += 4 * kUnit) {
    const uint4 unit = *reinterpret_cast<const uint4*>(tile.at(row, column));
#pragma unroll
    for (const std::uint32_t word : {unit.x, unit.y, unit.z, unit.w}) {
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
// The same in double, for rows whose squares need not be floats.
template <class E, int kKeys>
__device__ double long_row_square(const Tile<E, kChunk, kKeys>& tile, int row) {
  double sum = 0;
  for (int column = 0; column < kKeys; column += 2) {
    const float2 pair = pair_at(tile, row, column);
    sum += double{pair.x} * double{pair.x} + double{pair.y} * double{pair.y};
  }
  return sum;
}

template <class E, int kKeys>
__device__ void norms(const PrepareArgs& a, const Tile<E, kChunk, kKeys>& q, const Tile<E, kChunk, kKeys>& k,
                      ChunkGates& gates, int warp, const Lane& lane) {
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * warp + 8 * i + lane.group;
    const float q_square = row_square(q, row, lane);
    const float k_square = row_square(k, row, lane);
    if (lane.quad == 0) {
      float q_norm = 1;
      float k_norm = 1;
      float square = k_square;
      if (a.norm) {
        const double q_sum = isfinite(q_square) ? q_square : long_row_square(q, row);
        const double k_sum = isfinite(k_square) ? k_square : long_row_square(k, row);
        q_norm = static_cast<float>(rsqrt(q_sum + kNormEpsilon));
        k_norm = static_cast<float>(rsqrt(k_sum + kNormEpsilon));
        square = static_cast<float>(k_sum / (k_sum + kNormEpsilon));
      }
      gates.q_norm[row] = q_norm;
      gates.k_norm[row] = k_norm;
      gates.k_square[row] = square;
    }
  }
}

// The rule and the running sum of the decays, by one warp, two neighbouring tokens to a lane.
__device__ void gates_of(const PrepareArgs& a, const ChunkPlace& place, int head, float* factors, ChunkGates& gates,
                         const Lane& lane) {
  RuleInputs<float> in[2];
  RuleOutputs<float> out[2];
  double sum = 0;
  double g[2];
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane.index + i;
    if (row < place.rows) {
      in[i] = {gate_at(a.g, place, head, row), gate_at(a.beta, place, head, row), gate_at(a.lambda, place, head, row),
               gates.k_square[row]};
      out[i] = rule_forward(a.rule, in[i]);
    } else {
      in[i] = {};
      out[i] = {};  // a token that changes nothing
    }
    g[i] = kLog2E * double{out[i].log_decay < kTotalDecay ? kTotalDecay : out[i].log_decay};
    sum += g[i];
  }
  double before = sum;  // up to and with this lane, for now
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
    gates.high[row] = high;
    gates.low[row] = static_cast<float>(here - double{high});
    gates.erase[row] = out[i].erase;
    gates.mix[row] = out[i].mix;
    const float decay = exp2f(static_cast<float>(here));
    const float to_end = exp2f(static_cast<float>(total - here));
    const float q_norm = gates.q_norm[row];
    const float k_norm = gates.k_norm[row];
    factors[kReadOut * kChunk + row] = a.scale * decay * q_norm;
    factors[kReadKey * kChunk + row] = out[i].erase * decay * k_norm;
    factors[kReadQuery * kChunk + row] = out[i].erase * decay * out[i].mix * q_norm;
    factors[kWrite * kChunk + row] = out[i].write;
    factors[kToEnd * kChunk + row] = to_end * k_norm;
    factors[kDecay * kChunk + row] = decay;
    factors[kReadBoth * kChunk + row] = out[i].mix * q_norm / k_norm;
    factors[kLogHigh * kChunk + row] = high;
    factors[kLogLow * kChunk + row] = gates.low[row];
    factors[kErase * kChunk + row] = out[i].erase;
    factors[kMix * kChunk + row] = out[i].mix;
    factors[kQueryNorm * kChunk + row] = q_norm;
    factors[kKeyNorm * kChunk + row] = k_norm;
    factors[kG * kChunk + row] = in[i].g;
    factors[kBeta * kChunk + row] = in[i].beta;
    factors[kLambda * kChunk + row] = in[i].lambda;
    factors[kKeySquare * kChunk + row] = gates.k_square[row];
  }
}

// Two neighbours of a matrix, in as many parts as its operands have.
__device__ inline void store_pair(bf16* to, float first, float second) {
  const std::uint32_t upper = pack(first, second);
  *reinterpret_cast<std::uint32_t*>(to) = upper;
  *reinterpret_cast<std::uint32_t*>(to + kMatrix) = pack(first - low_half(upper), second - high_half(upper));
}
__device__ inline void store_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = {first, second};
}

__device__ inline void store_four(bf16* to, const float4& x) {
  const uint2 upper{pack(x.x, x.y), pack(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = upper;
  *reinterpret_cast<uint2*>(to + kMatrix) = {pack(x.x - low_half(upper.x), x.y - high_half(upper.x)),
                                             pack(x.z - low_half(upper.y), x.w - high_half(upper.y))};
}
__device__ inline void store_four(float* to, const float4& x) { *reinterpret_cast<float4*>(to) = x; }

// The inverses of the four 16 x 16 blocks on the diagonal of I + A: a column for each of the first 64 threads, by
// substitution.
__device__ void invert_diagonal(const float* A, float* T) {
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

// out[rows][columns] = sign left[rows][inner] right[inner][columns] for kBlock x kBlock matrices whose elements are
// kTall x 4 to a thread; `thread` counts within the product.
template <int kBlock, int kTall>
__device__ void block_product(float sign, const float* left, const float* right, float* out, int thread) {
  constexpr int kAcross = kBlock / 4;
  const int row = thread / kAcross * kTall;
  const int column = thread % kAcross * 4;
  float sum[kTall][4] = {};
#pragma unroll 8
  for (int i = 0; i < kBlock; ++i) {
    const float4 r = *reinterpret_cast<const float4*>(right + i * kStride + column);
#pragma unroll
    for (int j = 0; j < kTall; ++j) {
      const float l = left[(row + j) * kStride + i];
      sum[j][0] += l * r.x, sum[j][1] += l * r.y, sum[j][2] += l * r.z, sum[j][3] += l * r.w;
    }
  }
#pragma unroll
  for (int j = 0; j < kTall; ++j) {
    *reinterpret_cast<float4*>(out + (row + j) * kStride + column) = {sign * sum[j][0], sign * sum[j][1],
                                                                      sign * sum[j][2], sign * sum[j][3]};
  }
}

// T = (I + A)^-1, A strictly lower: the diagonal blocks, then twice [T1 0; -T2 A21 T1  T2]. The upper right of T is
// scratch space in between.
__device__ void invert(const float* A, float* T) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kChunk) invert_diagonal(A, T);
  __syncthreads();
  {
    // Two blocks, 64 threads for each.
    const int at = thread / 64 * 32;
    const int mine = thread % 64;
    const float* a21 = A + (at + 16) * kStride + at;
    float* t1 = T + at * kStride + at;
    float* t2 = T + (at + 16) * kStride + at + 16;
    float* corner = T + at * kStride + at + 16;
    block_product<16, 1>(1.0F, a21, t1, corner, mine);
    __syncthreads();
    block_product<16, 1>(-1.0F, t2, corner, T + (at + 16) * kStride + at, mine);
    __syncthreads();
    for (int i = mine; i < 256; i += 64) corner[i / 16 * kStride + i % 16] = 0.0F;
    __syncthreads();
  }
  float* corner = T + 32;
  block_product<32, 2>(1.0F, A + 32 * kStride, T, corner, thread);
  __syncthreads();
  block_product<32, 2>(-1.0F, T + 32 * kStride + 32, corner, T + 32 * kStride, thread);
  __syncthreads();
  for (int i = thread; i < 32 * 32; i += kThreads) corner[i / 32 * kStride + i % 32] = 0.0F;
  __syncthreads();
}

template <class E, int kKeys>
constexpr int prepare_memory() {
  const int tiles = 2 * Tile<E, kChunk, kKeys>::kElements * static_cast<int>(sizeof(E));
  const int matrices = 2 * kChunk * kStride * static_cast<int>(sizeof(float));
  return tiles > matrices ? tiles : matrices;
}

template <class E, int kKeys>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const PrepareArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ ChunkGates gates;
  const Tile<E, kChunk, kKeys> q{reinterpret_cast<E*>(memory)};
  const Tile<E, kChunk, kKeys> k{q.data + kChunk * kKeys};
  // In the place of the tiles, once these are used up.
  auto* A = reinterpret_cast<float*>(memory);
  float* T = A + kChunk * kStride;
  const Lane lane;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t slot = blockIdx.x;
  const int head = static_cast<int>(slot % a.dims.value_heads);
  const int q_head = head / a.dims.shared;
  const ChunkPlace place = place_of(a.chunks, slot / a.dims.value_heads);

  load_tile<kThreads>(q, rows_of(a.q, place, q_head), place.rows, a.dims.keys);
  load_tile<kThreads>(k, rows_of(a.k, place, q_head), place.rows, a.dims.keys);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  norms(a, q, k, gates, warp, lane);
  __syncthreads();
  if (warp == 0) gates_of(a, place, head, a.out.factors + slot * (kFactors * kChunk), gates, lane);

  // A warp's 16 rows of Q K^T and K K^T, up to the diagonal.
  Sum qk[8], kk[8];
  for (int inner = 0; inner < kKeys; inner += 16) {
    const FragmentA<E> q_rows = load_a(q, 16 * warp, inner, lane);
    const FragmentA<E> k_rows = load_a(k, 16 * warp, inner, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > warp) break;
      const WideB<E> keys = load_b(k, 16 * n, inner, lane);
      multiply_add(qk[2 * n], qk[2 * n + 1], q_rows, keys);
      if (a.erases) multiply_add(kk[2 * n], kk[2 * n + 1], k_rows, keys);
    }
  }
  __syncthreads();  // the tiles are used up, the gates are there

  constexpr int kParts = matrix_parts(kIsBf16<E>);
  auto* attend = static_cast<E*>(a.out.attend) + slot * kParts * kMatrix;
  E* read = a.out.read == nullptr ? nullptr : static_cast<E*>(a.out.read) + slot * kParts * kMatrix;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 16 * warp + 8 * half + lane.group;
    const float high = gates.high[r];
    const float low = gates.low[r];
    const float q_norm = gates.q_norm[r];
    const float k_norm = gates.k_norm[r];
    const float mix = gates.mix[r];
    const float erase = gates.erase[r];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j > 2 * warp + 1) break;
      const int i = 8 * j + 2 * lane.quad;
      const float2 highs = *reinterpret_cast<const float2*>(gates.high + i);
      const float2 lows = *reinterpret_cast<const float2*>(gates.low + i);
      const float2 norms = *reinterpret_cast<const float2*>(gates.k_norm + i);
      const float along[2] = {i <= r ? exp2f((high - highs.x) + (low - lows.x)) * norms.x : 0.0F,
                              i + 1 <= r ? exp2f((high - highs.y) + (low - lows.y)) * norms.y : 0.0F};
      float attends[2], reads[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float q_product = along[e] * q_norm * qk[j].x[2 * half + e];
        const float k_product = along[e] * k_norm * kk[j].x[2 * half + e];
        attends[e] = a.scale * q_product;
        reads[e] = i + e < r ? k_product + mix * q_product : 0.0F;
      }
      store_pair(attend + r * kChunk + i, attends[0], attends[1]);
      if (a.erases) {
        if (read != nullptr) store_pair(read + r * kChunk + i, reads[0], reads[1]);
        store_pair(A + r * kStride + i, erase * reads[0], erase * reads[1]);
      }
    }
  }
  if (!a.erases) return;
  __syncthreads();
  invert(A, T);
  auto* inverse = static_cast<E*>(a.out.inverse) + slot * kParts * kMatrix;
#pragma unroll 4
  for (int i = 4 * static_cast<int>(threadIdx.x); i < kMatrix; i += 4 * kThreads) {
    const int row = i / kChunk;
    const int column = i % kChunk;
    if (column / 16 > row / 16) continue;
    store_four(inverse + i, *reinterpret_cast<const float4*>(T + row * kStride + column));
  }
}

// The tables of packed sequences, by one block.
__global__ void locate_kernel(const Chunks chunks) {
  if (threadIdx.x == 0) {
    std::int64_t sum = 0;
    for (std::int64_t n = 0; n < chunks.sequences; ++n) {
      chunks.first[n] = sum;
      sum += (chunks.offsets[n + 1] - chunks.offsets[n] + kChunk - 1) / kChunk;
    }
    chunks.first[chunks.sequences] = sum;
  }
  __syncthreads();
  for (std::int64_t n = threadIdx.x; n < chunks.sequences; n += blockDim.x) {
    for (std::int64_t c = chunks.first[n]; c < chunks.first[n + 1]; ++c) chunks.owner[c] = static_cast<std::int32_t>(n);
  }
}

template <class E, int kKeys>
void launch(const Context& context, const PrepareArgs& args) {
  constexpr int kMemory = prepare_memory<E, kKeys>();
  allow_shared_memory(context, reinterpret_cast<const void*>(prepare_kernel<E, kKeys>), kMemory);
  const auto blocks = static_cast<unsigned>(args.chunks.total * args.dims.value_heads);
  prepare_kernel<E, kKeys><<<blocks, kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence prepare");
}

template <class E>
void launch_width(const Context& context, const PrepareArgs& args) {
  switch (padded_keys(args.dims.keys)) {
    case 64:
      return launch<E, 64>(context, args);
    case 128:
      return launch<E, 128>(context, args);
    default:
      return launch<E, kWidestKeys>(context, args);
  }
}

}  // namespace

void launch_prepare(const Context& context, const PrepareArgs& args, bool bf16_operands) {
  bf16_operands ? launch_width<bf16>(context, args) : launch_width<float>(context, args);
}

void launch_locate(const Context& context, const Chunks& chunks) {
  locate_kernel<<<1, 256, 0, context.stream()>>>(chunks);
  check_launch("recurrence locate");
}

}  // namespace qdelta::cuda
