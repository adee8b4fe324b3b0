// Ops of layers.h in a row, in one launch where a GPU has a kernel for them; elsewhere, and on the CPU, one after the
// other. The bits are the same.
#pragma once

#include "kernels/layers.h"

namespace qdelta {

// y = silu(z) u, [z u] = x w^T. What `linear` writes need not be in memory afterwards.
struct LinearSwigluForward {
  LinearForward linear;
  SwigluForward swiglu;  // of the two halves of linear.y
};
void linear_swiglu_forward(const Device& device, const LinearSwigluForward& args);

// Neither reads what the other writes.
struct ConvGatesForward {
  ShortConvForward conv;
  GatesForward gates;
};
void conv_gates_forward(const Device& device, const ConvGatesForward& args, Workspace& workspace);

}  // namespace qdelta
