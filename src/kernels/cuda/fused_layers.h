// The ops of kernels/fused_layers.h, where there is a kernel for them.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/fused_layers.h"

namespace qdelta::cuda {

// Of short prompts (short_product.h).
[[nodiscard]] bool fits_linear_swiglu(const Context& context, const LinearSwigluForward& args);
void linear_swiglu_forward(const Context& context, const LinearSwigluForward& args);

// All but steps, which have other kernels (kernels/steps.h).
[[nodiscard]] bool fits_conv_gates(const ConvGatesForward& args);
void conv_gates_forward(const Context& context, const ConvGatesForward& args);

}  // namespace qdelta::cuda
