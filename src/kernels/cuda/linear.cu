// y = add + x w^T;  dx = dy w;  dw += dy^T x: cuBLASLt with float32 accumulation, and true float32 products where the
// operands are float32 (never tf32). For a single row y = x w^T is bound by reading w: a GEMV kernel. Under RowsAlone
// (row_blocks.h) it is that, too, or a step's product (step_product.cuh).
#include "kernels/cuda/fused_layers.h"
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/short_product.h"
#include "kernels/cuda/steps.h"
#include "kernels/row_blocks.h"

namespace qdelta::cuda {
namespace {

// A warp for each output of up to kGemvRows rows.
constexpr int kGemvRows = 8;
template <class T, int kRows>
__global__ __launch_bounds__(kBlockThreads) void gemv_kernel(Rows<T> x, Rows<T> w, Rows<RuntimeType> add,
                                                             Rows<RuntimeType> y, int inner, int outputs, int rows) {
  constexpr int N = kVectorWidth<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int o = static_cast<int>(blockIdx.x) * (kBlockThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.y) * kRows;
  if (o >= outputs) return;
  float sums[kRows] = {};
#pragma unroll(kRows == 1 ? 8 : 2)
  for (int c = lane * N; c < inner; c += 32 * N) {
    const auto weights = w.template load<N>(o, c);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= rows) continue;
      const auto values = x.template load<N>(first + r, c);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[r] = fmaf(values[i], weights[i], sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    const int row = first + r;
    if (lane > 0 || row >= rows) continue;
    y.set(row * y.ld + o, add.data != nullptr ? add.get(row * add.ld + o) + sum : sum);
  }
}

bool fits_gemv(const LinearForward& args) {
  return args.x.shape.elements() > 0 && args.w.extent(0) > 0 &&
         aligned(args.x.dtype == DType::bf16 ? 8 : 4, {args.x, args.w});
}

void gemv(const Context& context, const LinearForward& args) {
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t outputs = args.w.extent(0);
  dispatch_dtype(args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const dim3 grid(blocks_for(outputs, kBlockThreads / 32), rows == 1 ? 1 : blocks_for(rows, kGemvRows));
    const auto kernel = rows == 1 ? gemv_kernel<T, 1> : gemv_kernel<T, kGemvRows>;
    kernel<<<grid, kBlockThreads, 0, context.stream()>>>(
        as_rows<T>(args.x), as_rows<T>(args.w), as_rows<RuntimeType>(args.add), as_rows<RuntimeType>(args.y),
        static_cast<int>(args.x.extent(1)), static_cast<int>(outputs), static_cast<int>(rows));
    check_launch("linear_gemv");
  });
}

// The alignment of the rows in bytes, at most 16.
int alignment_of(const ConstTensorView& view) {
  auto bits = reinterpret_cast<std::uintptr_t>(view.data) | std::uintptr_t{16};
  bits |= static_cast<std::uintptr_t>(view.step(0)) * size_of(view.dtype);
  return static_cast<int>(bits & (~bits + 1));
}

// The stride of a matrix of one row may be anything.
std::int64_t stride_of(const ConstTensorView& view) {
  return view.extent(0) > 1 ? view.step(0) : std::max<std::int64_t>(view.step(0), view.extent(1));
}

// Of c = add + op(a) op(b).
MatmulShape shape_of(const ConstTensorView& a, bool transpose_a, const ConstTensorView& b, bool transpose_b,
                     const TensorView& c, const ConstTensorView& add) {
  MatmulShape p;
  p.rows = c.extent(0);
  p.cols = c.extent(1);
  p.inner = a.extent(transpose_a ? 0 : 1);
  p.a = {stride_of(a), transpose_a};
  p.b = {stride_of(b), transpose_b};
  p.ldc = stride_of(c);
  p.ld_add = add ? stride_of(add) : p.ldc;
  p.in = a.dtype;
  p.out = c.dtype;
  p.alignment = std::min({alignment_of(a), alignment_of(b), alignment_of(c), add ? alignment_of(add) : 16});
  p.rows_alone = RowBlocks::fixed() || RowsAlone::wanted();
  return p;
}

// c = add + op(a) op(b); add may be c, or missing.
void matmul(const Context& context, const ConstTensorView& a, bool transpose_a, const ConstTensorView& b,
            bool transpose_b, const TensorView& c, const ConstTensorView& add) {
  const std::int64_t inner = a.extent(transpose_a ? 0 : 1);
  if (c.shape.elements() == 0) return;
  if (inner == 0) {
    const std::size_t pitch = static_cast<std::size_t>(stride_of(c)) * size_of(c.dtype);
    const std::size_t width = static_cast<std::size_t>(c.extent(1)) * size_of(c.dtype);
    const auto rows = static_cast<std::size_t>(c.extent(0));
    if (!add) {
      QDELTA_CUDA(cudaMemset2DAsync(c.data, pitch, 0, width, rows, context.stream()));
    } else if (add.data != c.data) {
      QDELTA_CUDA(cudaMemcpy2DAsync(c.data, pitch, add.data,
                                    static_cast<std::size_t>(stride_of(add)) * size_of(add.dtype), width, rows,
                                    cudaMemcpyDeviceToDevice, context.stream()));
    }
    return;
  }
  context.matmul_cache().run(context, shape_of(a, transpose_a, b, transpose_b, c, add), a.data, b.data, add.data,
                             c.data);
}

void check_linear(const ConstTensorView& x, const ConstTensorView& w, const ConstTensorView& y, const char* name) {
  check_matrix(x, "x");
  check_matrix(w, "w");
  check_matrix(y, name);
  require(x.extent(1) == w.extent(1) && y.extent(0) == x.extent(0) && y.extent(1) == w.extent(0),
          "linear: x {}, w {} and {} {} do not fit", x.shape.text(), w.shape.text(), name, y.shape.text());
  require(x.dtype == w.dtype, "linear: x is {} but w is {}", name_of(x.dtype), name_of(w.dtype));
}

}  // namespace

void linear_forward(const Context& context, const LinearForward& args) {
  check_linear(args.x, args.w, args.y, "y");
  require(args.x.dtype == DType::bf16 || args.y.dtype == DType::f32, "linear: x is F32 but y is {}",
          name_of(args.y.dtype));
  if (args.add) {
    check_matrix(args.add, args.y.shape, "add");
    check_same_type("linear", args.y, {args.add});
  }
  if (!RowBlocks::fixed()) {
    const StepProduct product{.linear = args};
    if (RowsAlone::wanted() && fits_step_product(context, product)) return step_product(context, product);
    if ((RowsAlone::wanted() || args.x.extent(0) == 1) && fits_gemv(args)) return gemv(context, args);
  }
  matmul(context, args.x, false, args.w, true, args.y, args.add);
}

bool fits_linear_swiglu(const Context& context, const LinearSwigluForward& args) {
  const auto& [x, w, y, add] = args.linear;
  check_linear(x, w, y, "y");
  const TensorView& out = args.swiglu.y;
  const std::int64_t width = y.extent(1) / 2;
  return RowBlocks::fixed() && !add && x.shape.elements() > 0 && y.dtype == DType::bf16 && out.dtype == DType::bf16 &&
         2 * width == y.extent(1) && out.shape == Shape{y.extent(0), width} && out.step(1) == 1 &&
         context.matmul_cache().is_short_product(context, shape_of(x, false, w, true, y, {}));
}

void linear_swiglu_forward(const Context& context, const LinearSwigluForward& args) {
  const auto& [x, w, y, add] = args.linear;
  short_swiglu_product(context, shape_of(x, false, w, true, y, {}), x.data, w.data, args.swiglu.y.data,
                       stride_of(args.swiglu.y));
}

void linear_backward(const Context& context, const LinearBackward& args) {
  check_linear(args.x, args.w, args.dy, "dy");
  require(args.dy.dtype == args.w.dtype, "linear: dy is {} but w is {}", name_of(args.dy.dtype), name_of(args.w.dtype));
  if (args.dx) {
    check_matrix(args.dx, args.x.shape, "dx");
    require(args.w.dtype == DType::bf16 || args.dx.dtype == DType::f32, "linear: w is F32 but dx is {}",
            name_of(args.dx.dtype));
    matmul(context, args.dy, false, args.w, false, args.dx, args.add_dx ? ConstTensorView(args.dx) : ConstTensorView());
  }
  if (args.dw) {
    check_matrix(args.dw, args.w.shape, "dw");
    require(args.dw.dtype == DType::f32, "linear: dw is {}, but gradients of parameters are F32",
            name_of(args.dw.dtype));
    matmul(context, args.dy, true, args.x, false, args.dw, args.dw);
  }
}

}  // namespace qdelta::cuda
