// Host side of the layer kernels: checks of views, dispatch on element types, grid sizes, partial sums.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/memory.h"
#include "core/tensor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/row_kernels.cuh"

namespace qdelta::cuda {

// float32 or bfloat16, two dimensions, rows contiguous.
inline void check_matrix(const ConstTensorView& view, const char* name) {
  require(static_cast<bool>(view), "{} is missing", name);
  require((view.dtype == DType::f32 || view.dtype == DType::bf16) && view.shape.rank == 2 &&
              (view.step(1) == 1 || view.extent(1) <= 1),
          "{} must be a float32 or bfloat16 matrix with contiguous columns, not {} {}", name, name_of(view.dtype),
          view.shape.text());
}
inline void check_matrix(const ConstTensorView& view, const Shape& shape, const char* name) {
  check_matrix(view, name);
  require(view.shape == shape, "{} has shape {}, expected {}", name, view.shape.text(), shape.text());
}
inline void check_vector(const ConstTensorView& view, std::int64_t length, const char* name) {
  require(static_cast<bool>(view), "{} is missing", name);
  require(view.dtype == DType::f32 && view.shape.elements() == length && view.contiguous(),
          "{} must be {} contiguous floats, not {} {}", name, length, name_of(view.dtype), view.shape.text());
}
inline void check_same_type(const char* op, const ConstTensorView& a, std::initializer_list<ConstTensorView> others) {
  for (const ConstTensorView& other : others) {
    require(!other || other.dtype == a.dtype, "{}: activations of {} and {} in one call", op, name_of(a.dtype),
            name_of(other.dtype));
  }
}
inline void check_workspace(std::span<std::byte> workspace, std::size_t needed) {
  require(workspace.size() >= needed, "the workspace has {} bytes, {} are needed", workspace.size(), needed);
  require(needed == 0 || reinterpret_cast<std::uintptr_t>(workspace.data()) % kAlignment == 0,
          "the workspace does not start at a multiple of {} bytes", kAlignment);
}

inline float* floats(const TensorView& view) { return reinterpret_cast<float*>(view.data); }
inline const float* floats(const ConstTensorView& view) { return reinterpret_cast<const float*>(view.data); }

template <class T>
Rows<T> as_rows(const ConstTensorView& view) {
  auto* data = const_cast<std::byte*>(view.data);  // a kernel writes only what came as a TensorView
  if constexpr (std::is_same_v<T, RuntimeType>) {
    return {.data = data, .ld = view.step(0), .is_bf16 = view.dtype == DType::bf16};
  } else {
    return {reinterpret_cast<T*>(data), view.step(0)};
  }
}

// Whether every row of the views can be accessed N elements at a time; missing views do not count.
inline bool aligned(int N, std::initializer_list<ConstTensorView> views) {
  for (const ConstTensorView& view : views) {
    if (!view) continue;
    const std::size_t bytes = size_of(view.dtype) * static_cast<std::size_t>(N);
    if (reinterpret_cast<std::uintptr_t>(view.data) % bytes != 0) return false;
    if (view.shape.rank == 2 && (view.extent(1) % N != 0 || (view.extent(0) > 1 && view.step(0) % N != 0)))
      return false;
  }
  return true;
}

template <class T>
struct TypeTag {
  using type = T;
};
// Calls body(TypeTag<float>) or body(TypeTag<bf16>).
template <class Body>
void dispatch_dtype(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(TypeTag<bf16>());
  } else {
    body(TypeTag<float>());
  }
}

inline constexpr int kBlockThreads = 256;
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>(ceil_div(items, per_block));
}
// Kernels compute the row of a work item with 32-bit division.
inline void check_count(std::int64_t items, const char* op) {
  require(items < (std::int64_t{1} << 32), "{}: {} pieces of a row are too many for one launch", op, items);
}

// Sums over rows are deterministic: kernels store a partial sum for each block of rows, at most kMaxPartials (or
// another limit), and add_partials adds these in order. Their number depends on the number of rows alone.
inline constexpr std::int64_t kMaxPartials = 264;  // two blocks for each SM of a large GPU
inline std::int64_t partial_count(std::int64_t rows, std::int64_t least_rows, std::int64_t limit = kMaxPartials) {
  const std::int64_t most = std::min(limit, std::max<std::int64_t>(1, ceil_div(rows, least_rows)));
  return std::max<std::int64_t>(1, ceil_div(rows, std::max<std::int64_t>(1, ceil_div(rows, most))));
}
// total[i] += sum over p of partials[p * width + i]
void add_partials(const Context& context, const float* partials, std::int64_t count, std::int64_t width, float* total);

}  // namespace qdelta::cuda
