// Device code of a step's products, whatever the number of rows (few_rows.cu, many_rows.cu):
//
//   y = after(add + before(x) w^T)
//
//   before   nothing; an RMS norm; a gated RMS norm per head
//   after    nothing; the causal convolution with its state, then silu, of the first outputs; silu(gate) up
//
// The bits of a row do not depend on the rows beside it, nor on which kernel computes it, because both sum up alike:
// the inner dimension has kSlices slices; a slice is the sum of two, over its even and its odd steps of kStep elements;
// then come the slices in order. The elements of a step are added at once, whatever the matrix instruction (m16n8k16,
// wgmma: seen on an H200).
#pragma once

#include "kernels/cuda/evicted_inputs.cuh"
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/steps.h"

namespace qdelta::cuda {

inline constexpr int kStep = 16;  // inner elements of a matrix instruction
inline constexpr int kSlices = 8;
inline constexpr int kFewOutputs = 2048;  // below it blocks have smaller tiles
inline constexpr int kMostTaps = 4;       // of the convolution
inline constexpr int kHeadPacks = 2;      // of 8 elements: what a lane has of a head's row in a gated norm

enum class Before { nothing, norm, gated_norm };
enum class After {
  nothing,
  conv,
  swiglu,
  rounded_swiglu  // of gate and up as they would be in memory, in bfloat16
};
template <After kAfter>
inline constexpr bool kIsSwiglu = kAfter == After::swiglu || kAfter == After::rounded_swiglu;

struct StepProductArgs {
  const void* x;  // float32 before a norm, else bfloat16
  std::int64_t x_ld;
  const float* norm_weight;
  float epsilon;
  const bf16* gate;  // of a gated norm; may be null
  std::int64_t gate_ld;
  int heads, head_width;
  GateActivation activation;
  bf16* normed;  // where rows are normalised in a kernel of their own
  std::int64_t normed_ld;

  const bf16* w;
  std::int64_t w_ld;
  int rows, inner, outputs;  // outputs: of silu(gate) up the rows of gate, those of up follow
  int slice_width;           // of the inner dimension, a multiple of 2 kStep

  Rows<RuntimeType> add, y;

  int channels, taps;  // of the convolution
  const float* conv_weight;
  float* conv_state;
  std::int64_t conv_state_stride, conv_state_ld, conv_pool;
  EvictedInputs evicted;
  const std::int64_t* slots;  // null: row r has state r
  Rows<RuntimeType> conv_y;
};

// Before -------------------------------------------------------------------------------------------------------------

__device__ inline void store_normed(const float4& x, const float4& w, float s, bf16* to) {
  const bf16 y[4] = {bf16(x.x * s * norm_weight(w.x)), bf16(x.y * s * norm_weight(w.y)),
                     bf16(x.z * s * norm_weight(w.z)), bf16(x.w * s * norm_weight(w.w))};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(y);
}

// Rows from `first` on, kRows of them where there are as many, to `to`. All threads of a block of kBlockThreads have a
// part of each row; of a single row the first of it stays in registers between the two passes.
template <int kRows>
__device__ void normalise(const StepProductArgs& a, int first_row, float (*sums)[kRows], bf16* to, std::int64_t to_ld) {
  constexpr int kWarps = kBlockThreads / 32;
  constexpr bool kKept = kRows == 1;
  const auto row = [&](int r) { return static_cast<const float*>(a.x) + (first_row + r) * a.x_ld; };
  const auto weight = [&](int c) { return *reinterpret_cast<const float4*>(a.norm_weight + c); };
  const int first = static_cast<int>(threadIdx.x) * 4;
  float4 kept{};
  float4 kept_weight{};
  if (kKept && first < a.inner) kept_weight = weight(first);
  float squares[kRows] = {};
  for (int c = first; c < a.inner; c += kBlockThreads * 4) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= a.rows) continue;
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
    if (first_row + r >= a.rows) continue;
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
      store_normed(x, w, s, to + r * to_ld + c);
    }
  }
}

// Head `head` of row r, by a warp, to its place in `to`.
__device__ inline void normalise_head(const StepProductArgs& a, int r, int head, bf16* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = head * a.head_width;
  Pack<bf16, 8> x[kHeadPacks];
  Pack<bf16, 8> z[kHeadPacks];
  Pack<float, 8> weights[kHeadPacks];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kHeadPacks; ++p) {
    const int c = (lane + p * 32) * 8;
    if (c >= a.head_width) continue;
    weights[p] = *reinterpret_cast<const Pack<float, 8>*>(a.norm_weight + c);
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
    Pack<bf16, 8> y;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float value = x[p][e] * s * norm_weight(weights[p][e]);
      if (a.gate != nullptr) value *= gate_factor(a.activation, z[p][e]);
      y.values[e] = bf16(value);
    }
    *reinterpret_cast<Pack<bf16, 8>*>(to + first + c) = y;
  }
}

// After --------------------------------------------------------------------------------------------------------------

// The convolution of one channel of one row.
struct ConvTap {
  float* state = nullptr;  // its oldest input
  EvictedChannel evicted;
  float before[kMostTaps - 1] = {};
  float weights[kMostTaps] = {};

  ConvTap() = default;
  __device__ ConvTap(const StepProductArgs& a, int r, int c) {
    if (r >= a.rows || c >= a.channels) return;
    const std::int64_t slot = a.slots == nullptr ? r : a.slots[r];
    if (a.conv_state != nullptr && slot >= 0 && slot < a.conv_pool) {
      state = a.conv_state + slot * a.conv_state_stride + c;
      evicted = EvictedChannel(a.evicted, slot, c);
    }
#pragma unroll
    for (int j = 0; j < kMostTaps; ++j) {
      if (j < a.taps) weights[j] = a.conv_weight[c * a.taps + j];
      if (j + 1 < a.taps && state != nullptr) before[j] = state[j * a.conv_state_ld];
    }
  }
  // silu of the convolution at x, which then is the newest input of the state.
  __device__ float next(const StepProductArgs& a, float x) {
    if (evicted) evicted.push(a.evicted, before[0]);
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

// What comes of output o of row r, whose product is `value`; of silu(gate) up `value` is gate's.
template <After kAfter>
__device__ void store_output(const StepProductArgs& a, int r, int o, ConvTap& tap, float value, float up, float add) {
  if constexpr (kAfter == After::swiglu) value *= sigmoid(value) * up;
  if constexpr (kAfter == After::rounded_swiglu) {  // as in swiglu.cu
    const auto gate = static_cast<float>(bf16(value));
    value = gate * sigmoid(gate) * static_cast<float>(bf16(up));
  }
  if constexpr (kAfter == After::conv) {
    if (o < a.channels) return a.conv_y.set(r * a.conv_y.ld + o, tap.next(a, static_cast<float>(bf16(value))));
  }
  a.y.set(r * a.y.ld + o, value + add);
}

// Host ---------------------------------------------------------------------------------------------------------------

// At most kFewRows rows; `before` in the same launch. few_rows_shared: the shared memory of a block.
inline constexpr int kMostFewRowsShared = 96 << 10;
std::size_t few_rows_shared(std::int64_t rows, std::int64_t inner);
void few_rows_product(const Context& context, Before before, After after, const StepProductArgs& a);
// Any number of rows, nothing before; a convolution after it of at most kConvRows. Compute capability 9.0a.
inline constexpr int kConvRows = 32;
void many_rows_product(const Context& context, After after, const StepProductArgs& a);

}  // namespace qdelta::cuda
