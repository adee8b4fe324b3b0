#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cuda/many_rows.cuh"
#include "kernels/cuda/short_product.h"

namespace qdelta::cuda {
namespace {

// Wide products have tiles enough for the library beyond it.
constexpr std::int64_t kMostRows = 128, kMostRowsOfFewOutputs = 512;

// How long a product takes with so many rows of x to a block, in rows (of w or x) that an SM could load meanwhile if it
// were the only one: all together get less from L2. Small tiles load w again for each of them, large ones leave SMs
// idle.
double loading_time(const Context& context, const MatmulShape& shape, std::int64_t rows_of_tile) {
  constexpr double kShareOfEach = 0.3;  // of what one could have: 4.3 TB/s for all of an H200, by 64 bytes a clock
  const double sms = context.sm_count();
  const std::int64_t row_tiles = ceil_div(shape.rows, rows_of_tile);
  const std::int64_t output_tiles = ceil_div(shape.cols, kTile);
  const auto by_all = static_cast<double>(output_tiles * (row_tiles * kTile + shape.rows));
  const double blocks_of_one = std::ceil(static_cast<double>(output_tiles * row_tiles) / sms);
  return std::max(by_all / (sms * kShareOfEach),
                  blocks_of_one * static_cast<double>(kTile + std::min(rows_of_tile, shape.rows)));
}

template <After kAfter>
void launch(const Context& context, const MatmulShape& shape, const StepProductArgs& args) {
  constexpr std::array<std::int64_t, 4> kTiles = {16, 32, 64, 128};
  switch (std::ranges::min(kTiles, {}, [&](std::int64_t rows) { return loading_time(context, shape, rows); })) {
    case 16:
      return launch_many_rows<kAfter, 16, false, OneChain>(context, args);
    case 32:
      return launch_many_rows<kAfter, 32, false, OneChain>(context, args);
    case 64:
      return launch_many_rows<kAfter, 64, false, OneChain>(context, args);
    default:
      return launch_many_rows<kAfter, 128, false, OneChain>(context, args);
  }
}

StepProductArgs arguments(const MatmulShape& shape, const void* a, const void* b) {
  StepProductArgs args{};
  args.x = a;
  args.x_ld = shape.a.ld;
  args.w = static_cast<const bf16*>(b);
  args.w_ld = shape.b.ld;
  args.rows = static_cast<int>(shape.rows);
  args.inner = static_cast<int>(shape.inner);
  args.outputs = static_cast<int>(shape.cols);
  args.slice_width = static_cast<int>(round_up(shape.inner, kPanelColumns));
  return args;
}

}  // namespace

bool fits_short_product(const Context& context, const MatmulShape& shape) {
  return shape.rows <= (shape.cols < kFewOutputs ? kMostRowsOfFewOutputs : kMostRows) && shape.in == DType::bf16 &&
         !shape.a.transposed && shape.b.transposed && shape.alignment == 16 && shape.inner % 8 == 0 &&
         shape.cols * shape.b.ld < (std::int64_t{1} << 31) && capability_of(context) == 9;
}

void short_product(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add,
                   void* c) {
  StepProductArgs args = arguments(shape, a, b);
  args.add = {.data = const_cast<void*>(add), .ld = shape.ld_add, .is_bf16 = shape.out == DType::bf16};
  args.y = {.data = c, .ld = shape.ldc, .is_bf16 = shape.out == DType::bf16};
  launch<After::nothing>(context, shape, args);
}

void short_swiglu_product(const Context& context, const MatmulShape& shape, const void* a, const void* b, void* y,
                          std::int64_t ld) {
  StepProductArgs args = arguments(shape, a, b);
  args.outputs /= 2;
  args.y = {.data = y, .ld = ld, .is_bf16 = true};
  launch<After::rounded_swiglu>(context, shape, args);
}

}  // namespace qdelta::cuda
