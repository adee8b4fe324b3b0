// Host code that the selective scan's forward and backward share.
#pragma once

#include "kernels/cuda/selective_scan.cuh"
#include "kernels/cuda/selective_scan.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {

// In place of a chunk's sum of delta: a sequence begins (in the backward: ends) in it, so nothing goes through it.
inline constexpr float kCut = -1.0F;

// From each chunk's carry, and its sum of delta, to the state before it; backward: from the last to the first, to the
// gradient of the state after it. In place.
void join_chunks(const Context& context, const SelectiveScanInputs& in, float* carries, const float* sums,
                 bool backward);
// to = from, or zeros where that is missing.
void copy_states(const Context& context, const ConstTensorView& from, const TensorView& to);
[[nodiscard]] std::size_t selective_scan_backward_workspace(const SelectiveScanInputs& in);

// Of the inputs of a forward, a backward or a step.
template <class T, class Inputs>
Scan<T> scan_of(const Inputs& in) {
  Scan<T> scan{rows_of<T>(in.x),
               rows_of<T>(in.dt),
               rows_of<T>(in.B),
               rows_of<T>(in.C),
               rows_of<T>(in.z),
               floats(in.A_log),
               floats(in.skip),
               floats(in.dt_bias),
               {},
               static_cast<int>(in.x.extent(0)),
               static_cast<int>(in.x.extent(1)),
               static_cast<int>(in.A_log.extent(1))};
  if constexpr (requires { in.offsets; }) {
    scan.sequences = {in.offsets.data(), static_cast<int>(in.offsets.size()) - 1};
  }
  return scan;
}

// Calls body(element type, states of a thread).
template <class Body>
void with_scan(DType dtype, std::int64_t states, const Body& body) {
  with_type(dtype, [&](auto type) {
    if (states <= 4) return body(type, std::integral_constant<int, 1>());
    if (states <= 8) return body(type, std::integral_constant<int, 2>());
    if (states <= 16) return body(type, std::integral_constant<int, 4>());
    if (states <= 32) return body(type, std::integral_constant<int, 8>());
    body(type, std::integral_constant<int, 16>());
  });
}

}  // namespace qdelta::cuda
