// y[t] = silu(u[t]),  u[t][c] = bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c]
// and the states that it leaves; its backward is in short_conv_backward.cu.
#include "kernels/cuda/evicted_inputs.cuh"
#include "kernels/cuda/fused_layers.h"
#include "kernels/cuda/gates.cuh"
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/short_conv.cuh"

namespace qdelta::cuda {
namespace {

using namespace conv;

constexpr int kForwardChannels = 8;     // of a thread in bfloat16; in float32 4
constexpr int kForwardBlocksPerSm = 4;  // as registers allow

template <class T>
struct ConvForwardArgs {
  Rows<T> x, y;
  const float *weight, *bias;
  Sequences sequences;
  ConvStates states;
  std::int64_t channels;
  int rows, tile, taps;
  bool updates_states;  // of a single sequence: only its first tile reads the state, and may then write it
};

// The state of a sequence after its tokens, of N channels from c on: the last taps - 1 inputs; of a short sequence some
// come from the old state.
template <int N, class T>
__device__ void update_state(const ConvForwardArgs<T>& a, std::int64_t n, std::int64_t state, std::int64_t c) {
  if (state < 0) return;
  const std::int64_t end = a.sequences.offsets[n + 1];
  const std::int64_t length = end - a.sequences.offsets[n];
  constexpr int kAtOnce = 4;  // loaded together, and only then stored: a load behind a store would wait for it
  for (int first = 0; first < a.taps - 1; first += kAtOnce) {
    float values[kAtOnce][N] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = first + i;
      const std::int64_t back = a.taps - 1 - j;  // from the end
      if (back <= 0) break;
      if (back <= length) {
        const auto input = a.x.template load<N>(end - back, c);
#pragma unroll
        for (int e = 0; e < N; ++e) values[i][e] = input[e];
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) values[i][e] = a.states.data.get(state + (j + length) * a.states.data.ld + c + e);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= a.taps - 1) break;
#pragma unroll
      for (int e = 0; e < N; ++e) a.states.data.set(state + (first + i) * a.states.data.ld + c + e, values[i][e]);
    }
  }
}

// The blocks behind those of the convolution compute gates.
template <class T, int W, int N>
__global__ __launch_bounds__(kConvThreads, kForwardBlocksPerSm) void conv_forward_kernel(ConvForwardArgs<T> a,
                                                                                         GateArgs gates,
                                                                                         unsigned conv_blocks) {
  ptx::let_next_begin();
  if (blockIdx.x >= conv_blocks) {
    ptx::wait_for_previous();
    return store_gates(gates, std::int64_t{blockIdx.x - conv_blocks} * kConvThreads + threadIdx.x);
  }
  const Tile<N> tile(a.channels, a.rows, a.tile);
  const std::int64_t c = tile.channel;
  if (c >= a.channels) return;
  const Weights<W, N> weights(a.weight, a.bias, c, a.taps);
  Ring<W, N> ring;
  int n = a.sequences.of(tile.begin);  // offsets and slots do not come from the kernel ahead
  ptx::wait_for_previous();
  for (int begin = tile.begin; begin < tile.end; ++n) {
    const int end = min(tile.end, a.sequences.end(n, a.rows));
    if (end <= begin) continue;
    ring.load(a.x, a.states, a.states.of(n), begin, a.sequences.begin(n), c, a.taps);
    Rows<T> x = a.x.from(begin, c);
    Rows<T> y = a.y.from(begin, c);
    int left = end - begin;
    Pack<T, N> ahead[kGroup<W>];
#pragma unroll
    for (int k = 0; k < kGroup<W>; ++k) {
      if (k < left) ahead[k] = x.template load<N>(k, 0);
    }
    const auto group = [&](auto whole) {  // as are this and the next
      x = x.from(kGroup<W>, 0);
#pragma unroll
      for (int k = 0; k < kGroup<W>; ++k) {
        if (!whole.value && k >= left) break;
        ring.put(k, ahead[k]);
        if (whole.value || k + kGroup<W> < left) ahead[k] = x.template load<N>(k, 0);
        float u[N];
        ring.convolve(weights, k, u);
#pragma unroll
        for (int i = 0; i < N; ++i) u[i] *= sigmoid(u[i]);
        y.template store<N>(k, 0, u);
      }
      y = y.from(kGroup<W>, 0);
    };
    for (; left > 0; left -= kGroup<W>) {
      if (left >= 2 * kGroup<W>) {
        group(std::true_type());
      } else {
        group(std::false_type());
      }
    }
    begin = end;
  }
  if (a.updates_states && tile.index == 0) update_state<N>(a, 0, a.states.of(0), c);
}

// A few tokens for each sequence: a block processes one sequence and stores its state.
template <class T, class S, int W, int N>
__global__ __launch_bounds__(kConvThreads) void conv_step_kernel(ConvForwardArgs<T> a, Rows<S> state_rows,
                                                                 EvictedInputs evicted) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x) * N;
  const std::int64_t n = blockIdx.x;
  ptx::let_next_begin();
  ptx::wait_for_previous();
  if (c >= a.channels) return;
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
  EvictedChannel left[N];  // where the state has rows
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (at >= 0 && a.taps > 1) left[i] = EvictedChannel(evicted, a.states.slot_of(n), c + i);
  }
  for (int t = begin; t < end; ++t) {
    const auto x = a.x.template load<N>(t, c);
    float u[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < W; ++j) {
        if (j == missing_taps && left[i]) left[i].push(evicted, history[j][i]);
      }
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

// The states after conv_forward_kernel.
__global__ __launch_bounds__(kConvThreads) void conv_update_states_kernel(ConvForwardArgs<RuntimeType> a) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x;
  const std::int64_t n = blockIdx.x;
  ptx::let_next_begin();
  const std::int64_t at = a.states.of(n);
  ptx::wait_for_previous();
  if (c < a.channels) update_state<1>(a, n, at, c);
}

// The inputs of a state that are not older than the tokens to take back give way to those that left it.
__global__ __launch_bounds__(kConvThreads) void conv_undo_kernel(ConvStates states, EvictedInputs evicted,
                                                                 std::int64_t channels, int inputs, int tokens) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kConvThreads + threadIdx.x;
  if (c >= channels) return;
  const std::int64_t at = states.of(blockIdx.x) + c;
  EvictedChannel left(evicted, blockIdx.x, c);
  for (int j = inputs - 1; j >= 0; --j) {
    const float value =
        j >= tokens ? states.data.get(at + (j - tokens) * states.data.ld) : left.back(evicted, tokens - j);
    states.data.set(at + j * states.data.ld, value);
  }
  left.move(evicted, -tokens);
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

EvictedInputs evicted_inputs(const ConstTensorView& evicted, const ConstTensorView& state) {
  if (!evicted) return {};
  const Shape expected{state.extent(0), kEvictedRows + 1, state.extent(2)};
  require(evicted.shape == expected && evicted.dtype == DType::f32 && evicted.step(2) == 1,
          "short_conv: evicted {} {} is not F32 {} with contiguous rows", name_of(evicted.dtype), evicted.shape.text(),
          expected.text());
  return {const_cast<float*>(floats(evicted)), evicted.step(0), evicted.step(1)};
}

// Tokens of a tile, at least. Where there are so few that this counts, as in short prompts, latency does, not the
// overlap of W - 1 tokens.
constexpr std::int64_t kMinTile = 4;
constexpr std::int64_t kShortSequence = 8;
// Blocks of a launch over many tokens: as many as a large GPU runs at a time, or a multiple.
constexpr std::int64_t kForwardBlocks = 528;

std::int64_t forward_tile(std::int64_t rows, std::int64_t channels) {
  const std::int64_t tiles =
      std::max<std::int64_t>(1, kForwardBlocks / ceil_div(channels, kConvThreads * kForwardChannels));
  return std::max(kMinTile, ceil_div(rows, tiles));
}

// A few tokens with a state: a kernel of its own.
bool is_step(const ShortConvForward& args) {
  return args.state && args.x.extent(0) <= kShortSequence * (static_cast<std::int64_t>(args.offsets.size()) - 1);
}

template <class T>
ConvForwardArgs<T> forward_args(const ShortConvForward& args, const ConvStates& states) {
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t channels = args.weight.extent(0);
  const auto sequences = static_cast<int>(args.offsets.size()) - 1;
  const auto taps = static_cast<int>(args.weight.extent(1));
  const auto tile = static_cast<int>(forward_tile(rows, channels));
  return {.x = as_rows<T>(args.x),
          .y = as_rows<T>(args.y),
          .weight = floats(args.weight),
          .bias = floats(args.bias),
          .sequences = {args.offsets.data(), sequences},
          .states = states,
          .channels = channels,
          .rows = static_cast<int>(rows),
          .tile = tile,
          .taps = taps,
          .updates_states = args.state && sequences == 1 && taps <= kMinTile};  // no other tile begins that early
}

void conv_steps(const Context& context, const ShortConvForward& args, const ConvStates& states,
                const EvictedInputs& evicted) {
  const bool vectors = args.state.dtype == DType::f32 && args.state.step(0) % 4 == 0 && args.state.step(1) % 4 == 0 &&
                       aligned(4, {args.x, args.y}) && reinterpret_cast<std::uintptr_t>(args.state.data) % 16 == 0;
  dispatch_conv<4>(args.x.dtype, args.weight.extent(1), vectors, [&](auto type, auto width, auto access) {
    using T = typename decltype(type)::type;
    using S = std::conditional_t<std::is_same_v<T, RuntimeType>, RuntimeType, float>;
    constexpr int N = decltype(access)::value;
    Rows<S> state;
    if constexpr (std::is_same_v<S, RuntimeType>) {
      state = states.data;
    } else {
      state = {static_cast<float*>(states.data.data), states.data.ld};
    }
    const dim3 grid(static_cast<unsigned>(args.offsets.size() - 1),
                    blocks_for(args.weight.extent(0), kConvThreads * N));
    launch_overlapped(context, "short_conv_step", conv_step_kernel<T, S, decltype(width)::value, N>, grid, kConvThreads,
                      0, forward_args<T>(args, states), state, evicted);
  });
}

void conv_forward(const Context& context, const ShortConvForward& args, const GateArgs& gates) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  check_matrix(args.y, args.x.shape, "y");
  check_same_type("short_conv", args.x, {args.y});
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t taps = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  const ConvStates states = states_of(args);
  require(!args.evicted || is_step(args),
          "short_conv: what leaves a state is kept for a few tokens only, not {} of {} sequences", rows, sequences);
  const EvictedInputs evicted = evicted_inputs(args.evicted, args.state);
  if (rows == 0 || channels == 0 || sequences == 0) return;
  if (is_step(args)) return conv_steps(context, args, states, evicted);
  const bool vectors = aligned(args.x.dtype == DType::bf16 ? kForwardChannels : 4, {args.x, args.y});
  dispatch_conv<kForwardChannels>(args.x.dtype, taps, vectors, [&](auto type, auto width, auto access) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(access)::value;
    const auto a = forward_args<T>(args, states);
    const unsigned conv_blocks = blocks_for(rows, a.tile) * blocks_for(channels, kConvThreads * N);
    launch_overlapped(context, "short_conv_forward", conv_forward_kernel<T, decltype(width)::value, N>,
                      conv_blocks + blocks_for(gates.rows * gates.heads, kConvThreads), kConvThreads, 0, a, gates,
                      conv_blocks);
  });
  const auto a = forward_args<RuntimeType>(args, states);
  if (args.state && taps > 1 && !a.updates_states) {
    const dim3 grid(static_cast<unsigned>(sequences), blocks_for(channels, kConvThreads));
    launch_overlapped(context, "short_conv_states", conv_update_states_kernel, grid, kConvThreads, 0, a);
  }
}

}  // namespace

void short_conv_forward(const Context& context, const ShortConvForward& args) { conv_forward(context, args, {}); }

bool fits_conv_gates(const ConvGatesForward& args) {
  return any_gate(args.gates) && any_gate(args.gates).shape.elements() > 0 && args.conv.x.shape.elements() > 0 &&
         !is_step(args.conv);
}

void conv_gates_forward(const Context& context, const ConvGatesForward& args) {
  check_gates(args.gates);
  conv_forward(context, args.conv, gate_args(args.gates));
}

void short_conv_undo(const Context& context, const ShortConvUndo& args) {
  const TensorView& state = args.state;
  require(state.shape.rank == 3 && state.dtype == DType::f32 && (state.step(2) == 1 || state.extent(2) <= 1),
          "short_conv: state {} {} is not [R, W - 1, channels] of F32", name_of(state.dtype), state.shape.text());
  require(args.tokens >= 0 && args.tokens <= kEvictedRows, "{} tokens to take back, expected 0 to {}", args.tokens,
          kEvictedRows);
  const EvictedInputs evicted = evicted_inputs(args.evicted, state);
  require(evicted.data != nullptr, "evicted is missing");
  if (state.shape.elements() == 0) return;
  const ConvStates states{{state.data, state.step(1), false}, nullptr, state.extent(0), state.step(0)};
  const dim3 grid(static_cast<unsigned>(state.extent(0)), blocks_for(state.extent(2), kConvThreads));
  conv_undo_kernel<<<grid, kConvThreads, 0, context.stream()>>>(
      states, evicted, state.extent(2), static_cast<int>(state.extent(1)), static_cast<int>(args.tokens));
  check_launch("short_conv_undo");
}

}  // namespace qdelta::cuda
