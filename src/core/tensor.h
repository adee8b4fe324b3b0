// Tensors: a view (someone else's memory, any strides) and an owner (row-major, 64-byte aligned).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"

namespace qdelta {

inline constexpr int kMaxRank = 6;

// Extents of a tensor, fixed capacity so that views never allocate.
struct Shape {
  int rank = 0;
  std::array<std::int64_t, kMaxRank> extent{};

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);

  [[nodiscard]] std::int64_t operator[](int axis) const noexcept { return extent[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] std::int64_t elements() const noexcept;
  // Whether elements, bytes and strides can be counted without overflow: no extent is negative, and the product of
  // those that are not zero is at most 2^48. What comes from outside must be asked before anything else.
  [[nodiscard]] bool countable() const noexcept;
  [[nodiscard]] std::string text() const;  // "[2, 64, 4, 128]"
  friend bool operator==(const Shape& a, const Shape& b) noexcept;
};

// Memory that belongs to someone else. Strides count elements. `data == nullptr` means "not given".
template <class Byte>  // std::byte or const std::byte
struct BasicView {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  std::array<std::int64_t, kMaxRank> stride{};

  BasicView() = default;
  BasicView(Byte* data_, DType dtype_, const Shape& shape_) : data(data_), dtype(dtype_), shape(shape_) {
    std::int64_t step = 1;
    for (int axis = shape.rank - 1; axis >= 0; --axis) {
      stride[static_cast<std::size_t>(axis)] = step;
      step *= shape[axis];
    }
  }
  // A view that may write converts to one that only reads.
  operator BasicView<const std::byte>() const {  // NOLINT(google-explicit-constructor): the safe direction
    BasicView<const std::byte> view;
    view.data = data;
    view.dtype = dtype;
    view.shape = shape;
    view.stride = stride;
    return view;
  }

  [[nodiscard]] explicit operator bool() const noexcept { return data != nullptr; }
  [[nodiscard]] std::int64_t extent(int axis) const noexcept { return shape[axis]; }
  [[nodiscard]] std::int64_t step(int axis) const noexcept { return stride[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] bool contiguous() const noexcept {
    std::int64_t expected = 1;
    for (int axis = shape.rank - 1; axis >= 0; --axis) {
      if (shape[axis] != 1 && step(axis) != expected) return false;
      expected *= shape[axis];
    }
    return true;
  }
};

using TensorView = BasicView<std::byte>;
using ConstTensorView = BasicView<const std::byte>;

// A row-major tensor that owns its memory, zero-filled.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape);

  [[nodiscard]] TensorView view() noexcept { return {storage_.data(), dtype_, shape_}; }
  [[nodiscard]] ConstTensorView view() const noexcept { return {storage_.data(), dtype_, shape_}; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::int64_t elements() const noexcept { return shape_.elements(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_of(dtype_, elements()); }
  [[nodiscard]] std::byte* data() noexcept { return storage_.data(); }
  [[nodiscard]] const std::byte* data() const noexcept { return storage_.data(); }

  template <class T>
  [[nodiscard]] std::span<T> as() {
    check_type(dtype_of<T>::value);
    return {reinterpret_cast<T*>(storage_.data()), static_cast<std::size_t>(elements())};
  }
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    check_type(dtype_of<T>::value);
    return {reinterpret_cast<const T*>(storage_.data()), static_cast<std::size_t>(elements())};
  }

 private:
  void check_type(DType asked) const;

  DType dtype_ = DType::f32;
  Shape shape_;
  AlignedBuffer storage_;
};

// A row-major copy with the element type changed; handles any strides of f32, bf16 and f64, and i32/i64 unchanged.
[[nodiscard]] Tensor converted(const ConstTensorView& view, DType dtype);
// Element `index` (row-major order over the shape) of an f32, bf16 or f64 view, as double.
[[nodiscard]] double element_as_double(const ConstTensorView& view, std::int64_t index);

// The elements of an i32 or i64 vector; `name` is for the message.
[[nodiscard]] std::vector<std::int64_t> integers_of(const ConstTensorView& view, std::string_view name);

}  // namespace qdelta
