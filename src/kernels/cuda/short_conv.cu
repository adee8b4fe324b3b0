// y[t] = silu(u[t]),  u[t][c] = bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c]
//   backward:  du = dy silu'(u),   dx[t][c] = sum_j weight[c][j] du[t + W - 1 - j][c],   dweight[c][j] += sum_t du[t]
//   x[...],   dbias += sum_t du[t]
// A thread has N channels of a tile of tokens, one segment after the other: a segment is what the tile and one sequence
// have in common. It goes kTokensInFlight tokens at a time, whose loads are in flight together, with the W - 1 inputs
// before them in registers; the tokens just before a tile (in the backward also those just after it) are read twice.
// Single tokens with a state (decoding) have a kernel of their own.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/sequences.h"

namespace qdelta::cuda {
namespace {

constexpr int kConvThreads = 128;
constexpr int kTokensInFlight = 4;

// A sequence's inputs before its first token: [pool][taps - 1][channels], oldest first.
struct ConvStates {
  Rows<RuntimeType> data;  // ld: between the rows of a state
  const std::int64_t* slots;
  std::int64_t pool, stride;

  // The offset of the state of sequence n, or -1.
  __device__ std::int64_t of(std::int64_t n) const {
    if (data.data == nullptr) return -1;
    const std::int64_t slot = slots == nullptr ? n : slots[n];
    return slot >= 0 && slot < pool ? slot * stride : -1;
  }
};

// The weights of a block's channels, transposed through shared memory to [tap][channel], so that loads are coalesced
// and free of bank conflicts. Where there are fewer taps than W, the oldest weights are zero.
template <int W, int N>
struct Weights {
  static constexpr int kChannels = kConvThreads * N;
  using Stage = float[W][kChannels + 8];  // padding against bank conflicts
  float values[W][N];
  float bias[N];

  // Called by all threads of the block; `first` is its first channel. bias_of may be null.
  __device__ Weights(const float* weight, const float* bias_of, std::int64_t first, std::int64_t channels, int taps,
                     Stage& stage) {
    const int count = static_cast<int>(min(std::int64_t{kChannels}, channels - first)) * taps;
    for (int i = static_cast<int>(threadIdx.x); i < W * kChannels; i += kConvThreads) {
      if (taps == W) {
        if (i < count) stage[i % W][i / W] = weight[first * W + i];
      } else {
        const int tap = i / kChannels - (W - taps);
        const int channel = i % kChannels;
        stage[i / kChannels][channel] =
            tap >= 0 && channel * taps < count ? weight[(first + channel) * taps + tap] : 0.0F;
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = stage[j][threadIdx.x * N + i];
    }
    const std::int64_t c = first + threadIdx.x * N;
#pragma unroll
    for (int i = 0; i < N; ++i) bias[i] = bias_of != nullptr && c + i < channels ? bias_of[c + i] : 0.0F;
  }
};

// A sliding window: the W - 1 values before a group of kTokensInFlight tokens, then those of the group.
template <int W, int N>
struct Window {
  static constexpr int kBefore = W - 1;
  float values[kBefore + kTokensInFlight][N];

  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = 0.0F;
    }
  }
  // To the next group.
  __device__ void advance() {
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = values[j + kTokensInFlight][i];
    }
  }
  // The convolution at token k of the group.
  __device__ void convolve(const Weights<W, N>& weights, int k, float (&u)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      u[i] = weights.bias[i];
#pragma unroll
      for (int j = 0; j < W; ++j) u[i] = fmaf(weights.values[j][i], values[k + j][i], u[i]);
    }
  }
  // The values before token t of a sequence that begins at `first`: inputs, a state, or zeros.
  template <class T>
  __device__ void load(const Rows<T>& x, const ConvStates& states, std::int64_t state, int t, int first, std::int64_t c,
                       int taps) {
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
      const int from = t - kBefore + j;
      const int row = from - first + taps - 1;  // of the state
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = 0.0F;
      if (from >= first) {
        const auto pack = x.template load<N>(from, c);
#pragma unroll
        for (int i = 0; i < N; ++i) values[j][i] = pack[i];
      } else if (state >= 0 && row >= 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) values[j][i] = states.data.get(state + row * states.data.ld + c + i);
      }
    }
  }
};

template <class T>
struct ConvForwardArgs {
  Rows<T> x, y;
  const float *weight, *bias;
  Sequences sequences;
  ConvStates states;
  std::int64_t channels;
  int rows, tile, taps;
};

// The states are only read.
template <class T, int W, int N>
__global__ __launch_bounds__(kConvThreads) void conv_forward_kernel(ConvForwardArgs<T> a) {
  __shared__ typename Weights<W, N>::Stage stage;
  // Adjacent blocks have adjacent channels of the same tokens, so that whole rows are read together.
  const unsigned columns =
      static_cast<unsigned>((a.channels + Weights<W, N>::kChannels - 1) / Weights<W, N>::kChannels);
  const auto tile = static_cast<int>(blockIdx.x / columns);
  const std::int64_t first_channel = std::int64_t{blockIdx.x % columns} * Weights<W, N>::kChannels;
  const Weights<W, N> weights(a.weight, a.bias, first_channel, a.channels, a.taps, stage);
  const std::int64_t c = first_channel + threadIdx.x * N;
  if (c >= a.channels) return;
  const int tile_begin = tile * a.tile;
  const int tile_end = min(a.rows, tile_begin + a.tile);
  Window<W, N> window;
  int n = a.sequences.of(tile_begin);
  for (int begin = tile_begin; begin < tile_end; ++n) {
    const int end = min(tile_end, a.sequences.end(n, a.rows));
    if (end <= begin) continue;
    window.load(a.x, a.states, a.states.of(n), begin, a.sequences.begin(n), c, a.taps);
    // The next group is loaded while this one is computed.
    Pack<T, N> next[kTokensInFlight];
    const auto load = [&](int t0) {
#pragma unroll
      for (int k = 0; k < kTokensInFlight; ++k) {
        if (t0 + k < end) next[k] = a.x.template load<N>(t0 + k, c);
      }
    };
    load(begin);
    for (int t0 = begin; t0 < end; t0 += kTokensInFlight) {
#pragma unroll
      for (int k = 0; k < kTokensInFlight; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) window.values[W - 1 + k][i] = next[k][i];
      }
      load(t0 + kTokensInFlight);
#pragma unroll
      for (int k = 0; k < kTokensInFlight; ++k) {
        if (t0 + k >= end) break;
        float u[N];
        window.convolve(weights, k, u);
#pragma unroll
        for (int i = 0; i < N; ++i) u[i] *= sigmoid(u[i]);
        a.y.template store<N>(t0 + k, c, u);
      }
      window.advance();
    }
    begin = end;
  }
}

// A few tokens for each sequence: a block processes one sequence and stores its state.
template <class T, class S, int W, int N>
__global__ __launch_bounds__(kConvThreads) void conv_step_kernel(ConvForwardArgs<T> a, Rows<S> state_rows) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x) * N;
  if (c >= a.channels) return;
  const std::int64_t n = blockIdx.x;
  const std::int64_t at = a.states.of(n);
  const int begin = a.sequences.begin(static_cast<int>(n));
  const int end = static_cast<int>(a.sequences.offsets[n + 1]);
  if (begin >= end) return;
  // A state is a [taps - 1][channels] matrix.
  Rows<S> state = state_rows;
  if constexpr (std::is_same_v<S, RuntimeType>) {
    if (at >= 0) state.data = static_cast<char*>(state.data) + at * (state.is_bf16 ? 2 : 4);
  } else {
    if (at >= 0) state.data += at;
  }
  const int missing_taps = W - a.taps;  // the oldest ones
  float history[W][N];                  // the last entry is the current token
  float weights[W][N];
#pragma unroll
  for (int j = 0; j < W; ++j) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      history[j][i] = 0.0F;
      weights[j][i] = j >= missing_taps ? a.weight[(c + i) * a.taps + j - missing_taps] : 0.0F;
    }
  }
#pragma unroll
  for (int j = 0; j + 1 < W; ++j) {
    if (at < 0 || j < missing_taps) continue;
    const auto pack = state.template load<N>(j - missing_taps, c);
#pragma unroll
    for (int i = 0; i < N; ++i) history[j][i] = pack[i];
  }
  for (int t = begin; t < end; ++t) {
    const auto x = a.x.template load<N>(t, c);
    float u[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      history[W - 1][i] = x[i];
      u[i] = a.bias != nullptr ? a.bias[c + i] : 0.0F;
#pragma unroll
      for (int j = 0; j < W; ++j) u[i] = fmaf(weights[j][i], history[j][i], u[i]);
      u[i] *= sigmoid(u[i]);
#pragma unroll
      for (int j = 0; j + 1 < W; ++j) history[j][i] = history[j + 1][i];
    }
    a.y.template store<N>(t, c, u);
  }
#pragma unroll
  for (int j = 0; j + 1 < W; ++j) {
    if (at >= 0 && j >= missing_taps) state.template store<N>(j - missing_taps, c, history[j]);
  }
}

// The states after conv_forward_kernel: the last taps - 1 inputs; of a short sequence some come from the old state.
__global__ __launch_bounds__(kConvThreads) void conv_update_states_kernel(ConvForwardArgs<RuntimeType> a) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x;
  const std::int64_t n = blockIdx.x;
  const std::int64_t at = a.states.of(n);
  if (c >= a.channels || at < 0) return;
  const std::int64_t end = a.sequences.offsets[n + 1];
  const std::int64_t length = end - a.sequences.offsets[n];
  for (int j = 0; j < a.taps - 1; ++j) {
    const std::int64_t back = a.taps - 1 - j;  // from the end
    const float value = back <= length ? a.x.get((end - back) * a.x.ld + c)
                                       : a.states.data.get(at + (j + length) * a.states.data.ld + c);
    a.states.data.set(at + j * a.states.data.ld + c, value);
  }
}

template <class T>
struct ConvBackwardArgs {
  Rows<T> x, dy, dx;
  const float *weight, *bias;
  Sequences sequences;
  ConvStates before;  // of the first sequence alone
  Rows<RuntimeType> dbefore;
  float* partials;       // [tiles][channels][taps]
  float* bias_partials;  // [tiles][channels]
  std::int64_t channels;
  int rows, tile, taps;
};

// A thread's sums over the tokens of a tile: dweight and dbias of its channels.
template <int W, int N>
struct WeightSums {
  float dw[W][N] = {};
  float dbias[N] = {};

  // Of token k of the window, whose convolution has the gradient du.
  __device__ void add(const float (&du)[N], const Window<W, N>& window, int k) {
#pragma unroll
    for (int i = 0; i < N; ++i) dbias[i] += du[i];
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) dw[j][i] = fmaf(du[i], window.values[k + j][i], dw[j][i]);
    }
  }
  template <class T>
  __device__ void store(const ConvBackwardArgs<T>& a, int tile, std::int64_t c) const {
    float* out = a.partials + (tile * a.channels + c) * a.taps;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (a.bias != nullptr) a.bias_partials[tile * a.channels + c + i] = dbias[i];
      if (W == 4 && a.taps == 4) {
        reinterpret_cast<float4*>(out)[i] = {dw[0][i], dw[1 % W][i], dw[2 % W][i], dw[3 % W][i]};
        continue;
      }
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const int to = j - (W - a.taps);
        if (to >= 0) out[i * a.taps + to] = dw[j][i];
      }
    }
  }
};

template <class T, int W, int N>
__global__ __launch_bounds__(kConvThreads, 4) void conv_backward_kernel(ConvBackwardArgs<T> a) {
  __shared__ typename Weights<W, N>::Stage stage;
  // Adjacent blocks have adjacent channels of the same tokens, so that whole rows are read together.
  const unsigned columns =
      static_cast<unsigned>((a.channels + Weights<W, N>::kChannels - 1) / Weights<W, N>::kChannels);
  const auto tile = static_cast<int>(blockIdx.x / columns);
  const std::int64_t first_channel = std::int64_t{blockIdx.x % columns} * Weights<W, N>::kChannels;
  const Weights<W, N> weights(a.weight, a.bias, first_channel, a.channels, a.taps, stage);
  const std::int64_t c = first_channel + threadIdx.x * N;
  if (c >= a.channels) return;
  const int tile_begin = tile * a.tile;
  const int tile_end = min(a.rows, tile_begin + a.tile);
  Window<W, N> window;  // of x
  Window<W, N> du;
  WeightSums<W, N> sums;
  int n = a.sequences.of(tile_begin);
  for (int begin = tile_begin; begin < tile_end; ++n) {
    const int sequence_end = a.sequences.end(n, a.rows);
    const int end = min(tile_end, sequence_end);
    if (end <= begin) continue;
    window.load(a.x, a.before, a.before.of(n), begin, a.sequences.begin(n), c, a.taps);
    du.clear();
    // du of the segment, and of the W - 1 tokens after it, which dx needs; zero beyond the sequence.
    const int stop = min(sequence_end, end + W - 1);
    for (int t0 = begin; t0 < end + W - 1; t0 += kTokensInFlight) {
      const auto group = [&](auto whole) {
        Pack<T, N> x[kTokensInFlight];
        Pack<T, N> dy[kTokensInFlight];
#pragma unroll
        for (int k = 0; k < kTokensInFlight; ++k) {
          if (!whole.value && t0 + k >= stop) continue;
          x[k] = a.x.template load<N>(t0 + k, c);
          dy[k] = a.dy.template load<N>(t0 + k, c);
        }
#pragma unroll
        for (int k = 0; k < kTokensInFlight; ++k) {
          const int t = t0 + k;
          float du_t[N] = {};
          if (whole.value || t < stop) {
#pragma unroll
            for (int i = 0; i < N; ++i) window.values[W - 1 + k][i] = x[k][i];
            float u[N];
            window.convolve(weights, k, u);
#pragma unroll
            for (int i = 0; i < N; ++i) du_t[i] = dy[k][i] * silu_derivative(u[i], sigmoid(u[i]));
            if (whole.value || t < end) sums.add(du_t, window, k);
          }
#pragma unroll
          for (int i = 0; i < N; ++i) du.values[W - 1 + k][i] = du_t[i];
          // dx of the input W - 1 tokens back is complete.
          const int done = t - (W - 1);
          // Or of one of the rows before the first sequence; the oldest taps may be missing.
          const int row_before = done - begin + a.taps - 1;
          const bool is_before =
              !whole.value && done < begin && begin == 0 && n == 0 && row_before >= 0 && a.dbefore.data != nullptr;
          if (!whole.value && !is_before && (done < begin || done >= end)) continue;
          float sum[N] = {};
#pragma unroll
          for (int j = 0; j < W; ++j) {
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] = fmaf(weights.values[W - 1 - j][i], du.values[k + j][i], sum[i]);
          }
          if (is_before) {
            for (int i = 0; i < N; ++i) a.dbefore.set(row_before * a.dbefore.ld + c + i, sum[i]);
          } else {
            a.dx.template store<N>(done, c, sum);
          }
        }
      };
      if (t0 - (W - 1) >= begin && t0 + kTokensInFlight <= end) {
        group(std::true_type());
      } else {
        group(std::false_type());
      }
      window.advance();
      du.advance();
    }
    begin = end;
  }
  sums.store(a, tile, c);
}

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

void check_conv(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
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
void check_before(const ConstTensorView& before, const ConstTensorView& weight, const char* name) {
  check_matrix(before, {weight.extent(1) - 1, weight.extent(0)}, name);
  require(before.dtype == DType::f32, "{} is {}, expected F32", name, name_of(before.dtype));
}
// A pool of one state, which the first sequence has.
ConvStates states_before(const ConstTensorView& before) {
  if (!before || before.extent(0) == 0) return {};
  return {.data = as_rows<RuntimeType>(before), .slots = nullptr, .pool = 1, .stride = 0};
}

// What comes before the sequences: their states, the rows before the first one, or nothing.
ConvStates states_of(const ShortConvForward& args) {
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t taps = args.weight.extent(1);
  if (args.before) {
    require(!args.state, "short_conv: both a state and rows before the first sequence are given");
    check_before(args.before, args.weight, "before");
    return states_before(args.before);
  }
  if (!args.state) return {};
  require(args.state.shape == Shape({args.state.extent(0), taps - 1, channels}) &&
              (args.state.dtype == DType::f32 || args.state.dtype == DType::bf16) &&
              (args.state.step(2) == 1 || channels <= 1),
          "short_conv: state {} {} is not [P, {}, {}] of F32 or BF16", name_of(args.state.dtype),
          args.state.shape.text(), taps - 1, channels);
  require(args.slots.empty() || args.slots.size() + 1 == args.offsets.size(), "short_conv: {} slots for {} sequences",
          args.slots.size(), args.offsets.size() - 1);
  return {{args.state.data, args.state.step(1), args.state.dtype == DType::bf16},
          args.slots.empty() ? nullptr : args.slots.data(),
          args.state.extent(0),
          args.state.step(0)};
}

// Tokens of a tile in the forward: the overlap of W - 1 tokens is small beside it.
constexpr int kForwardTile = 64;
constexpr std::int64_t kMinBackwardTile = 32;
constexpr std::int64_t kShortSequence = 8;

}  // namespace

void short_conv_forward(const Context& context, const ShortConvForward& args) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  check_matrix(args.y, args.x.shape, "y");
  check_same_type("short_conv", args.x, {args.y});
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t taps = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  const ConvStates states = states_of(args);
  if (rows == 0 || channels == 0 || sequences == 0) return;
  const auto arguments = [&](auto type) {
    using T = typename decltype(type)::type;
    return ConvForwardArgs<T>{.x = as_rows<T>(args.x),
                              .y = as_rows<T>(args.y),
                              .weight = floats(args.weight),
                              .bias = floats(args.bias),
                              .sequences = {args.offsets.data(), static_cast<int>(sequences)},
                              .states = states,
                              .channels = channels,
                              .rows = static_cast<int>(rows),
                              .tile = kForwardTile,
                              .taps = static_cast<int>(taps)};
  };
  if (args.state && rows <= kShortSequence * sequences) {
    const bool vectors = args.state.dtype == DType::f32 && args.state.step(0) % 4 == 0 && args.state.step(1) % 4 == 0 &&
                         aligned(4, {args.x, args.y}) && reinterpret_cast<std::uintptr_t>(args.state.data) % 16 == 0;
    dispatch_conv<4>(args.x.dtype, taps, vectors, [&](auto type, auto width, auto access) {
      using T = typename decltype(type)::type;
      using S = std::conditional_t<std::is_same_v<T, RuntimeType>, RuntimeType, float>;
      constexpr int N = decltype(access)::value;
      Rows<S> state;
      if constexpr (std::is_same_v<S, RuntimeType>) {
        state = states.data;
      } else {
        state = {static_cast<float*>(states.data.data), states.data.ld};
      }
      conv_step_kernel<T, S, decltype(width)::value, N>
          <<<dim3(static_cast<unsigned>(sequences), blocks_for(channels, kConvThreads * N)), kConvThreads, 0,
             context.stream()>>>(arguments(type), state);
      check_launch("short_conv_step");
    });
    return;
  }
  dispatch_conv<4>(args.x.dtype, taps, aligned(4, {args.x, args.y}), [&](auto type, auto width, auto access) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(access)::value;
    conv_forward_kernel<T, decltype(width)::value, N>
        <<<blocks_for(rows, kForwardTile) * blocks_for(channels, kConvThreads * N), kConvThreads, 0,
           context.stream()>>>(arguments(type));
    check_launch("short_conv_forward");
  });
  if (args.state && taps > 1) {
    conv_update_states_kernel<<<dim3(static_cast<unsigned>(sequences), blocks_for(channels, kConvThreads)),
                                kConvThreads, 0, context.stream()>>>(arguments(TypeTag<RuntimeType>()));
    check_launch("short_conv_states");
  }
}

void short_conv_backward(const Context& context, const ShortConvBackward& args, std::span<std::byte> workspace) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  check_matrix(args.dy, args.x.shape, "dy");
  check_matrix(args.dx, args.x.shape, "dx");
  check_same_type("short_conv", args.x, {args.dy, args.dx});
  check_vector(args.dweight, args.weight.shape.elements(), "dweight");
  if (args.bias) check_vector(args.dbias, args.weight.extent(0), "dbias");
  if (args.before) {
    check_before(args.before, args.weight, "before");
    check_before(args.dbefore, args.weight, "dbefore");
  }
  check_workspace(workspace, short_conv_backward_workspace(args));
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t taps = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  if (rows == 0 || channels == 0 || sequences == 0) return;
  const std::int64_t tiles = partial_count(rows, kMinBackwardTile);
  auto* partials = reinterpret_cast<float*>(workspace.data());
  float* bias_partials = partials + tiles * channels * taps;
  dispatch_conv<4>(args.x.dtype, taps, aligned(4, {args.x, args.dy, args.dx}), [&](auto type, auto width, auto access) {
    using T = typename decltype(type)::type;
    constexpr int W = decltype(width)::value;
    constexpr int N = decltype(access)::value;
    const ConvBackwardArgs<T> a{.x = as_rows<T>(args.x),
                                .dy = as_rows<T>(args.dy),
                                .dx = as_rows<T>(args.dx),
                                .weight = floats(args.weight),
                                .bias = floats(args.bias),
                                .sequences = {args.offsets.data(), static_cast<int>(sequences)},
                                .before = states_before(args.before),
                                .dbefore = args.before ? as_rows<RuntimeType>(args.dbefore) : Rows<RuntimeType>(),
                                .partials = partials,
                                .bias_partials = bias_partials,
                                .channels = channels,
                                .rows = static_cast<int>(rows),
                                .tile = static_cast<int>(ceil_div(rows, tiles)),
                                .taps = static_cast<int>(taps)};
    conv_backward_kernel<T, W, N>
        <<<static_cast<unsigned>(tiles) * blocks_for(channels, kConvThreads * N), kConvThreads, 0, context.stream()>>>(
            a);
    check_launch("short_conv_backward");
  });
  add_partials(context, partials, tiles, channels * taps, floats(args.dweight));
  if (args.bias) add_partials(context, bias_partials, tiles, channels, floats(args.dbias));
}

std::size_t short_conv_backward_workspace(const ShortConvBackward& args) {
  const std::int64_t sums = args.weight.shape.elements() + (args.bias ? args.weight.extent(0) : 0);
  return static_cast<std::size_t>(partial_count(args.x.extent(0), kMinBackwardTile) * sums) * sizeof(float);
}

}  // namespace qdelta::cuda
