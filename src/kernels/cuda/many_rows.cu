// A step's product (step_product.cuh) of many rows, with what comes after it.
#include "kernels/cuda/many_rows.cuh"

namespace qdelta::cuda {
namespace {

template <After kAfter>
void dispatch(const Context& context, const StepProductArgs& a) {
  if (a.rows <= 16) return launch_many_rows<kAfter, 16, true>(context, a);
  if (a.rows <= 32) return launch_many_rows<kAfter, 32, true>(context, a);
  if constexpr (kAfter == After::conv) {
    require(false, "many_rows_product: a convolution of {} rows", a.rows);
  } else {
    const bool few = a.outputs < kFewOutputs && a.rows <= 512;  // few blocks, without clusters
    if (a.rows <= 64)
      return few ? launch_many_rows<kAfter, 64, true>(context, a) : launch_many_rows<kAfter, 64, false>(context, a);
    few ? launch_many_rows<kAfter, 128, true>(context, a) : launch_many_rows<kAfter, 128, false>(context, a);
  }
}

}  // namespace

void many_rows_product(const Context& context, After after, const StepProductArgs& a) {
  if (after == After::conv) return dispatch<After::conv>(context, a);
  if (after == After::swiglu) return dispatch<After::swiglu>(context, a);
  dispatch<After::nothing>(context, a);
}

}  // namespace qdelta::cuda
