// y = x w^T;  dx = dy w;  dw += dy^T x: oneDNN's float32 product on blocks of the result. The blocks depend on the
// shapes alone and each is computed by one thread, so the number of threads does not change a bit.
#include <dnnl.h>

#include <algorithm>

#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/linear_few_rows.h"
#include "kernels/cpu/view_check.h"

namespace qdelta {
namespace {

struct Matrix {
  float* data;
  std::int64_t rows, cols, ld;
};

Matrix matrix_of(const ConstTensorView& view, const char* name) {
  cpu::check_matrix(view, name);
  return {const_cast<float*>(reinterpret_cast<const float*>(view.data)), view.extent(0), view.extent(1), view.step(0)};
}

// Rows and columns of a block: large enough that packing pays, small enough that two cores find work in a small model.
constexpr std::int64_t kBlockRows = 256;
constexpr std::int64_t kBlockCols = 256;

// c (rows x cols) = op(a) op(b), or +=. 'T' means the operand is stored transposed.
void product(const Device& device, char a_layout, char b_layout, const Matrix& a, const Matrix& b, const Matrix& c,
             std::int64_t inner, bool add) {
  if (c.rows == 0 || c.cols == 0) return;
  const std::int64_t row_blocks = ceil_div(c.rows, kBlockRows);
  const std::int64_t col_blocks = ceil_div(c.cols, kBlockCols);
  parallel_for(row_blocks * col_blocks, thread_count(device.threads), [&](std::int64_t index, int /*worker*/) {
    const SingleThreaded one;
    const std::int64_t m = index % row_blocks * kBlockRows;
    const std::int64_t n = index / row_blocks * kBlockCols;
    const float* a_block = a.data + (a_layout == 'T' ? m : m * a.ld);
    const float* b_block = b.data + (b_layout == 'T' ? n * b.ld : n);
    dnnl_sgemm(a_layout, b_layout, std::min(kBlockRows, c.rows - m), std::min(kBlockCols, c.cols - n), inner, 1.0F,
               a_block, a.ld, b_block, b.ld, add ? 1.0F : 0.0F, c.data + m * c.ld + n, c.ld);
  });
}

}  // namespace

void cpu::linear_forward(const Device& device, const LinearForward& args) {
  const Matrix x = matrix_of(args.x, "x");
  const Matrix w = matrix_of(args.w, "w");
  const Matrix y = matrix_of(args.y, "y");
  require(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows, "linear: x {}, w {} and y {} do not fit",
          args.x.shape.text(), args.w.shape.text(), args.y.shape.text());
  if (x.rows <= cpu::kFewRows) return cpu::linear_few_rows(device, args);
  product(device, 'N', 'T', x, w, y, x.cols, args.add);
}

void cpu::linear_backward(const Device& device, const LinearBackward& args) {
  const Matrix x = matrix_of(args.x, "x");
  const Matrix w = matrix_of(args.w, "w");
  const Matrix dy = matrix_of(args.dy, "dy");
  require(x.cols == w.cols && dy.rows == x.rows && dy.cols == w.rows, "linear: x {}, w {} and dy {} do not fit",
          args.x.shape.text(), args.w.shape.text(), args.dy.shape.text());
  if (args.dx) product(device, 'N', 'N', dy, w, matrix_of(args.dx, "dx"), dy.cols, args.add_dx);
  if (args.dw) product(device, 'T', 'N', dy, x, matrix_of(args.dw, "dw"), dy.rows, true);
}

}  // namespace qdelta
