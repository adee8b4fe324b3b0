// The backward of short_conv.cu:
//   du = dy silu'(u),   dx[t][c] = sum_j weight[c][j] du[t + W - 1 - j][c],   dweight[c][j] += sum_t du[t] x[...],
//   dbias += sum_t du[t]
#include "kernels/cuda/short_conv.cuh"

namespace qdelta::cuda {
namespace {

using namespace conv;

constexpr int kBackwardChannels = 4;     // of a thread
constexpr int kBackwardBlocksPerSm = 4;  // as registers allow; of float32 3

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

  // Of token k, whose convolution has the gradient du.
  __device__ void add(const float (&du)[N], const Ring<W, N>& x, int k) {
#pragma unroll
    for (int i = 0; i < N; ++i) dbias[i] += du[i];
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) dw[j][i] = fmaf(du[i], x.get(k, j, i), dw[j][i]);
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
__global__ __launch_bounds__(kConvThreads, std::is_same_v<T, bf16>
                                               ? kBackwardBlocksPerSm
                                               : 3) void conv_backward_kernel(ConvBackwardArgs<T> a) {
  const Tile<N> tile(a.channels, a.rows, a.tile);
  const std::int64_t c = tile.channel;
  if (c >= a.channels) return;
  const Weights<W, N> weights(a.weight, a.bias, c, a.taps);
  Ring<W, N> x_ring;
  Ring<W, N> du_ring;
  WeightSums<W, N> sums;
  int n = a.sequences.of(tile.begin);
  for (int begin = tile.begin; begin < tile.end; ++n) {
    const int sequence_end = a.sequences.end(n, a.rows);
    const int end = min(tile.end, sequence_end);
    if (end <= begin) continue;
    x_ring.load(a.x, a.before, a.before.of(n), begin, a.sequences.begin(n), c, a.taps);
    du_ring.clear();
    Rows<T> x = a.x.from(begin, c);
    Rows<T> dy = a.dy.from(begin, c);
    Rows<T> dx = a.dx.from(begin, c);
    const int length = end - begin;
    // du of the segment, and of the W - 1 tokens after it, which dx needs; zero beyond the sequence.
    const int inputs = min(sequence_end - begin, length + W - 1);
    Pack<T, N> x_ahead[kGroup<W>];
    Pack<T, N> dy_ahead[kGroup<W>];
#pragma unroll
    for (int k = 0; k < kGroup<W>; ++k) {
      if (k >= inputs) continue;
      x_ahead[k] = x.template load<N>(k, 0);
      dy_ahead[k] = dy.template load<N>(k, 0);
    }
    const auto group = [&](int t0, auto whole) {  // as are the one before it and the next
      x = x.from(kGroup<W>, 0);
      dy = dy.from(kGroup<W>, 0);
#pragma unroll
      for (int k = 0; k < kGroup<W>; ++k) {
        const int t = t0 + k;
        float du[N] = {};
        if (whole.value || t < inputs) {
          x_ring.put(k, x_ahead[k]);
          const Pack<T, N> dy_k = dy_ahead[k];
          if (whole.value || t + kGroup<W> < inputs) {
            x_ahead[k] = x.template load<N>(k, 0);
            dy_ahead[k] = dy.template load<N>(k, 0);
          }
          float u[N];
          x_ring.convolve(weights, k, u);
#pragma unroll
          for (int i = 0; i < N; ++i) du[i] = dy_k[i] * silu_derivative(u[i], sigmoid(u[i]));
          if (whole.value || t < length) sums.add(du, x_ring, k);
        }
        du_ring.put(k, du);
        // dx of the input W - 1 tokens back is complete.
        const int done = t - (W - 1);
        // Or of one of the rows before the first sequence; the oldest taps may be missing.
        const int row_before = done + a.taps - 1;
        const bool is_before =
            !whole.value && done < 0 && begin == 0 && n == 0 && row_before >= 0 && a.dbefore.data != nullptr;
        if (!whole.value && !is_before && (done < 0 || done >= length)) continue;
        float sum[N] = {};
#pragma unroll
        for (int j = 0; j < W; ++j) {
#pragma unroll
          for (int i = 0; i < N; ++i) sum[i] = fmaf(weights.values[W - 1 - j][i], du_ring.get(k, j, i), sum[i]);
        }
        if (is_before) {
          for (int i = 0; i < N; ++i) a.dbefore.set(row_before * a.dbefore.ld + c + i, sum[i]);
        } else {
          dx.template store<N>(k - (W - 1), 0, sum);
        }
      }
      dx = dx.from(kGroup<W>, 0);
    };
    for (int t0 = 0; t0 < length + W - 1; t0 += kGroup<W>) {
      if (t0 > 0 && t0 + 2 * kGroup<W> <= length) {
        group(t0, std::true_type());
      } else {
        group(t0, std::false_type());
      }
    }
    begin = end;
  }
  sums.store(a, tile.index, c);
}

constexpr std::int64_t kMinBackwardTile = 32;
// Blocks of a launch over many tokens: as many as a large GPU runs at a time, or a multiple.
constexpr std::int64_t kBackwardBlocks = 528;

std::int64_t backward_tiles(std::int64_t rows, std::int64_t channels) {
  const std::int64_t most =
      std::max<std::int64_t>(1, kBackwardBlocks / ceil_div(channels, kConvThreads * kBackwardChannels));
  return partial_count(rows, kMinBackwardTile, most);
}

}  // namespace

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
  const std::int64_t tiles = backward_tiles(rows, channels);
  auto* partials = reinterpret_cast<float*>(workspace.data());
  float* bias_partials = partials + tiles * channels * taps;
  const bool vectors = aligned(args.x.dtype == DType::bf16 ? kBackwardChannels : 4, {args.x, args.dy, args.dx});
  dispatch_conv<kBackwardChannels>(args.x.dtype, taps, vectors, [&](auto type, auto width, auto access) {
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
  return static_cast<std::size_t>(backward_tiles(args.x.extent(0), args.weight.extent(0)) * sums) * sizeof(float);
}

}  // namespace qdelta::cuda
