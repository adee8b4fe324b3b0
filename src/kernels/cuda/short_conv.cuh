// Device code and checks that the kernels of the short convolution share.
//
// A thread has N channels of a tile of tokens, one segment after the other: a segment is what the tile and one sequence
// have in common. The last W inputs are in registers, in rings, where token t of the segment has place t % W, so that
// none is moved; the next tokens are on their way. The tokens just before a tile (in the backward also those just after
// it) are read twice. Single tokens with a state (decoding) have a kernel of their own.
#pragma once

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/sequences.h"

namespace qdelta::cuda::conv {

inline constexpr int kConvThreads = 128;
// Tokens that are loaded ahead, and then worked on with constant places in the rings.
template <int W>
inline constexpr int kGroup = W < 4 ? 4 : W;

// A sequence's inputs before its first token: [pool][taps - 1][channels], oldest first.
struct ConvStates {
  Rows<RuntimeType> data;  // ld: between the rows of a state
  const std::int64_t* slots;
  std::int64_t pool, stride;

  // Of sequence n; -1: it has no state.
  __device__ std::int64_t slot_of(std::int64_t n) const {
    if (data.data == nullptr) return -1;
    const std::int64_t slot = slots == nullptr ? n : slots[n];
    return slot < pool ? slot : -1;
  }
  // The offset of its state, or something negative.
  __device__ std::int64_t of(std::int64_t n) const {
    const std::int64_t slot = slot_of(n);
    return slot >= 0 ? slot * stride : -1;
  }
};

// What a block has: kConvThreads * N channels of a tile of tokens. Adjacent blocks have adjacent channels of the same
// tokens, so that whole rows are read together.
template <int N>
struct Tile {
  int index, begin, end;
  std::int64_t channel;  // of the thread; may be beyond the last

  __device__ Tile(std::int64_t channels, int rows, int tokens) {
    constexpr int kChannels = kConvThreads * N;
    const auto columns = static_cast<unsigned>((channels + kChannels - 1) / kChannels);
    index = static_cast<int>(blockIdx.x / columns);
    begin = index * tokens;
    end = min(rows, begin + tokens);
    channel = std::int64_t{blockIdx.x % columns} * kChannels + threadIdx.x * N;
  }
};

// The weights of N channels. Where there are fewer taps than W, the oldest weights are zero.
template <int W, int N>
struct Weights {
  float values[W][N];
  float bias[N];

  // bias_of may be null.
  __device__ Weights(const float* weight, const float* bias_of, std::int64_t c, int taps) {
    const bool vectors = W == 4 && taps == 4 && reinterpret_cast<std::uintptr_t>(weight) % 16 == 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      bias[i] = bias_of != nullptr ? bias_of[c + i] : 0.0F;
      const float* of = weight + (c + i) * taps;
      const float4 four = vectors ? *reinterpret_cast<const float4*>(of) : float4{};
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const int tap = j - (W - taps);
        values[j][i] = vectors ? (&four.x)[j % 4] : tap >= 0 ? of[tap] : 0.0F;
      }
    }
  }
};

// The last W values of N channels: that of token t is in place t % W.
template <int W, int N>
struct Ring {
  float values[W][N];

  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = 0.0F;
    }
  }
  template <class Values>
  __device__ void put(int t, const Values& of) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[t % W][i] = of[i];
  }
  // Of token t - (W - 1) + j.
  [[nodiscard]] __device__ float get(int t, int j, int i) const { return values[(t + 1 + j) % W][i]; }

  // The convolution at token t.
  __device__ void convolve(const Weights<W, N>& weights, int t, float (&u)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      u[i] = weights.bias[i];
#pragma unroll
      for (int j = 0; j < W; ++j) u[i] = fmaf(weights.values[j][i], get(t, j, i), u[i]);
    }
  }
  // The values before token t of a sequence that begins at `first`: inputs, a state, or zeros. That token will be in
  // place 0.
  template <class T>
  __device__ void load(const Rows<T>& x, const ConvStates& states, std::int64_t state, int t, int first, std::int64_t c,
                       int taps) {
#pragma unroll
    for (int j = 1; j < W; ++j) {
      const int from = t - W + j;
      const int row = from - first + taps - 1;  // of the state
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = 0.0F;
      if (from >= first) {
        put(j, x.template load<N>(from, c));
      } else if (state >= 0 && row >= 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) values[j][i] = states.data.get(state + row * states.data.ld + c + i);
      }
    }
  }
};

// Calls body(element type, taps, channels of a thread); uncommon shapes have one channel a thread.
template <int Wide, class Body>
void dispatch_conv(DType dtype, std::int64_t taps, bool vectors, const Body& body) {
  const auto with_access = [&](auto width) {
    if constexpr (decltype(width)::value <= 4) {
      if (vectors && dtype == DType::bf16) return body(TypeTag<bf16>(), width, std::integral_constant<int, Wide>());
      if (vectors) return body(TypeTag<float>(), width, std::integral_constant<int, 4>());
    }
    body(TypeTag<RuntimeType>(), width, std::integral_constant<int, 1>());
  };
  if (taps == 1) return with_access(std::integral_constant<int, 1>());
  if (taps <= 4) return with_access(std::integral_constant<int, 4>());
  with_access(std::integral_constant<int, static_cast<int>(kMaxConvWidth)>());
}

inline void check_conv(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
                       std::span<const std::int64_t> offsets) {
  check_matrix(x, "x");
  check_matrix(weight, "weight");
  require(weight.dtype == DType::f32 && weight.contiguous() && weight.extent(0) == x.extent(1),
          "short_conv: weight {} {} does not fit x {}", name_of(weight.dtype), weight.shape.text(), x.shape.text());
  require(weight.extent(1) >= 1 && weight.extent(1) <= kMaxConvWidth, "short_conv: {} taps, expected 1 to {}",
          weight.extent(1), kMaxConvWidth);
  if (bias) check_vector(bias, weight.extent(0), "bias");
  require(!offsets.empty(), "short_conv: there are no offsets");
  require(x.extent(0) < (std::int64_t{1} << 30), "short_conv: {} rows are too many for one launch", x.extent(0));
}

// The rows before the first sequence, or their gradients; float32.
inline void check_before(const ConstTensorView& before, const ConstTensorView& weight, const char* name) {
  check_matrix(before, {weight.extent(1) - 1, weight.extent(0)}, name);
  require(before.dtype == DType::f32, "{} is {}, expected F32", name, name_of(before.dtype));
}
// A pool of one state, which the first sequence has.
inline ConvStates states_before(const ConstTensorView& before) {
  if (!before || before.extent(0) == 0) return {};
  return {.data = as_rows<RuntimeType>(before), .slots = nullptr, .pool = 1, .stride = 0};
}

}  // namespace qdelta::cuda::conv
