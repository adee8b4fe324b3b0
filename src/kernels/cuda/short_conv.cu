// y[t] = silu(u[t]),  u[t][c] = bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c]
//   backward:  du = dy silu'(u),   dx[t][c] = sum_j weight[c][j] du[t + W - 1 - j][c],   dweight[c][j] += sum_t du[t]
//   x[...],   dbias += sum_t du[t]
// A thread takes N channels through a tile of tokens, piece by piece: a piece is what the tile and one sequence have in
// common. It goes kAhead tokens at a time, whose loads are in flight together, with the inputs before them in
// registers; the tokens just before a tile (in the backward also those just after it) are read twice. Single tokens
// with a state (decoding) have a kernel of their own.
#include "kernels/cuda/layers.h"
#include "kernels/cuda/sequences.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {
namespace {

constexpr int kConvThreads = 128;
constexpr int kAhead = 4;

// A sequence's inputs before its first token: [pool][taps - 1][channels], oldest first.
struct States {
  Rows<Either> data;  // ld: between the rows of a state
  const std::int64_t* slots;
  std::int64_t pool, stride;

  // The offset of the state of sequence n, or -1.
  __device__ std::int64_t of(std::int64_t n) const {
    if (data.data == nullptr) return -1;
    const std::int64_t slot = slots == nullptr ? n : slots[n];
    return slot >= 0 && slot < pool ? slot * stride : -1;
  }
};

// The weights of a block's channels by way of shared memory, where they lie tap by tap: so that both memories are read
// in order. Where there are fewer taps than W, the oldest have no weight.
template <int W, int N>
struct Weights {
  static constexpr int kChannels = kConvThreads * N;
  using Stage = float[W][kChannels + 8];  // the 8 keep the taps in different banks
  float values[W][N];
  float bias[N];

  // All threads of the block; `first` is its first channel. Without a bias it is null.
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

// The W - 1 values before a group of kAhead, then the group's own.
template <int W, int N>
struct Window {
  static constexpr int kBefore = W - 1;
  float values[kBefore + kAhead][N];

  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = 0.0F;
    }
  }
  // The group is over: its last values are those before the next one.
  __device__ void advance() {
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[j][i] = values[j + kAhead][i];
    }
  }
  // bias + sum_j weights[j] . value of j - (W - 1) tokens before token k of the group
  __device__ void convolve(const Weights<W, N>& weights, int k, float (&u)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      u[i] = weights.bias[i];
#pragma unroll
      for (int j = 0; j < W; ++j) u[i] = fmaf(weights.values[j][i], values[k + j][i], u[i]);
    }
  }
  // What lies before token t of a sequence that begins at `first`: inputs, a state, or zeros.
  template <class T>
  __device__ void load(const Rows<T>& x, const States& states, std::int64_t state, int t, int first, std::int64_t c,
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
        for (int i = 0; i < N; ++i) values[j][i] = states.data.at(state + row * states.data.ld + c + i);
      }
    }
  }
};

template <class T>
struct ConvForward {
  Rows<T> x, y;
  const float *weight, *bias;
  Sequences sequences;
  States states;
  std::int64_t channels;
  int rows, tile, taps;
};

// The states are only read.
template <class T, int W, int N>
__global__ __launch_bounds__(kConvThreads) void conv_forward(ConvForward<T> a) {
  __shared__ typename Weights<W, N>::Stage stage;
  // Neighbouring blocks take neighbouring channels of the same tokens: whole rows of memory at a time.
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
    // The next group's loads are under way while one is worked on.
    Pack<T, N> next[kAhead];
    const auto load = [&](int t0) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (t0 + k < end) next[k] = a.x.template load<N>(t0 + k, c);
      }
    };
    load(begin);
    for (int t0 = begin; t0 < end; t0 += kAhead) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) window.values[W - 1 + k][i] = next[k][i];
      }
      load(t0 + kAhead);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
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

// A few tokens for each sequence: a block walks one of them, and leaves its state.
template <class T, class S, int W, int N>
__global__ __launch_bounds__(kConvThreads) void conv_step(ConvForward<T> a, Rows<S> state_rows) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x) * N;
  if (c >= a.channels) return;
  const std::int64_t n = blockIdx.x;
  const std::int64_t at = a.states.of(n);
  const int begin = a.sequences.begin(static_cast<int>(n));
  const int end = static_cast<int>(a.sequences.offsets[n + 1]);
  if (begin >= end) return;
  // A state is a matrix of its own.
  Rows<S> state = state_rows;
  if constexpr (std::is_same_v<S, Either>) {
    if (at >= 0) state.data = static_cast<char*>(state.data) + at * (state.narrow ? 2 : 4);
  } else {
    if (at >= 0) state.data += at;
  }
  const int lacking = W - a.taps;  // the oldest taps that there are not
  float past[W][N];                // the last entry is the token's own
  float weights[W][N];
#pragma unroll
  for (int j = 0; j < W; ++j) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      past[j][i] = 0.0F;
      weights[j][i] = j >= lacking ? a.weight[(c + i) * a.taps + j - lacking] : 0.0F;
    }
  }
#pragma unroll
  for (int j = 0; j + 1 < W; ++j) {
    if (at < 0 || j < lacking) continue;
    const auto pack = state.template load<N>(j - lacking, c);
#pragma unroll
    for (int i = 0; i < N; ++i) past[j][i] = pack[i];
  }
  for (int t = begin; t < end; ++t) {
    const auto x = a.x.template load<N>(t, c);
    float u[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      past[W - 1][i] = x[i];
      u[i] = a.bias != nullptr ? a.bias[c + i] : 0.0F;
#pragma unroll
      for (int j = 0; j < W; ++j) u[i] = fmaf(weights[j][i], past[j][i], u[i]);
      u[i] *= sigmoid(u[i]);
#pragma unroll
      for (int j = 0; j + 1 < W; ++j) past[j][i] = past[j + 1][i];
    }
    a.y.template store<N>(t, c, u);
  }
#pragma unroll
  for (int j = 0; j + 1 < W; ++j) {
    if (at >= 0 && j >= lacking) state.template store<N>(j - lacking, c, past[j]);
  }
}

// The states after conv_forward: the last taps - 1 inputs, of which the old state may hold some, further on.
__global__ __launch_bounds__(kConvThreads) void conv_states(ConvForward<Either> a) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x;
  const std::int64_t n = blockIdx.x;
  const std::int64_t at = a.states.of(n);
  if (c >= a.channels || at < 0) return;
  const std::int64_t end = a.sequences.offsets[n + 1];
  const std::int64_t length = end - a.sequences.offsets[n];
  for (int j = 0; j < a.taps - 1; ++j) {
    const std::int64_t back = a.taps - 1 - j;  // from the end
    const float value =
        back <= length ? a.x.at((end - back) * a.x.ld + c) : a.states.data.at(at + (j + length) * a.states.data.ld + c);
    a.states.data.put(at + j * a.states.data.ld + c, value);
  }
}

template <class T>
struct ConvBackward {
  Rows<T> x, dy, dx;
  const float *weight, *bias;
  Sequences sequences;
  float* partials;       // [tiles][channels][taps]
  float* bias_partials;  // [tiles][channels]
  std::int64_t channels;
  int rows, tile, taps;
};

template <class T, int W, int N>
__global__ __launch_bounds__(kConvThreads, 4) void conv_backward(ConvBackward<T> a) {
  __shared__ typename Weights<W, N>::Stage stage;
  // Neighbouring blocks take neighbouring channels of the same tokens: whole rows of memory at a time.
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
  float dw[W][N] = {};
  float dbias[N] = {};
  int n = a.sequences.of(tile_begin);
  for (int begin = tile_begin; begin < tile_end; ++n) {
    const int sequence_end = a.sequences.end(n, a.rows);
    const int end = min(tile_end, sequence_end);
    if (end <= begin) continue;
    window.load(a.x, States{}, -1, begin, a.sequences.begin(n), c, a.taps);
    du.clear();
    // du of the piece, and of the W - 1 tokens after it, which dx needs; beyond the sequence it is zero.
    const int stop = min(sequence_end, end + W - 1);
    for (int t0 = begin; t0 < end + W - 1; t0 += kAhead) {
      const auto group = [&](auto whole) {
        Pack<T, N> x[kAhead];
        Pack<T, N> dy[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (!whole.value && t0 + k >= stop) continue;
          x[k] = a.x.template load<N>(t0 + k, c);
          dy[k] = a.dy.template load<N>(t0 + k, c);
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const int t = t0 + k;
          float fresh[N] = {};
          if (whole.value || t < stop) {
#pragma unroll
            for (int i = 0; i < N; ++i) window.values[W - 1 + k][i] = x[k][i];
            float u[N];
            window.convolve(weights, k, u);
#pragma unroll
            for (int i = 0; i < N; ++i) fresh[i] = dy[k][i] * silu_slope(u[i], sigmoid(u[i]));
            if (whole.value || t < end) {
#pragma unroll
              for (int i = 0; i < N; ++i) dbias[i] += fresh[i];
#pragma unroll
              for (int j = 0; j < W; ++j) {
#pragma unroll
                for (int i = 0; i < N; ++i) dw[j][i] = fmaf(fresh[i], window.values[k + j][i], dw[j][i]);
              }
            }
          }
#pragma unroll
          for (int i = 0; i < N; ++i) du.values[W - 1 + k][i] = fresh[i];
          // The input W - 1 tokens back has met all the outputs that saw it.
          const int done = t - (W - 1);
          if (!whole.value && (done < begin || done >= end)) continue;
          float sum[N] = {};
#pragma unroll
          for (int j = 0; j < W; ++j) {
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] = fmaf(weights.values[W - 1 - j][i], du.values[k + j][i], sum[i]);
          }
          a.dx.template store<N>(done, c, sum);
        }
      };
      if (t0 - (W - 1) >= begin && t0 + kAhead <= end) {
        group(std::true_type());
      } else {
        group(std::false_type());
      }
      window.advance();
      du.advance();
    }
    begin = end;
  }
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

// Calls body(element type, taps, channels at a time); other shapes than the common ones one channel at a time.
template <int Wide, class Body>
void with_conv(DType dtype, std::int64_t taps, bool vectors, const Body& body) {
  const auto with_access = [&](auto width) {
    if constexpr (decltype(width)::value <= 4) {
      if (vectors && dtype == DType::bf16) return body(Type<bf16>(), width, std::integral_constant<int, Wide>());
      if (vectors) return body(Type<float>(), width, std::integral_constant<int, 4>());
    }
    body(Type<Either>(), width, std::integral_constant<int, 1>());
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

// Tokens of a tile in the forward: enough that reading W - 1 tokens twice is little.
constexpr int kForwardTile = 64;
constexpr std::int64_t kLeastBackwardTile = 32;
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
  States states{};
  if (args.state) {
    require(args.state.shape == Shape({args.state.extent(0), taps - 1, channels}) &&
                (args.state.dtype == DType::f32 || args.state.dtype == DType::bf16) &&
                (args.state.step(2) == 1 || channels <= 1),
            "short_conv: state {} {} is not [P, {}, {}] of F32 or BF16", name_of(args.state.dtype),
            args.state.shape.text(), taps - 1, channels);
    require(args.slots.empty() || static_cast<std::int64_t>(args.slots.size()) == sequences,
            "short_conv: {} slots for {} sequences", args.slots.size(), sequences);
    states = {{args.state.data, args.state.step(1), args.state.dtype == DType::bf16},
              args.slots.empty() ? nullptr : args.slots.data(),
              args.state.extent(0),
              args.state.step(0)};
  }
  if (rows == 0 || channels == 0 || sequences == 0) return;
  const auto arguments = [&](auto type) {
    using T = typename decltype(type)::type;
    return ConvForward<T>{rows_of<T>(args.x),
                          rows_of<T>(args.y),
                          floats(args.weight),
                          floats(args.bias),
                          {args.offsets.data(), static_cast<int>(sequences)},
                          states,
                          channels,
                          static_cast<int>(rows),
                          kForwardTile,
                          static_cast<int>(taps)};
  };
  if (args.state && rows <= kShortSequence * sequences) {
    const bool vectors = args.state.dtype == DType::f32 && args.state.step(0) % 4 == 0 && args.state.step(1) % 4 == 0 &&
                         aligned(4, {args.x, args.y}) && reinterpret_cast<std::uintptr_t>(args.state.data) % 16 == 0;
    with_conv<4>(args.x.dtype, taps, vectors, [&](auto type, auto width, auto access) {
      using T = typename decltype(type)::type;
      using S = std::conditional_t<std::is_same_v<T, Either>, Either, float>;
      constexpr int N = decltype(access)::value;
      Rows<S> state;
      if constexpr (std::is_same_v<S, Either>) {
        state = states.data;
      } else {
        state = {static_cast<float*>(states.data.data), states.data.ld};
      }
      conv_step<T, S, decltype(width)::value, N>
          <<<dim3(static_cast<unsigned>(sequences), blocks_for(channels, kConvThreads * N)), kConvThreads, 0,
             context.stream()>>>(arguments(type), state);
      check_launch("short_conv_step");
    });
    return;
  }
  with_conv<4>(args.x.dtype, taps, aligned(4, {args.x, args.y}), [&](auto type, auto width, auto access) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(access)::value;
    conv_forward<T, decltype(width)::value, N>
        <<<blocks_for(rows, kForwardTile) * blocks_for(channels, kConvThreads * N), kConvThreads, 0,
           context.stream()>>>(arguments(type));
    check_launch("short_conv_forward");
  });
  if (args.state && taps > 1) {
    conv_states<<<dim3(static_cast<unsigned>(sequences), blocks_for(channels, kConvThreads)), kConvThreads, 0,
                  context.stream()>>>(arguments(Type<Either>()));
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
  check_workspace(workspace, short_conv_backward_workspace(args));
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t taps = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  if (rows == 0 || channels == 0 || sequences == 0) return;
  const std::int64_t tiles = partial_count(rows, kLeastBackwardTile);
  auto* partials = reinterpret_cast<float*>(workspace.data());
  float* bias_partials = partials + tiles * channels * taps;
  with_conv<4>(args.x.dtype, taps, aligned(4, {args.x, args.dy, args.dx}), [&](auto type, auto width, auto access) {
    using T = typename decltype(type)::type;
    constexpr int W = decltype(width)::value;
    constexpr int N = decltype(access)::value;
    const ConvBackward<T> a{rows_of<T>(args.x),
                            rows_of<T>(args.dy),
                            rows_of<T>(args.dx),
                            floats(args.weight),
                            floats(args.bias),
                            {args.offsets.data(), static_cast<int>(sequences)},
                            partials,
                            bias_partials,
                            channels,
                            static_cast<int>(rows),
                            static_cast<int>(ceil_div(rows, tiles)),
                            static_cast<int>(taps)};
    conv_backward<T, W, N>
        <<<static_cast<unsigned>(tiles) * blocks_for(channels, kConvThreads * N), kConvThreads, 0, context.stream()>>>(
            a);
    check_launch("short_conv_backward");
  });
  add_partials(context, partials, tiles, channels * taps, floats(args.dweight));
  if (args.bias) add_partials(context, bias_partials, tiles, channels, floats(args.dbias));
}

std::size_t short_conv_backward_workspace(const ShortConvBackward& args) {
  const std::int64_t sums = args.weight.shape.elements() + (args.bias ? args.weight.extent(0) : 0);
  return static_cast<std::size_t>(partial_count(args.x.extent(0), kLeastBackwardTile) * sums) * sizeof(float);
}

}  // namespace qdelta::cuda
