#include "kernels/cuda/steps.h"

#include "kernels/row_blocks.h"

namespace qdelta::cuda {

bool mixer_step(const Context& context, const MixerStep& args) {
  const StepProduct project{.norm = &args.norm, .linear = args.project, .conv = &args.conv};
  const StepProduct out{.gated_norm = &args.out_norm, .linear = args.out};
  if (RowBlocks::fixed() || !fits_step_product(context, project) || !fits_step_product(context, out)) return false;
  step_product(context, project);
  gated_recurrence_step(context, args.gates, args.recurrence);
  step_product(context, out);
  return true;
}

bool mlp_step(const Context& context, const MlpStep& args) {
  const StepProduct gate_up{.norm = &args.norm, .linear = args.gate_up, .swiglu = &args.swiglu};
  const StepProduct down{.linear = args.down};
  if (RowBlocks::fixed() || !fits_step_product(context, gate_up) || !fits_step_product(context, down)) return false;
  step_product(context, gate_up);
  step_product(context, down);
  return true;
}

bool head_step(const Context& context, const HeadStep& args) {
  const StepProduct head{.norm = &args.norm, .linear = args.head};
  if (RowBlocks::fixed() || !fits_step_product(context, head)) return false;
  step_product(context, head);
  return true;
}

}  // namespace qdelta::cuda
