#include "kernels/steps.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/steps.h"
#endif

namespace qdelta {

void mixer_step(const Device& device, const MixerStep& args, Workspace& workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr && cuda::mixer_step(*device.gpu, args)) return;
#endif
  rms_norm_forward(device, args.norm);
  linear_forward(device, args.project);
  short_conv_forward(device, args.conv, workspace);
  gates_forward(device, args.gates);
  recurrence_step(device, args.recurrence, workspace);
  gated_norm_forward(device, args.out_norm);
  linear_forward(device, args.out);
}

void mlp_step(const Device& device, const MlpStep& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr && cuda::mlp_step(*device.gpu, args)) return;
#endif
  rms_norm_forward(device, args.norm);
  linear_forward(device, args.gate_up);
  swiglu_forward(device, args.swiglu);
  linear_forward(device, args.down);
}

void head_step(const Device& device, const HeadStep& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr && cuda::head_step(*device.gpu, args)) return;
#endif
  rms_norm_forward(device, args.norm);
  linear_forward(device, args.head);
}

}  // namespace qdelta
