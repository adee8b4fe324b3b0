// y = after(add + before(x) w^T) for a few rows, as decoding has them:
//
//   before   nothing; an RMS norm; a gated RMS norm per head
//   after    nothing; the causal convolution with its state, then silu, of the first outputs; silu(gate) up
//
// Bound by reading w once. A block has a tile of outputs (for silu(gate) up one of gate and the same of up), its warps
// share the inner dimension: a product of a tile with kStep inner elements is two m16n8k16 whose A are the weights as
// they lie in memory, 16 bytes of a row to a lane, and whose B are the rows of x, which are the columns of the product.
// The order of the inner elements within a step is thus not that of memory, but the same for A and B. Sums go over a
// warp's steps, then over the warps in order: a row's bits do not depend on the rows beside it.
//
// Weights, norm weights and the convolution's state do not come from the kernel ahead: the first of them are loaded
// into registers, the rest into L2, before it is waited for.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/steps.h"

namespace qdelta::cuda {
namespace {

constexpr int kWarps = kBlockThreads / 32;
constexpr int kStep = 32;      // inner elements of a warp at a time
constexpr int kMostTaps = 4;   // of the convolution
constexpr int kHeadPacks = 2;  // of 8 elements: what a lane has of a head's row in a gated norm
constexpr int kMostShared = 96 << 10;

enum class Before { nothing, norm, gated_norm };
enum class After { nothing, conv, swiglu };

struct FewRowsArgs {
  const void* x;  // float32 before a norm, else bfloat16
  std::int64_t x_ld;
  const float* norm_weight;
  float epsilon;
  const bf16* gate;  // of a gated norm; may be null
  std::int64_t gate_ld;
  int heads, head_width;
  GateActivation activation;

  const bf16* w;
  std::int64_t w_ld;
  int rows, inner, outputs;  // outputs: of silu(gate) up the rows of gate, those of up follow
  int x_stride;              // between the rows of x in shared memory

  Rows<RuntimeType> add, y;

  int channels, taps;  // of the convolution
  const float* conv_weight;
  float* conv_state;
  std::int64_t conv_state_stride, conv_state_ld, conv_pool;
  const std::int64_t* slots;  // null: row r has state r
  Rows<RuntimeType> conv_y;
};

// x as the product reads it, in shared memory ------------------------------------------------------------------------

__device__ void stage_rows(const FewRowsArgs& a, bf16* staged) {
  const int packs = a.inner / 8;
  for (int i = static_cast<int>(threadIdx.x); i < a.rows * packs; i += kBlockThreads) {
    const int r = i / packs;
    const int c = (i - r * packs) * 8;
    *reinterpret_cast<uint4*>(staged + r * a.x_stride + c) =
        *reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.x) + r * a.x_ld + c);
  }
}

__device__ void store_normed(const float4& x, const float4& w, float s, bf16* to) {
  const bf16 y[4] = {bf16(x.x * s * norm_weight(w.x)), bf16(x.y * s * norm_weight(w.y)),
                     bf16(x.z * s * norm_weight(w.z)), bf16(x.w * s * norm_weight(w.w))};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(y);
}

// All threads have a part of each row; of a single row the first of it stays in registers between the two passes.
template <int kRows>
__device__ void stage_normed(const FewRowsArgs& a, float (*sums)[kFewRows], bf16* staged) {
  constexpr bool kKept = kRows == 1;
  const auto row = [&](int r) { return static_cast<const float*>(a.x) + r * a.x_ld; };
  const auto weight = [&](int c) { return *reinterpret_cast<const float4*>(a.norm_weight + c); };
  const int first = static_cast<int>(threadIdx.x) * 4;
  float4 kept{};
  float4 kept_weight{};
  if (kKept && first < a.inner) kept_weight = weight(first);
  float squares[kRows] = {};
  for (int c = first; c < a.inner; c += kBlockThreads * 4) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= a.rows) continue;
      const float4 x = *reinterpret_cast<const float4*>(row(r) + c);
      if (kKept && c == first) kept = x;
      squares[r] += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    squares[r] = warp_sum(squares[r]);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][r] = squares[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= a.rows) continue;
    float sum = sums[0][r];
#pragma unroll
    for (int v = 1; v < kWarps; ++v) sum += sums[v][r];
    const float s = inverse_rms(sum, a.inner, a.epsilon);
    for (int c = first; c < a.inner; c += kBlockThreads * 4) {
      float4 x = kept;
      float4 w = kept_weight;
      if (!kKept || c != first) {
        x = *reinterpret_cast<const float4*>(row(r) + c);
        w = weight(c);
      }
      store_normed(x, w, s, staged + r * a.x_stride + c);
    }
  }
}

// A warp for each head of each row.
__device__ void stage_gated(const FewRowsArgs& a, bf16* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < a.rows * a.heads; i += kWarps) {
    const int r = i / a.heads;
    const int first = (i - r * a.heads) * a.head_width;
    Pack<bf16, 8> x[kHeadPacks];
    Pack<bf16, 8> z[kHeadPacks];
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kHeadPacks; ++p) {
      const int c = (lane + p * 32) * 8;
      if (c >= a.head_width) continue;
      x[p] = *reinterpret_cast<const Pack<bf16, 8>*>(static_cast<const bf16*>(a.x) + r * a.x_ld + first + c);
      if (a.gate != nullptr) z[p] = *reinterpret_cast<const Pack<bf16, 8>*>(a.gate + r * a.gate_ld + first + c);
    }
#pragma unroll
    for (int p = 0; p < kHeadPacks; ++p) {
      if ((lane + p * 32) * 8 >= a.head_width) continue;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += x[p][e] * x[p][e];
    }
    const float s = inverse_rms(warp_sum(sum), a.head_width, a.epsilon);
#pragma unroll
    for (int p = 0; p < kHeadPacks; ++p) {
      const int c = (lane + p * 32) * 8;
      if (c >= a.head_width) continue;
      const auto weight = *reinterpret_cast<const Pack<float, 8>*>(a.norm_weight + c);
      Pack<bf16, 8> y;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float value = x[p][e] * s * norm_weight(weight[e]);
        if (a.gate != nullptr) value *= gate_factor(a.activation, z[p][e]);
        y.values[e] = bf16(value);
      }
      *reinterpret_cast<Pack<bf16, 8>*>(staged + r * a.x_stride + first + c) = y;
    }
  }
}

// What is done to an output ------------------------------------------------------------------------------------------

// The convolution of one channel of one row.
struct ConvTap {
  float* state = nullptr;  // its oldest input
  float before[kMostTaps - 1] = {};
  float weights[kMostTaps] = {};

  ConvTap() = default;
  __device__ ConvTap(const FewRowsArgs& a, int r, int c) {
    if (r >= a.rows || c >= a.channels) return;
    const std::int64_t slot = a.slots == nullptr ? r : a.slots[r];
    if (a.conv_state != nullptr && slot >= 0 && slot < a.conv_pool) {
      state = a.conv_state + slot * a.conv_state_stride + c;
    }
#pragma unroll
    for (int j = 0; j < kMostTaps; ++j) {
      if (j < a.taps) weights[j] = a.conv_weight[c * a.taps + j];
      if (j + 1 < a.taps && state != nullptr) before[j] = state[j * a.conv_state_ld];
    }
  }
  // silu of the convolution at x, which then is the newest input of the state.
  __device__ float next(const FewRowsArgs& a, float x) const {
    float u = 0;
#pragma unroll
    for (int j = 0; j < kMostTaps; ++j) {
      if (j < a.taps) u = fmaf(weights[j], j + 1 < a.taps ? before[j < kMostTaps - 1 ? j : 0] : x, u);
    }
#pragma unroll
    for (int j = 0; j + 1 < kMostTaps; ++j) {
      if (j + 1 >= a.taps || state == nullptr) continue;
      state[j * a.conv_state_ld] = j + 2 < a.taps ? before[j + 1 < kMostTaps - 1 ? j + 1 : 0] : x;
    }
    return u * sigmoid(u);
  }
};

// The kernel ---------------------------------------------------------------------------------------------------------

// The rows of w that a block has at a time, kTile of them (8 or 16), and what a lane has of them in registers.
template <After kAfter, int kTile>
struct WeightTile {
  static constexpr int kOutputs = kAfter == After::swiglu ? kTile / 2 : kTile;
  static constexpr int kHalves = kTile / 8;  // rows of a lane
  static constexpr int kInFlight = 8 / kHalves;
  static constexpr int kLoaded = kInFlight * kWarps * kStep;  // columns that are in registers
  const FewRowsArgs& a;
  uint4 w[kInFlight][kHalves];

  __device__ explicit WeightTile(const FewRowsArgs& args) : a(args) {}
  [[nodiscard]] __device__ int count() const { return (a.outputs + kOutputs - 1) / kOutputs; }
  // Row `row` of a tile; null beyond the last.
  [[nodiscard]] __device__ const bf16* row_of(int tile, int row) const {
    const int o = tile * kOutputs + row % kOutputs;
    const int up = kAfter == After::swiglu && row >= kOutputs ? a.outputs : 0;
    return o < a.outputs ? a.w + (o + up) * a.w_ld : nullptr;
  }
  __device__ static int column_of(int j) {
    return (j * kWarps + static_cast<int>(threadIdx.x) / 32) * kStep + static_cast<int>(threadIdx.x) % 4 * 8;
  }
  // Steps from `from` on into registers.
  __device__ void load(int tile, int from) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const bf16* row = row_of(tile, half * 8 + static_cast<int>(threadIdx.x) % 32 / 4);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int c = column_of(from + j);
        w[j][half] = ptx::load_16_bytes(row + c, row != nullptr && c < a.inner);
      }
    }
  }
  // Columns from `from` on into L2.
  __device__ void prefetch(int tile, int from) const {
    if (threadIdx.x >= kTile || from >= a.inner) return;
    const bf16* row = row_of(tile, static_cast<int>(threadIdx.x));
    if (row != nullptr) ptx::prefetch_bytes(row + from, static_cast<unsigned>(a.inner - from) * sizeof(bf16));
  }
  // What begins a tile: its first columns into registers, the others and the tile after it into L2.
  __device__ void begin(int tile) {
    load(tile, 0);
    prefetch(tile, kLoaded);
    prefetch(tile + static_cast<int>(gridDim.x), 0);
  }
  // The products of the steps that are loaded, from `from` on.
  __device__ void multiply(int from, const bf16* staged, float (&products)[2][4]) const {
    const int group = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int c = column_of(from + j);
      uint4 x{};
      if (group < a.rows && c < a.inner) x = *reinterpret_cast<const uint4*>(staged + group * a.x_stride + c);
      const uint4 low = w[j][0];
      const uint4 high = kHalves == 2 ? w[j][kHalves - 1] : uint4{};
      ptx::mma_bf16(products[0], {low.x, high.x, low.y, high.y}, {x.x, x.y});
      ptx::mma_bf16(products[1], {low.z, high.z, low.w, high.w}, {x.z, x.w});
    }
  }
};

template <Before kBefore, int kRows>
__device__ void stage(const FewRowsArgs& a, float (*sums)[kFewRows], bf16* staged) {
  if constexpr (kBefore != Before::nothing) {
    const int width = kBefore == Before::norm ? a.inner : a.head_width;
    for (int c = static_cast<int>(threadIdx.x) * 8; c < width; c += kBlockThreads * 8) {
      ptx::prefetch(a.norm_weight + c);
    }
  }
  ptx::wait_for_previous();
  if constexpr (kBefore == Before::norm) {
    stage_normed<kRows>(a, sums, staged);
  } else if constexpr (kBefore == Before::gated_norm) {
    stage_gated(a, staged);
  } else {
    stage_rows(a, staged);
  }
  __syncthreads();
}

template <Before kBefore, After kAfter, int kTile, int kRows>
__global__ __launch_bounds__(kBlockThreads, kRows == 1 && kBefore != Before::gated_norm
                                                ? 3
                                                : 2) void few_rows_kernel(const __grid_constant__ FewRowsArgs a) {
  using Tile = WeightTile<kAfter, kTile>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float sums[kWarps][kFewRows];
  __shared__ float partials[2][kWarps][kTile][kFewRows];
  auto* staged = reinterpret_cast<bf16*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto stride = static_cast<int>(gridDim.x);
  ptx::let_next_begin();
  Tile weights(a);
  auto tile = static_cast<int>(blockIdx.x);
  weights.begin(tile);
  // The output and row that a thread stores in the end.
  const int own_output = static_cast<int>(threadIdx.x) % Tile::kOutputs;
  const int own_row = static_cast<int>(threadIdx.x) / Tile::kOutputs;
  ConvTap tap;
  if constexpr (kAfter == After::conv) tap = ConvTap(a, own_row, tile * Tile::kOutputs + own_output);
  stage<kBefore, kRows>(a, sums, staged);

  for (int turn = 0; tile < weights.count(); tile += stride, turn ^= 1) {
    const int o = tile * Tile::kOutputs + own_output;
    const bool stores = own_row < a.rows && o < a.outputs;
    float add = 0;
    if (kAfter == After::nothing && a.add.data != nullptr && stores) add = a.add.get(own_row * a.add.ld + o);
    float products[2][4] = {};
    for (int from = 0; from * kWarps * kStep < a.inner; from += Tile::kInFlight) {
      if (from > 0) weights.load(tile, from);
      weights.multiply(from, staged, products);
    }
    weights.begin(tile + stride);
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      partials[turn][warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = products[0][i] + products[1][i];
    }
    __syncthreads();
    if (!stores) continue;
    const auto total = [&](int row) {
      float sum = partials[turn][0][row][own_row];
#pragma unroll
      for (int v = 1; v < kWarps; ++v) sum += partials[turn][v][row][own_row];
      return sum;
    };
    float value = total(own_output);
    if constexpr (kAfter == After::swiglu) value *= sigmoid(value) * total(own_output + Tile::kOutputs);
    if constexpr (kAfter == After::conv) {
      if (o < a.channels) {
        a.conv_y.set(own_row * a.conv_y.ld + o, tap.next(a, value));
        tap = ConvTap(a, own_row, o + stride * Tile::kOutputs);
        continue;
      }
    }
    a.y.set(own_row * a.y.ld + o, value + add);
  }
}

// Host ---------------------------------------------------------------------------------------------------------------

// Rows of 16 bytes.
bool wide(const ConstTensorView& view) { return aligned(16 / static_cast<int>(size_of(view.dtype)), {view}); }

bool is_bf16(const ConstTensorView& view) { return view.dtype == DType::bf16; }

int x_stride(std::int64_t inner) {
  return static_cast<int>(round_up(inner, 64) + 32);  // rows begin in different banks
}

bool fits_before(const FewRowsProduct& p) {
  if (p.norm != nullptr) {
    return p.norm->x.dtype == DType::f32 && wide(p.norm->x) && wide(p.norm->weight) && !p.norm->inverse_rms;
  }
  if (p.gated_norm != nullptr) {
    const std::int64_t width = p.gated_norm->weight.shape.elements();
    return is_bf16(p.gated_norm->x) && wide(p.gated_norm->x) && width % 8 == 0 && width <= kHeadPacks * 256 &&
           (!p.gated_norm->gate || wide(p.gated_norm->gate)) &&
           reinterpret_cast<std::uintptr_t>(p.gated_norm->weight.data) % 32 == 0;
  }
  return wide(p.linear.x);
}

bool fits_after(const FewRowsProduct& p) {
  if (p.swiglu != nullptr) return !p.linear.add;
  if (p.conv == nullptr) return true;
  return !p.linear.add && !p.conv->bias && p.conv->weight.extent(1) <= kMostTaps &&
         (!p.conv->state || p.conv->state.dtype == DType::f32);
}

FewRowsArgs arguments(const FewRowsProduct& p) {
  FewRowsArgs a{};
  const ConstTensorView& x = p.norm != nullptr ? p.norm->x : p.gated_norm != nullptr ? p.gated_norm->x : p.linear.x;
  a.x = x.data;
  a.x_ld = x.step(0);
  if (p.norm != nullptr) {
    a.norm_weight = floats(p.norm->weight);
    a.epsilon = p.norm->epsilon;
  }
  if (p.gated_norm != nullptr) {
    a.norm_weight = floats(p.gated_norm->weight);
    a.epsilon = p.gated_norm->epsilon;
    a.gate = reinterpret_cast<const bf16*>(p.gated_norm->gate.data);
    a.gate_ld = p.gated_norm->gate ? p.gated_norm->gate.step(0) : 0;
    a.head_width = static_cast<int>(p.gated_norm->weight.shape.elements());
    a.heads = static_cast<int>(x.extent(1)) / a.head_width;
    a.activation = p.gated_norm->activation;
  }
  const ConstTensorView& w = p.linear.w;
  a.w = reinterpret_cast<const bf16*>(w.data);
  a.w_ld = w.step(0);
  a.rows = static_cast<int>(x.extent(0));
  a.inner = static_cast<int>(w.extent(1));
  a.outputs = static_cast<int>(p.swiglu != nullptr ? w.extent(0) / 2 : w.extent(0));
  a.x_stride = x_stride(a.inner);
  a.add = as_rows<RuntimeType>(p.linear.add);
  a.y = as_rows<RuntimeType>(p.swiglu != nullptr ? p.swiglu->y : p.linear.y);
  if (p.conv != nullptr) {
    const TensorView& state = p.conv->state;
    a.channels = static_cast<int>(p.conv->weight.extent(0));
    a.taps = static_cast<int>(p.conv->weight.extent(1));
    a.conv_weight = floats(p.conv->weight);
    a.conv_state = a.taps > 1 ? floats(state) : nullptr;
    if (state) {
      a.conv_state_stride = state.step(0);
      a.conv_state_ld = state.step(1);
      a.conv_pool = state.extent(0);
    }
    a.slots = p.conv->slots.data();
    a.conv_y = as_rows<RuntimeType>(p.conv->y);
  }
  return a;
}

template <Before kBefore, After kAfter, int kTile, int kRows>
void launch(const Context& context, const FewRowsArgs& a) {
  constexpr int kTileOutputs = kAfter == After::swiglu ? kTile / 2 : kTile;
  const auto kernel = few_rows_kernel<kBefore, kAfter, kTile, kRows>;
  const auto shared = static_cast<std::size_t>(a.rows) * static_cast<std::size_t>(a.x_stride) * sizeof(bf16);
  if (shared > (32 << 10)) {
    QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
  }
  const std::int64_t tiles = ceil_div(a.outputs, kTileOutputs);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, 4LL * context.sm_count()));
  launch_overlapped(context, "few_rows_product", kernel, blocks, kBlockThreads, shared, a);
}

template <Before kBefore, After kAfter, int kTile>
void dispatch_rows(const Context& context, const FewRowsArgs& a) {
  if (a.rows == 1) return launch<kBefore, kAfter, kTile, 1>(context, a);
  launch<kBefore, kAfter, kTile, kFewRows>(context, a);
}

// Tiles of 16 outputs, or of 8 where there would be few blocks.
template <Before kBefore>
void dispatch_tile(const Context& context, const FewRowsArgs& a) {
  if (a.outputs >= 32 * context.sm_count()) return dispatch_rows<kBefore, After::nothing, 16>(context, a);
  dispatch_rows<kBefore, After::nothing, 8>(context, a);
}

}  // namespace

bool fits_few_rows(const Context& context, const FewRowsProduct& p) {
  const ConstTensorView& w = p.linear.w;
  const std::int64_t rows = p.linear.x.extent(0);
  return rows >= 1 && rows <= kFewRows && is_bf16(p.linear.x) && is_bf16(w) && wide(w) && w.extent(0) > 0 &&
         w.extent(1) > 0 && w.extent(1) % 8 == 0 && w.shape.elements() < (std::int64_t{1} << 31) &&
         rows * x_stride(w.extent(1)) * std::int64_t{sizeof(bf16)} <=
             std::min<std::int64_t>(kMostShared, context.shared_memory() - (16 << 10)) &&
         fits_before(p) && fits_after(p);
}

void few_rows_product(const Context& context, const FewRowsProduct& p) {
  const FewRowsArgs a = arguments(p);
  if (p.conv != nullptr) return dispatch_rows<Before::norm, After::conv, 16>(context, a);
  if (p.swiglu != nullptr) return dispatch_rows<Before::norm, After::swiglu, 16>(context, a);
  if (p.norm != nullptr) return dispatch_tile<Before::norm>(context, a);
  if (p.gated_norm != nullptr) return dispatch_tile<Before::gated_norm>(context, a);
  dispatch_tile<Before::nothing>(context, a);
}

}  // namespace qdelta::cuda
