#include "kernels/cuda/many_rows.cuh"
#include "kernels/cuda/short_product.h"

namespace qdelta::cuda {
namespace {

// Wide products have tiles enough for the library beyond it.
constexpr std::int64_t kMostRows = 128, kMostRowsOfFewOutputs = 512;

template <int kRows>
void launch(const Context& context, const StepProductArgs& args) {
  launch_many_rows<After::nothing, kRows, false, OneChain>(context, args);
}

}  // namespace

bool fits_short_product(const Context& context, const MatmulShape& shape) {
  return shape.rows <= (shape.cols < kFewOutputs ? kMostRowsOfFewOutputs : kMostRows) && shape.in == DType::bf16 &&
         !shape.a.transposed && shape.b.transposed && shape.alignment == 16 && shape.inner % 8 == 0 &&
         shape.cols * shape.b.ld < (std::int64_t{1} << 31) && capability_of(context) == 9;
}

void short_product(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add,
                   void* c) {
  StepProductArgs args{};
  args.x = a;
  args.x_ld = shape.a.ld;
  args.w = static_cast<const bf16*>(b);
  args.w_ld = shape.b.ld;
  args.rows = static_cast<int>(shape.rows);
  args.inner = static_cast<int>(shape.inner);
  args.outputs = static_cast<int>(shape.cols);
  args.slice_width = static_cast<int>(round_up(shape.inner, kPanelColumns));
  args.add = {.data = const_cast<void*>(add), .ld = shape.ld_add, .is_bf16 = shape.out == DType::bf16};
  args.y = {.data = c, .ld = shape.ldc, .is_bf16 = shape.out == DType::bf16};
  // Few outputs are few tiles: then tiles are small, to have a block for every SM.
  if (shape.cols < kFewOutputs) return shape.rows <= 128 ? launch<16>(context, args) : launch<32>(context, args);
  shape.rows <= 32 ? launch<32>(context, args) : launch<64>(context, args);
}

}  // namespace qdelta::cuda
