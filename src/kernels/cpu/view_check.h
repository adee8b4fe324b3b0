// Checks that the kernels of layers.h share.
#pragma once

#include "core/tensor.h"

namespace qdelta::cpu {

// float32, two dimensions, contiguous columns.
inline void check_matrix(const ConstTensorView& view, const char* name) {
  require(static_cast<bool>(view), "{} is missing", name);
  require(view.dtype == DType::f32 && view.shape.rank == 2 && (view.step(1) == 1 || view.extent(1) <= 1),
          "{} must be a float32 matrix with contiguous columns, not {} {}", name, name_of(view.dtype),
          view.shape.text());
}

inline void check_vector(const ConstTensorView& view, std::int64_t length, const char* name) {
  require(static_cast<bool>(view), "{} is missing", name);
  require(view.dtype == DType::f32 && view.shape.elements() == length && view.contiguous(),
          "{} must be {} contiguous floats, not {} {}", name, length, name_of(view.dtype), view.shape.text());
}

template <class Byte>
[[nodiscard]] auto* floats(const BasicView<Byte>& view) {
  if constexpr (std::is_const_v<Byte>) {
    return reinterpret_cast<const float*>(view.data);
  } else {
    return reinterpret_cast<float*>(view.data);
  }
}

}  // namespace qdelta::cpu
