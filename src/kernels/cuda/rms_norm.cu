// rms_norm:    y = w x s,  s = 1 / sqrt(mean x^2 + eps)
//   backward:  with n = x s = y / w: dx += s (w dy - n mean(dy y)),   dw += sum over rows of dy n
// gated_norm, per head of width V:  y = w x s a(z), a silu or sigmoid;  without z: y = w x s
//   backward:  with e = dy a(z) and n = x s: dx = s (w e - n mean(w e n)),   dw += sum of e n,   dz = dy w n a'(z)
// One kernel serves both: rms_norm has one head and no gate, and its backward has n from y. A warp, or for wide rows a
// block, holds a row in registers, so that each element is read once. In the backward a block has several rows, for its
// partial sum of dw.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/overlapped_launch.cuh"

namespace qdelta::cuda {
namespace {

// How a row is partitioned: ThreadsPerRow threads with up to ElementsPerThread elements each.
template <int ThreadsPerRow, int ElementsPerThread, int BlockThreads = kBlockThreads>
struct RowPartition {
  static constexpr int kThreads = ThreadsPerRow;
  static constexpr int kPerThread = ElementsPerThread;
  static constexpr int kThreadsOfBlock = BlockThreads;
  static constexpr int kRows = kThreadsOfBlock / kThreads;  // of a block at a time
  // Narrow rows, a head's: a block has many of them, so its threads keep their weights.
  static constexpr bool kNarrow = kRows > 1 && kPerThread <= 8;
};

template <class Body>
void dispatch_forward(std::int64_t width, const Body& body) {
  if (width <= 256) return body(RowPartition<32, 8>());
  if (width <= 1024) return body(RowPartition<32, 32>());
  body(RowPartition<kBlockThreads, 32>());
}

template <class Body>
void dispatch_backward(std::int64_t width, const Body& body) {
  if (width <= 256) return body(RowPartition<32, 8, 256>());
  if (width <= 1024) return body(RowPartition<128, 8, 128>());
  if (width <= 4096) return body(RowPartition<512, 8, 512>());
  body(RowPartition<1024, 8, 1024>());
}

// Where a row is: heads follow each other in the row of a token. Goes to a row some way on without a division.
struct RowCursor {
  unsigned n, head;

  __device__ RowCursor(unsigned row, unsigned heads) : n(row / heads), head(row - n * heads) {}
  __device__ void advance(const RowCursor& by, unsigned heads) {
    n += by.n;
    head += by.head;
    if (head >= heads) {
      head -= heads;
      ++n;
    }
  }
};

enum class Gate { none, silu, sigmoid };

template <class X, class Y>
struct NormForwardArgs {
  Rows<X> x, gate;
  const float* weight;
  Rows<Y> y;
  float* inverse_rms;
  unsigned rows, heads;
  int width;
  float epsilon;
};

// What a thread has of a row.
template <class X, int N, int kPacks>
struct ForwardRow {
  Pack<X, N> x[kPacks], z[kPacks];
};

template <class X, class Y, int N, class RowPartition, Gate kGate>
__global__ __launch_bounds__(kBlockThreads) void norm_forward_kernel(NormForwardArgs<X, Y> a) {
  constexpr int kPacks = RowPartition::kPerThread / N;
  constexpr bool kNarrow = RowPartition::kNarrow;
  __shared__ float sums[kBlockThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % RowPartition::kThreads;
  const auto column = [&](int p) { return (p * RowPartition::kThreads + lane) * N; };
  const auto load = [&](ForwardRow<X, N, kPacks>& of, const RowCursor& at) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = static_cast<int>(at.head) * a.width + column(p);
      if (column(p) >= a.width) continue;
      of.x[p] = a.x.template load<N>(at.n, c);
      if constexpr (kGate != Gate::none) of.z[p] = a.gate.template load<N>(at.n, c);
    }
  };
  const auto weights_at = [&](int p) {
    auto w = *reinterpret_cast<const Pack<float, N>*>(a.weight + column(p));
#pragma unroll
    for (int i = 0; i < N; ++i) w.values[i] = norm_weight(w[i]);
    return w;
  };
  ptx::let_next_begin();
  if (blockIdx.x == 0) prefetch_norm_weights<kBlockThreads>(a.weight, a.width);
  ptx::wait_for_previous();
  unsigned row = blockIdx.x * RowPartition::kRows + threadIdx.x / RowPartition::kThreads;
  if (row >= a.rows) return;
  const unsigned step = gridDim.x * RowPartition::kRows;
  RowCursor at(row, a.heads);
  const RowCursor by(step, a.heads);
  ForwardRow<X, N, kPacks> next;
  load(next, at);
  Pack<float, N> weights[kNarrow ? kPacks : 1];
  if constexpr (kNarrow) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) < a.width) weights[p] = weights_at(p);
    }
  }
  for (;; row += step) {
    const ForwardRow<X, N, kPacks> now = next;
    const RowCursor here = at;
    const bool more = kNarrow && row + step < a.rows;
    if (more) {
      at.advance(by, a.heads);
      load(next, at);
    }
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) sum += now.x[p][i] * now.x[p][i];
    }
    sum = block_sum<RowPartition::kThreads>(sum, sums);
    const float s = inverse_rms(sum, a.width, a.epsilon);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
      const auto w = kNarrow ? weights[kNarrow ? p : 0] : weights_at(p);
      float y[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        y[i] = now.x[p][i] * s * w[i];
        if constexpr (kGate == Gate::silu) y[i] *= now.z[p][i] * sigmoid(now.z[p][i]);
        if constexpr (kGate == Gate::sigmoid) y[i] *= sigmoid(now.z[p][i]);
      }
      a.y.template store<N>(here.n, static_cast<int>(here.head) * a.width + column(p), y);
    }
    if (a.inverse_rms != nullptr && lane == 0) a.inverse_rms[row] = s;
    if (!more) return;
  }
}

template <class X, class DY, class DX>
struct NormBackwardArgs {
  Rows<X> x, gate;                    // x: in rms_norm the forward's y
  const float *weight, *inverse_rms;  // inverse_rms of rms_norm; else recomputed
  Rows<DY> dy;
  Rows<DX> dx, dgate, y;  // y: the forward recomputed; optional
  Rows<bf16> rounded;     // dx in bf16; optional
  float* partials;        // [blocks][width] of dweight
  unsigned rows, heads, rows_per_block;
  int width;
  float inverse_width, epsilon;
};

// What a thread has of a row; the factors of silu and its derivative, or sigmoid's.
template <class X, class DY, class DX, int N, int kPacks>
struct BackwardRow {
  float inverse_rms;
  Pack<X, N> x[kPacks], z[kPacks];
  Pack<DY, N> dy[kPacks];
  Pack<DX, N> dx[kPacks];
};
template <Gate kGate>
struct GateFactors {
  float value = 1.0F;
  float derivative = 0.0F;

  __device__ explicit GateFactors(float z) {
    if constexpr (kGate == Gate::none) return;
    const float s = sigmoid(z);
    value = kGate == Gate::silu ? z * s : s;
    derivative = kGate == Gate::silu ? silu_derivative(z, s) : s * (1.0F - s);
  }
};

// RmsNorm: dx += instead of dx =, and x is what the forward made of it.
template <class X, class DY, class DX, int N, class RowPartition, Gate kGate, bool RmsNorm>
__global__ __launch_bounds__(
    RowPartition::kThreadsOfBlock,
    768 / RowPartition::kThreadsOfBlock) void norm_backward_kernel(NormBackwardArgs<X, DY, DX> a) {
  constexpr int kPacks = RowPartition::kPerThread / N;
  constexpr int kWarps = RowPartition::kThreadsOfBlock / 32;
  constexpr bool kNarrow = RowPartition::kNarrow;
  constexpr bool kPrefetch = kNarrow ? N == 8 : RowPartition::kThreadsOfBlock < 1024;  // where registers allow
  using Row = BackwardRow<X, DY, DX, N, kPacks>;
  __shared__ float sums[2][kWarps];
  __shared__ float dw_of_rows[RowPartition::kRows][RowPartition::kRows > 1 ? 32 * RowPartition::kPerThread : 1];
  const int lane = static_cast<int>(threadIdx.x) % RowPartition::kThreads;
  const int row_of_block = static_cast<int>(threadIdx.x) / RowPartition::kThreads;
  const auto column = [&](int p) { return (p * RowPartition::kThreads + lane) * N; };
  const auto weights_at = [&](int p) { return *reinterpret_cast<const Pack<float, N>*>(a.weight + column(p)); };
  const auto load = [&](Row& of, const RowCursor& at, unsigned row) {
    if constexpr (RmsNorm) of.inverse_rms = a.inverse_rms[row];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = static_cast<int>(at.head) * a.width + column(p);
      if (column(p) >= a.width) continue;
      of.x[p] = a.x.template load<N>(at.n, c);
      of.dy[p] = a.dy.template load<N>(at.n, c);
      if constexpr (kGate != Gate::none) of.z[p] = a.gate.template load<N>(at.n, c);
      if constexpr (RmsNorm) of.dx[p] = a.dx.template load<N>(at.n, c);
    }
  };

  const unsigned end = min(a.rows, (blockIdx.x + 1) * a.rows_per_block);
  unsigned row = blockIdx.x * a.rows_per_block + row_of_block;
  RowCursor at(row, a.heads);
  const RowCursor by(RowPartition::kRows, a.heads);
  Row next;
  if (kPrefetch && row < end) load(next, at, row);
  float dw[RowPartition::kPerThread] = {};
  Pack<float, N> kept_weights[kNarrow ? kPacks : 1];
  if constexpr (kNarrow) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) < a.width) kept_weights[p] = weights_at(p);
    }
  }
  const auto weights = [&](int p) {
    if constexpr (kNarrow) return kept_weights[p];
    return weights_at(p);
  };
  for (; row < end; row += RowPartition::kRows) {
    if (!kPrefetch) load(next, at, row);
    const Row now = next;
    const RowCursor here = at;
    at.advance(by, a.heads);
    if (kPrefetch && row + RowPartition::kRows < end) load(next, at, row + RowPartition::kRows);
    float squares = 0;
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
      const auto w = weights(p);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = now.x[p][i];
        const float e = now.dy[p][i] * GateFactors<kGate>(now.z[p][i]).value;
        squares = fmaf(x, x, squares);
        dot = fmaf(e, RmsNorm ? x : w[i] * x, dot);
      }
    }
    float s = now.inverse_rms;
    if constexpr (RmsNorm) {
      dot = block_sum<RowPartition::kThreads>(dot, sums[0]) * a.inverse_width;
    } else {
      block_sums<RowPartition::kThreads>(sums, dot, squares);
      s = rsqrtf(fmaf(squares, a.inverse_width, a.epsilon));
      dot *= a.inverse_width * s;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = static_cast<int>(here.head) * a.width + column(p);
      if (column(p) >= a.width) continue;
      const auto w = weights(p);
      float dx[N];
      float dz[N];
      float y[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = now.x[p][i] * (RmsNorm ? ptx::reciprocal_approx(norm_weight(w[i])) : s);
        const float dy = now.dy[p][i];
        const GateFactors<kGate> gate(now.z[p][i]);
        const float e = dy * gate.value;
        y[i] = n * w[i] * gate.value;
        dz[i] = dy * (n * w[i]) * gate.derivative;
        dx[i] = s * (w[i] * e - n * dot);
        if constexpr (RmsNorm) dx[i] += now.dx[p][i];
        dw[p * N + i] += e * n;
      }
      a.dx.template store<N>(here.n, c, dx);
      if constexpr (kGate != Gate::none) a.dgate.template store<N>(here.n, c, dz);
      if (!RmsNorm && a.y.data != nullptr) a.y.template store<N>(here.n, c, y);
      if (RmsNorm && a.rounded.data != nullptr) a.rounded.template store<N>(here.n, c, dx);
    }
  }

  // Sums over the rows of the block in order.
  float* out = a.partials + std::int64_t{blockIdx.x} * a.width;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (RowPartition::kRows > 1) {
        dw_of_rows[row_of_block][column(p) + i] = dw[p * N + i];
      } else {
        if (column(p) < a.width) out[column(p) + i] = dw[p * N + i];
      }
    }
  }
  if constexpr (RowPartition::kRows > 1) {
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < a.width; c += RowPartition::kThreadsOfBlock) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < RowPartition::kRows; ++t) sum += dw_of_rows[t][c];
      out[c] = sum;
    }
  }
}

// Of the forward of narrow rows: as many as a large GPU runs at a time.
constexpr unsigned kNarrowForwardBlocks = 132 * 4;

// Partial sums of the backward: as many blocks as fit a large GPU.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width) {
  if (width <= 256) return partial_count(rows, 16, kMaxPartials * 3 / 2);
  return partial_count(rows, 4, width <= 1024 ? 3 * kMaxPartials : kMaxPartials / 2);
}

template <class X, class Y, Gate kGate>
void launch_forward(const Context& context, const ConstTensorView& x, const ConstTensorView& gate,
                    const ConstTensorView& weight, const TensorView& y, const TensorView& inverse_rms, float epsilon) {
  const std::int64_t width = weight.shape.elements();
  const std::int64_t heads = x.extent(1) / width;
  NormForwardArgs<X, Y> a{.x = as_rows<X>(x),
                          .gate = as_rows<X>(gate),
                          .weight = floats(weight),
                          .y = as_rows<Y>(y),
                          .inverse_rms = floats(inverse_rms),
                          .rows = static_cast<unsigned>(x.extent(0) * heads),
                          .heads = static_cast<unsigned>(heads),
                          .width = static_cast<int>(width),
                          .epsilon = epsilon};
  dispatch_forward(width, [&](auto partition) {
    using S = decltype(partition);
    const unsigned blocks = blocks_for(a.rows, S::kRows);
    launch_overlapped(context, "norm_forward", norm_forward_kernel<X, Y, kVectorWidth<X, Y>, S, kGate>,
                      S::kNarrow ? std::min(blocks, kNarrowForwardBlocks) : blocks, kBlockThreads, 0, a);
  });
}

template <class X, class DY, class DX, Gate kGate, bool RmsNorm>
void launch_backward(const Context& context, const GatedNormBackward& args, const ConstTensorView& inverse_rms,
                     const TensorView& rounded, std::span<std::byte> workspace) {
  const std::int64_t width = args.weight.shape.elements();
  const std::int64_t heads = args.x.extent(1) / width;
  const std::int64_t rows = args.x.extent(0) * heads;
  const std::int64_t blocks = norm_partials(rows, width);
  auto* partials = reinterpret_cast<float*>(workspace.data());
  const NormBackwardArgs<X, DY, DX> a{.x = as_rows<X>(args.x),
                                      .gate = as_rows<X>(args.gate),
                                      .weight = floats(args.weight),
                                      .inverse_rms = floats(inverse_rms),
                                      .dy = as_rows<DY>(args.dy),
                                      .dx = as_rows<DX>(args.dx),
                                      .dgate = as_rows<DX>(args.dgate),
                                      .y = as_rows<DX>(args.y),
                                      .rounded = as_rows<bf16>(rounded),
                                      .partials = partials,
                                      .rows = static_cast<unsigned>(rows),
                                      .heads = static_cast<unsigned>(heads),
                                      .rows_per_block = static_cast<unsigned>(ceil_div(rows, blocks)),
                                      .width = static_cast<int>(width),
                                      .inverse_width = 1.0F / static_cast<float>(width),
                                      .epsilon = args.epsilon};
  dispatch_backward(width, [&](auto partition) {
    norm_backward_kernel<X, DY, DX, kVectorWidth<X, DY, DX>, decltype(partition), kGate, RmsNorm>
        <<<static_cast<unsigned>(blocks), decltype(partition)::kThreadsOfBlock, 0, context.stream()>>>(a);
    check_launch("norm_backward");
  });
  add_partials(context, partials, blocks, width, floats(args.dweight));
}

template <class Body>
void dispatch_gate(const ConstTensorView& gate, GateActivation activation, const Body& body) {
  if (!gate) return body(std::integral_constant<Gate, Gate::none>());
  if (activation == GateActivation::sigmoid) return body(std::integral_constant<Gate, Gate::sigmoid>());
  body(std::integral_constant<Gate, Gate::silu>());
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
    launch_forward<typename decltype(x)::type, typename decltype(y)::type, Gate::none>(
        context, args.x, {}, args.weight, args.y, args.inverse_rms, args.epsilon);
  };
  const bool narrow = args.x.dtype == DType::bf16 && args.y.dtype == DType::bf16;
  if (!aligned(narrow ? 8 : 4, {args.x, args.weight, args.y}))
    return run(TypeTag<RuntimeType>(), TypeTag<RuntimeType>());
  dispatch_dtype(args.x.dtype, [&](auto x) { dispatch_dtype(args.y.dtype, [&](auto y) { run(x, y); }); });
}

void rms_norm_backward(const Context& context, const RmsNormBackward& args, std::span<std::byte> workspace) {
  const std::int64_t rows = check_norm(args.y, args.y.extent(1));
  check_matrix(args.dy, args.y.shape, "dy");
  check_matrix(args.dx, args.y.shape, "dx");
  check_vector(args.weight, args.y.extent(1), "weight");
  check_vector(args.dweight, args.y.extent(1), "dweight");
  check_vector(args.inverse_rms, rows, "inverse_rms");
  if (args.rounded) {
    check_matrix(args.rounded, args.y.shape, "rounded");
    require(args.rounded.dtype == DType::bf16, "rms_norm: rounded is {}, not BF16", name_of(args.rounded.dtype));
  }
  check_workspace(workspace, rms_norm_backward_workspace(args));
  if (rows == 0) return;
  const GatedNormBackward ungated{
      .x = args.y, .weight = args.weight, .dy = args.dy, .dx = args.dx, .dweight = args.dweight, .epsilon = 0.0F};
  const auto run = [&](auto y, auto dy, auto dx) {
    launch_backward<typename decltype(y)::type, typename decltype(dy)::type, typename decltype(dx)::type, Gate::none,
                    true>(context, ungated, args.inverse_rms, args.rounded, workspace);
  };
  const bool narrow = args.y.dtype == DType::bf16 && args.dy.dtype == DType::bf16 && args.dx.dtype == DType::bf16;
  if (!aligned(narrow ? 8 : 4, {args.y, args.weight, args.dy, args.dx, args.rounded}))
    return run(TypeTag<RuntimeType>(), TypeTag<RuntimeType>(), TypeTag<RuntimeType>());
  dispatch_dtype(args.y.dtype, [&](auto y) {
    dispatch_dtype(args.dy.dtype, [&](auto dy) { dispatch_dtype(args.dx.dtype, [&](auto dx) { run(y, dy, dx); }); });
  });
}

std::size_t rms_norm_backward_workspace(const RmsNormBackward& args) {
  return partials_bytes(args.y.extent(0), args.y.extent(1));
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
    dispatch_gate(args.gate, args.activation, [&](auto gate) {
      launch_forward<T, T, decltype(gate)::value>(context, args.x, args.gate, args.weight, args.y, {}, args.epsilon);
    });
  };
  const int N = args.x.dtype == DType::bf16 ? 8 : 4;
  if (width % N != 0 || !aligned(N, {args.x, args.gate, args.weight, args.y})) return run(TypeTag<RuntimeType>());
  dispatch_dtype(args.x.dtype, run);
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
    dispatch_gate(args.gate, args.activation, [&](auto gate) {
      launch_backward<T, T, T, decltype(gate)::value, false>(context, args, {}, {}, workspace);
    });
  };
  const int N = args.x.dtype == DType::bf16 ? 8 : 4;
  if (width % N != 0 || !aligned(N, {args.x, args.gate, args.weight, args.dy, args.dx, args.dgate, args.y}))
    return run(TypeTag<RuntimeType>());
  dispatch_dtype(args.x.dtype, run);
}

std::size_t gated_norm_backward_workspace(const GatedNormBackward& args) {
  const std::int64_t width = args.weight.shape.elements();
  if (width == 0) return 0;
  return partials_bytes(args.x.extent(0) * (args.x.extent(1) / width), width);
}

}  // namespace qdelta::cuda
