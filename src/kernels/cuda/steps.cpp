#include "kernels/cuda/steps.h"

#include "kernels/row_blocks.h"

namespace qdelta::cuda {
namespace {

// A few rows have sums of their own order.
bool few(const RmsNormForward& norm) { return norm.x.extent(0) <= kFewRows && !RowBlocks::fixed(); }

}  // namespace

bool mixer_step(const Context& context, const MixerStep& args) {
  const FewRowsProduct project{.norm = &args.norm, .linear = args.project, .conv = &args.conv};
  const FewRowsProduct out{.gated_norm = &args.out_norm, .linear = args.out};
  if (few(args.norm) && fits_few_rows(context, project) && fits_few_rows(context, out)) {
    few_rows_product(context, project);
    gated_recurrence_step(context, args.gates, args.recurrence);
    few_rows_product(context, out);
    return true;
  }
  if (!fits_heads_step(context, args)) return false;
  rms_norm_forward(context, args.norm);
  linear_forward(context, args.project);
  heads_step(context, args);
  linear_forward(context, args.out);
  return true;
}

bool mlp_step(const Context& context, const MlpStep& args) {
  const FewRowsProduct gate_up{.norm = &args.norm, .linear = args.gate_up, .swiglu = &args.swiglu};
  const FewRowsProduct down{.linear = args.down};
  if (!few(args.norm) || !fits_few_rows(context, gate_up) || !fits_few_rows(context, down)) return false;
  few_rows_product(context, gate_up);
  few_rows_product(context, down);
  return true;
}

bool head_step(const Context& context, const HeadStep& args) {
  const FewRowsProduct head{.norm = &args.norm, .linear = args.head};
  if (!few(args.norm) || !fits_few_rows(context, head)) return false;
  few_rows_product(context, head);
  return true;
}

}  // namespace qdelta::cuda
