// y = add + x w^T;  dx = dy w;  dw += dy^T x: oneDNN's float32 product on blocks of the result. The blocks depend on
// the shapes alone and each is computed by one thread, so the number of threads does not change a bit. Where rows must
// not depend on their number (row_blocks.h), blocks of kRowBlock rows are always multiplied as such a block.
#include <dnnl.h>
#include <dnnl_debug.h>

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/linear_few_rows.h"
#include "kernels/cpu/view_check.h"
#include "kernels/row_blocks.h"

namespace qdelta::cpu {
namespace {

struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0, cols = 0, ld = 0;
};

Matrix matrix_of(const ConstTensorView& view, const char* name) {
  check_matrix(view, name);
  return {const_cast<float*>(reinterpret_cast<const float*>(view.data)), view.extent(0), view.extent(1), view.step(0)};
}

// Rows and columns of a block: large enough that packing pays, but not so large that threads find no work.
constexpr std::int64_t kBlockRows = 512;
constexpr std::int64_t kWideBlock = 512, kNarrowBlock = 256;
constexpr std::int64_t kEnoughBlocks = 8;

// c (rows x cols) = add + op(a) op(b), where add may be c, or have no data. 'T' means the operand is stored transposed.
void product(const Device& device, char a_layout, char b_layout, const Matrix& a, const Matrix& b, const Matrix& c,
             std::int64_t inner, const Matrix& add) {
  if (c.rows == 0 || c.cols == 0) return;
  const std::int64_t block_rows = RowBlocks::fixed() ? kRowBlock : kBlockRows;
  const std::int64_t row_blocks = ceil_div(c.rows, block_rows);
  const bool wide = (RowBlocks::fixed() ? 1 : row_blocks) * ceil_div(c.cols, kWideBlock) >= kEnoughBlocks;
  const std::int64_t block_cols = wide ? kWideBlock : kNarrowBlock;
  const std::int64_t col_blocks = ceil_div(c.cols, block_cols);
  std::atomic<dnnl_status_t> failure{dnnl_success};  // of any block: threads must not throw
  parallel_for(row_blocks * col_blocks, thread_count(device.threads), [&](std::int64_t index, int /*worker*/) {
    const SingleThreaded one;
    const std::int64_t m = index % row_blocks * block_rows;
    const std::int64_t n = index / row_blocks * block_cols;
    const float* a_block = a.data + (a_layout == 'T' ? m : m * a.ld);
    const float* b_block = b.data + (b_layout == 'T' ? n * b.ld : n);
    const std::int64_t rows = std::min(block_rows, c.rows - m);
    const std::int64_t cols = std::min(block_cols, c.cols - n);
    float* c_block = c.data + m * c.ld + n;
    if (add.data != nullptr && add.data != c.data) {
      for (std::int64_t r = 0; r < rows; ++r) std::copy_n(add.data + (m + r) * add.ld + n, cols, c_block + r * c.ld);
    }
    const dnnl_status_t status = dnnl_sgemm(a_layout, b_layout, rows, cols, inner, 1.0F, a_block, a.ld, b_block, b.ld,
                                            add.data != nullptr ? 1.0F : 0.0F, c_block, c.ld);
    if (status != dnnl_success) failure = status;
  });
  if (failure == dnnl_success) return;
  Status status = Status::internal;
  if (failure == dnnl_out_of_memory) status = Status::out_of_memory;
  if (failure == dnnl_invalid_arguments) status = Status::invalid_argument;
  fail(status, "oneDNN failed to multiply [{}, {}] by [{}, {}]: {}", c.rows, inner, inner, c.cols,
       dnnl_status2str(failure));
}

template <class Byte>
BasicView<Byte> rows_of(const BasicView<Byte>& matrix, std::int64_t begin, std::int64_t count) {
  if (!matrix) return matrix;
  BasicView<Byte> view = matrix;
  view.data += begin * matrix.step(0) * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {count, matrix.extent(1)};
  return view;
}

}  // namespace

void linear_forward(const Device& device, const LinearForward& args) {
  const Matrix x = matrix_of(args.x, "x");
  const Matrix w = matrix_of(args.w, "w");
  const Matrix y = matrix_of(args.y, "y");
  require(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows, "linear: x {}, w {} and y {} do not fit",
          args.x.shape.text(), args.w.shape.text(), args.y.shape.text());
  const Matrix add = args.add ? matrix_of(args.add, "add") : Matrix{};
  require(!args.add || args.add.shape == args.y.shape, "linear: add {} and y {} do not fit", args.add.shape.text(),
          args.y.shape.text());
  if (const std::int64_t rest = x.rows % kRowBlock; RowBlocks::fixed() && rest > 0 && rest < x.rows) {
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      return LinearForward{.x = rows_of(args.x, begin, count),
                           .w = args.w,
                           .y = rows_of(args.y, begin, count),
                           .add = rows_of(args.add, begin, count)};
    };
    cpu::linear_forward(device, part(0, x.rows - rest));
    return cpu::linear_forward(device, part(x.rows - rest, rest));
  }
  if (x.rows <= kFewRows || RowsAlone::wanted()) return linear_few_rows(device, args);
  product(device, 'N', 'T', x, w, y, x.cols, add);
}

void linear_backward(const Device& device, const LinearBackward& args) {
  const Matrix x = matrix_of(args.x, "x");
  const Matrix w = matrix_of(args.w, "w");
  const Matrix dy = matrix_of(args.dy, "dy");
  require(x.cols == w.cols && dy.rows == x.rows && dy.cols == w.rows, "linear: x {}, w {} and dy {} do not fit",
          args.x.shape.text(), args.w.shape.text(), args.dy.shape.text());
  if (args.dx) {
    const Matrix dx = matrix_of(args.dx, "dx");
    product(device, 'N', 'N', dy, w, dx, dy.cols, args.add_dx ? dx : Matrix{});
  }
  if (args.dw) {
    const Matrix dw = matrix_of(args.dw, "dw");
    product(device, 'T', 'N', dy, x, dw, dy.rows, dw);
  }
}

}  // namespace qdelta::cpu
