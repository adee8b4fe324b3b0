// rms_norm:    y = w x s,  s = 1 / sqrt(mean x^2 + eps)
//   backward:  dx += s (w dy - x s^2 mean(w dy x)),   dw += sum over rows of dy x s
// gated_norm, per head of width V:  y = w x s silu(z);  without z: y = w x s
//   backward:  with e = dy silu(z) in the place of dy: dx, dw as above;   dz = dy w x s silu'(z)
// One kernel serves both: rms_norm has one head and no gate. A warp, or for wide rows a block, holds a row in
// registers, so that memory sees each element once. In the backward a block takes several rows, for its partial
// sum of dw.
#include "kernels/cuda/layers.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {
namespace {

// How a row is shared out: Threads threads with up to Each elements.
template <int Threads_, int Each_, int Block_ = kBlock>
struct Share {
  static constexpr int kThreads = Threads_;
  static constexpr int kEach = Each_;
  static constexpr int kSize = Block_;
  static constexpr int kRows = kSize / kThreads;  // that a block works on at a time
};

template <class Body>
void with_forward_share(std::int64_t width, const Body& body) {
  if (width <= 256) return body(Share<32, 8>());
  if (width <= 1024) return body(Share<32, 32>());
  body(Share<kBlock, 32>());
}

template <class Body>
void with_backward_share(std::int64_t width, const Body& body) {
  if (width <= 256) return body(Share<32, 8, 256>());
  if (width <= 1024) return body(Share<128, 8, 128>());
  if (width <= 4096) return body(Share<512, 8, 512>());
  body(Share<1024, 8, 1024>());
}

template <class X, class Y>
struct Forward {
  Rows<X> x, gate;
  const float* weight;
  Rows<Y> y;
  float* inverse_rms;
  unsigned rows, heads;
  int width;
  float epsilon;
};

template <class X, class Y, int N, class Share, bool Gated>
__global__ __launch_bounds__(kBlock) void norm_forward(Forward<X, Y> a) {
  constexpr int kPacks = Share::kEach / N;
  __shared__ float sums[kBlock / 32];
  const int lane = static_cast<int>(threadIdx.x) % Share::kThreads;
  const unsigned row = blockIdx.x * Share::kRows + threadIdx.x / Share::kThreads;
  if (row >= a.rows) return;
  const unsigned n = row / a.heads;
  const int first = static_cast<int>(row - n * a.heads) * a.width;

  Pack<X, N> x[kPacks];
  Pack<X, N> z[kPacks];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * Share::kThreads + lane) * N;
    if (c >= a.width) continue;
    x[p] = a.x.template load<N>(n, first + c);
    if constexpr (Gated) z[p] = a.gate.template load<N>(n, first + c);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((p * Share::kThreads + lane) * N >= a.width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += x[p][i] * x[p][i];
  }
  sum = block_sum<Share::kThreads>(sum, sums);
  const float s = 1.0F / sqrtf(sum / static_cast<float>(a.width) + a.epsilon);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * Share::kThreads + lane) * N;
    if (c >= a.width) continue;
    const auto w = *reinterpret_cast<const Pack<float, N>*>(a.weight + c);
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      y[i] = x[p][i] * s * w[i];
      if constexpr (Gated) y[i] *= z[p][i] * sigmoid(z[p][i]);
    }
    a.y.template store<N>(n, first + c, y);
  }
  if (a.inverse_rms != nullptr && lane == 0) a.inverse_rms[row] = s;
}

template <class X, class DY, class DX>
struct Backward {
  Rows<X> x, gate;
  const float *weight, *inverse_rms;  // no inverse_rms: computed again
  Rows<DY> dy;
  Rows<DX> dx, dgate, y;  // y: the forward again; optional
  Rows<bf16> rounded;     // dx once more; optional
  float* partials;        // [blocks][width] of dweight
  unsigned rows, heads, rows_per_block;
  int width;
  float epsilon;
};

// Add: dx is added to.
template <class X, class DY, class DX, int N, class Share, bool Gated, bool Add>
__global__ __launch_bounds__(Share::kSize,
                             (Share::kRows > 1 ? 1024 : 768) / Share::kSize) void norm_backward(Backward<X, DY, DX> a) {
  constexpr int kPacks = Share::kEach / N;
  constexpr int kWarps = Share::kSize / 32;
  constexpr bool kPrefetch = Share::kRows == 1 && Share::kSize < 1024;  // where registers allow
  __shared__ float sums[2][kWarps];
  __shared__ float dw_of_warps[Share::kRows][Share::kRows > 1 ? 32 * Share::kEach : 1];
  const int lane = static_cast<int>(threadIdx.x) % Share::kThreads;
  const int team = static_cast<int>(threadIdx.x) / Share::kThreads;
  const auto column = [&](int p) { return (p * Share::kThreads + lane) * N; };
  float dw[Share::kEach] = {};

  struct Row {
    unsigned n = 0;
    int first = 0;
    float inverse_rms = 0;
    Pack<X, N> x[kPacks], z[kPacks];
    Pack<DY, N> dy[kPacks];
    Pack<DX, N> dx[kPacks];
  };
  const auto load = [&](Row& of, unsigned row) {
    of.n = row / a.heads;
    of.first = static_cast<int>(row - of.n * a.heads) * a.width;
    if (a.inverse_rms != nullptr) of.inverse_rms = a.inverse_rms[row];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
      of.x[p] = a.x.template load<N>(of.n, of.first + column(p));
      of.dy[p] = a.dy.template load<N>(of.n, of.first + column(p));
      if constexpr (Gated) of.z[p] = a.gate.template load<N>(of.n, of.first + column(p));
      if constexpr (Add) of.dx[p] = a.dx.template load<N>(of.n, of.first + column(p));
    }
  };

  const unsigned end = min(a.rows, (blockIdx.x + 1) * a.rows_per_block);
  unsigned row = blockIdx.x * a.rows_per_block + team;
  Row next;
  if (kPrefetch && row < end) load(next, row);
  for (; row < end; row += Share::kRows) {
    if (!kPrefetch) load(next, row);
    const Row now = next;
    if (kPrefetch && row + Share::kRows < end) load(next, row + Share::kRows);
    float squares = 0;
    float along = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
      const auto w = *reinterpret_cast<const Pack<float, N>*>(a.weight + column(p));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = now.x[p][i];
        float e = now.dy[p][i];
        if constexpr (Gated) e *= now.z[p][i] * sigmoid(now.z[p][i]);
        squares += x * x;
        along += w[i] * e * x;
      }
    }
    along = block_sum<Share::kThreads>(along, sums[0]);
    float s = now.inverse_rms;
    if (a.inverse_rms == nullptr) {
      squares = block_sum<Share::kThreads>(squares, sums[1]);
      s = 1.0F / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
    }
    along = along / static_cast<float>(a.width) * s * s;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
      const auto w = *reinterpret_cast<const Pack<float, N>*>(a.weight + column(p));
      float change[N];
      float dz[N];
      float y[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = now.x[p][i];
        float e = now.dy[p][i];
        if constexpr (Gated) {
          const float z = now.z[p][i];
          const float sig = sigmoid(z);
          dz[i] = e * (x * s * w[i]) * silu_slope(z, sig);
          e *= z * sig;
          y[i] = x * s * w[i] * (z * sig);
        } else {
          y[i] = x * s * w[i];
        }
        change[i] = s * (w[i] * e - x * along);
        if constexpr (Add) change[i] += now.dx[p][i];
        dw[p * N + i] += e * x * s;
      }
      a.dx.template store<N>(now.n, now.first + column(p), change);
      if constexpr (Gated) a.dgate.template store<N>(now.n, now.first + column(p), dz);
      if (!Add && a.y.data != nullptr) a.y.template store<N>(now.n, now.first + column(p), y);
      if (Add && a.rounded.data != nullptr) a.rounded.template store<N>(now.n, now.first + column(p), change);
    }
  }

  // The warps' sums one after the other.
  float* out = a.partials + std::int64_t{blockIdx.x} * a.width;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (Share::kRows > 1) {
        dw_of_warps[team][column(p) + i] = dw[p * N + i];
      } else {
        if (column(p) < a.width) out[column(p) + i] = dw[p * N + i];
      }
    }
  }
  if constexpr (Share::kRows > 1) {
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < a.width; c += Share::kSize) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < Share::kRows; ++t) sum += dw_of_warps[t][c];
      out[c] = sum;
    }
  }
}

// Partial sums of the backward: as many blocks as a large GPU runs at a time.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width) {
  if (width <= 256) return partial_count(rows, 16, 2 * kMaxPartials);
  return partial_count(rows, 4, width <= 1024 ? 3 * kMaxPartials : kMaxPartials / 2);
}

template <class X, class Y, bool Gated>
void launch_forward(const Context& context, const ConstTensorView& x, const ConstTensorView& gate,
                    const ConstTensorView& weight, const TensorView& y, const TensorView& inverse_rms, float epsilon) {
  const std::int64_t width = weight.shape.elements();
  const std::int64_t heads = x.extent(1) / width;
  Forward<X, Y> a{rows_of<X>(x),
                  rows_of<X>(gate),
                  floats(weight),
                  rows_of<Y>(y),
                  floats(inverse_rms),
                  static_cast<unsigned>(x.extent(0) * heads),
                  static_cast<unsigned>(heads),
                  static_cast<int>(width),
                  epsilon};
  with_forward_share(width, [&](auto share) {
    using S = decltype(share);
    norm_forward<X, Y, kAccess<X, Y>, S, Gated><<<blocks_for(a.rows, S::kRows), kBlock, 0, context.stream()>>>(a);
    check_launch("norm_forward");
  });
}

template <class X, class DY, class DX, bool Gated, bool Add>
void launch_backward(const Context& context, const GatedNormBackward& args, const ConstTensorView& inverse_rms,
                     const TensorView& rounded, std::span<std::byte> workspace) {
  const std::int64_t width = args.weight.shape.elements();
  const std::int64_t heads = args.x.extent(1) / width;
  const std::int64_t rows = args.x.extent(0) * heads;
  const std::int64_t blocks = norm_partials(rows, width);
  auto* partials = reinterpret_cast<float*>(workspace.data());
  const Backward<X, DY, DX> a{rows_of<X>(args.x),
                              rows_of<X>(args.gate),
                              floats(args.weight),
                              floats(inverse_rms),
                              rows_of<DY>(args.dy),
                              rows_of<DX>(args.dx),
                              rows_of<DX>(args.dgate),
                              rows_of<DX>(args.y),
                              rows_of<bf16>(rounded),
                              partials,
                              static_cast<unsigned>(rows),
                              static_cast<unsigned>(heads),
                              static_cast<unsigned>(ceil_div(rows, blocks)),
                              static_cast<int>(width),
                              args.epsilon};
  with_backward_share(width, [&](auto share) {
    norm_backward<X, DY, DX, kAccess<X, DY, DX>, decltype(share), Gated, Add>
        <<<static_cast<unsigned>(blocks), decltype(share)::kSize, 0, context.stream()>>>(a);
    check_launch("norm_backward");
  });
  add_partials(context, partials, blocks, width, floats(args.dweight));
}

std::int64_t check_norm(const ConstTensorView& x, std::int64_t width) {
  check_matrix(x, "x");
  require(width > 0 && width <= kMaxNormWidth && x.extent(1) % width == 0,
          "a norm of width {} does not fit x {}; at most {}", width, x.shape.text(), kMaxNormWidth);
  const std::int64_t rows = x.extent(0) * (x.extent(1) / width);
  require(rows < (std::int64_t{1} << 31), "norm: {} rows are too many for one launch", rows);
  return rows;
}

std::size_t partials_bytes(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(norm_partials(rows, width) * width) * sizeof(float);
}

}  // namespace

void rms_norm_forward(const Context& context, const RmsNormForward& args) {
  const std::int64_t rows = check_norm(args.x, args.x.extent(1));
  check_matrix(args.y, args.x.shape, "y");
  check_vector(args.weight, args.x.extent(1), "weight");
  if (args.inverse_rms) check_vector(args.inverse_rms, rows, "inverse_rms");
  if (rows == 0) return;
  const auto run = [&](auto x, auto y) {
    launch_forward<typename decltype(x)::type, typename decltype(y)::type, false>(
        context, args.x, {}, args.weight, args.y, args.inverse_rms, args.epsilon);
  };
  const bool narrow = args.x.dtype == DType::bf16 && args.y.dtype == DType::bf16;
  if (!aligned(narrow ? 8 : 4, {args.x, args.weight, args.y})) return run(Type<Either>(), Type<Either>());
  with_type(args.x.dtype, [&](auto x) { with_type(args.y.dtype, [&](auto y) { run(x, y); }); });
}

void rms_norm_backward(const Context& context, const RmsNormBackward& args, std::span<std::byte> workspace) {
  const std::int64_t rows = check_norm(args.x, args.x.extent(1));
  check_matrix(args.dy, args.x.shape, "dy");
  check_matrix(args.dx, args.x.shape, "dx");
  check_vector(args.weight, args.x.extent(1), "weight");
  check_vector(args.dweight, args.x.extent(1), "dweight");
  check_vector(args.inverse_rms, rows, "inverse_rms");
  if (args.rounded) {
    check_matrix(args.rounded, args.x.shape, "rounded");
    require(args.rounded.dtype == DType::bf16, "rms_norm: rounded is {}, not BF16", name_of(args.rounded.dtype));
  }
  check_workspace(workspace, rms_norm_backward_workspace(args));
  if (rows == 0) return;
  const GatedNormBackward all{args.x, {}, args.weight, args.dy, args.dx, {}, args.dweight, 0.0F, {}};
  const auto run = [&](auto x, auto dy, auto dx) {
    launch_backward<typename decltype(x)::type, typename decltype(dy)::type, typename decltype(dx)::type, false, true>(
        context, all, args.inverse_rms, args.rounded, workspace);
  };
  const bool narrow = args.x.dtype == DType::bf16 && args.dy.dtype == DType::bf16 && args.dx.dtype == DType::bf16;
  if (!aligned(narrow ? 8 : 4, {args.x, args.weight, args.dy, args.dx, args.rounded}))
    return run(Type<Either>(), Type<Either>(), Type<Either>());
  with_type(args.x.dtype, [&](auto x) {
    with_type(args.dy.dtype, [&](auto dy) { with_type(args.dx.dtype, [&](auto dx) { run(x, dy, dx); }); });
  });
}

std::size_t rms_norm_backward_workspace(const RmsNormBackward& args) {
  return partials_bytes(args.x.extent(0), args.x.extent(1));
}

void gated_norm_forward(const Context& context, const GatedNormForward& args) {
  const std::int64_t width = args.weight.shape.elements();
  const std::int64_t rows = check_norm(args.x, width);
  check_matrix(args.y, args.x.shape, "y");
  if (args.gate) check_matrix(args.gate, args.x.shape, "gate");
  check_vector(args.weight, width, "weight");
  check_same_type("gated_norm", args.x, {args.gate, args.y});
  if (rows == 0) return;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.gate) {
      launch_forward<T, T, true>(context, args.x, args.gate, args.weight, args.y, {}, args.epsilon);
    } else {
      launch_forward<T, T, false>(context, args.x, {}, args.weight, args.y, {}, args.epsilon);
    }
  };
  const int N = args.x.dtype == DType::bf16 ? 8 : 4;
  if (width % N != 0 || !aligned(N, {args.x, args.gate, args.weight, args.y})) return run(Type<Either>());
  with_type(args.x.dtype, run);
}

void gated_norm_backward(const Context& context, const GatedNormBackward& args, std::span<std::byte> workspace) {
  const std::int64_t width = args.weight.shape.elements();
  const std::int64_t rows = check_norm(args.x, width);
  require(static_cast<bool>(args.gate) == static_cast<bool>(args.dgate), "gate and dgate go together");
  check_matrix(args.dy, args.x.shape, "dy");
  check_matrix(args.dx, args.x.shape, "dx");
  if (args.gate) {
    check_matrix(args.gate, args.x.shape, "gate");
    check_matrix(args.dgate, args.x.shape, "dgate");
  }
  check_vector(args.weight, width, "weight");
  check_vector(args.dweight, width, "dweight");
  if (args.y) check_matrix(args.y, args.x.shape, "y");
  check_same_type("gated_norm", args.x, {args.gate, args.dy, args.dx, args.dgate, args.y});
  check_workspace(workspace, gated_norm_backward_workspace(args));
  if (rows == 0) return;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.gate) {
      launch_backward<T, T, T, true, false>(context, args, {}, {}, workspace);
    } else {
      launch_backward<T, T, T, false, false>(context, args, {}, {}, workspace);
    }
  };
  const int N = args.x.dtype == DType::bf16 ? 8 : 4;
  if (width % N != 0 || !aligned(N, {args.x, args.gate, args.weight, args.dy, args.dx, args.dgate, args.y}))
    return run(Type<Either>());
  with_type(args.x.dtype, run);
}

std::size_t gated_norm_backward_workspace(const GatedNormBackward& args) {
  const std::int64_t width = args.weight.shape.elements();
  if (width == 0) return 0;
  return partials_bytes(args.x.extent(0) * (args.x.extent(1) / width), width);
}

}  // namespace qdelta::cuda
