// Host code that forward and backward of the selective scan share: arguments, dispatch, and the state passing.
#pragma once

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/selective_scan.cuh"
#include "kernels/cuda/selective_scan.h"

namespace qdelta::cuda {

// In place of a chunk's sum of delta: a sequence begins (in the backward: ends) in it, so no state passes through.
inline constexpr float kReset = -1.0F;

// From the chunk states and the sums of delta to the state before each chunk; backward: from the last chunk to the
// first, to the gradient of the state after it. In place.
void pass_states(const Context& context, const SelectiveScanInputs& in, float* chunk_states, const float* sums,
                 bool backward);
// to = from, or zeros where that is missing.
void copy_states(const Context& context, const ConstTensorView& from, const TensorView& to);
[[nodiscard]] std::size_t selective_scan_backward_workspace(const SelectiveScanInputs& in);

// Of the inputs of a forward, a backward or a step.
template <class T, class Inputs>
SelectiveScanArgs<T> scan_args(const Inputs& in) {
  SelectiveScanArgs<T> scan{.x = as_rows<T>(in.x),
                            .dt = as_rows<T>(in.dt),
                            .B = as_rows<T>(in.B),
                            .C = as_rows<T>(in.C),
                            .z = as_rows<T>(in.z),
                            .A_log = floats(in.A_log),
                            .skip = floats(in.skip),
                            .dt_bias = floats(in.dt_bias),
                            .sequences = {},
                            .rows = static_cast<int>(in.x.extent(0)),
                            .channels = static_cast<int>(in.x.extent(1)),
                            .states = static_cast<int>(in.A_log.extent(1))};
  if constexpr (requires { in.offsets; }) {
    scan.sequences = {in.offsets.data(), static_cast<int>(in.offsets.size()) - 1};
  }
  return scan;
}

// Calls body(element type, states of a thread).
template <class Body>
void dispatch_scan(DType dtype, std::int64_t states, const Body& body) {
  dispatch_dtype(dtype, [&](auto type) {
    if (states <= 4) return body(type, std::integral_constant<int, 1>());
    if (states <= 8) return body(type, std::integral_constant<int, 2>());
    if (states <= 16) return body(type, std::integral_constant<int, 4>());
    if (states <= 32) return body(type, std::integral_constant<int, 8>());
    body(type, std::integral_constant<int, 16>());
  });
}

}  // namespace qdelta::cuda
