#include "kernels/fused_layers.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/fused_layers.h"
#include "kernels/work_times.h"
#endif

namespace qdelta {

void linear_swiglu_forward(const Device& device, const LinearSwigluForward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr && cuda::fits_linear_swiglu(*device.gpu, args)) {
    const TimedWork timed(Work::products);
    return cuda::linear_swiglu_forward(*device.gpu, args);
  }
#endif
  linear_forward(device, args.linear);
  swiglu_forward(device, args.swiglu);
}

void conv_gates_forward(const Device& device, const ConvGatesForward& args, Workspace& workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr && cuda::fits_conv_gates(args)) {
    const TimedWork timed(Work::convolution);
    return cuda::conv_gates_forward(*device.gpu, args);
  }
#endif
  short_conv_forward(device, args.conv, workspace);
  gates_forward(device, args.gates);
}

}  // namespace qdelta
