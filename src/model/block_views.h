// Views that the parts of a block share: memory taken from a plan, columns of a matrix, the states of a call.
#pragma once

#include "core/error.h"
#include "core/memory.h"
#include "kernels/row_blocks.h"
#include "model/mixer.h"

namespace qdelta::block_views {

inline TensorView take(BumpAllocator& memory, const Shape& shape, DType dtype = DType::f32) {
  return {memory.take<std::byte>(shape.elements() * static_cast<std::int64_t>(size_of(dtype))), dtype, shape};
}

// A matrix whose rows start at multiples of 16 bytes, whatever their width.
inline TensorView take_rows(BumpAllocator& memory, std::int64_t rows, std::int64_t width, DType dtype) {
  const std::int64_t step = round_up(width, 16 / static_cast<std::int64_t>(size_of(dtype)));
  TensorView view = take(memory, {rows, step}, dtype);
  view.shape = {rows, width};
  return view;
}

// Columns [begin, begin + width) of a matrix.
template <class Byte>
BasicView<Byte> columns(const BasicView<Byte>& matrix, std::int64_t begin, std::int64_t width) {
  if (begin < 0) return {};
  BasicView<Byte> view = matrix;
  view.data += begin * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {matrix.extent(0), width};
  return view;
}

// All elements of a contiguous float32 view.
inline std::span<float> floats_of(const TensorView& view) {
  return {reinterpret_cast<float*>(view.data), static_cast<std::size_t>(view.shape.elements())};
}

// Indices [begin, begin + count) of an axis.
template <class Byte>
BasicView<Byte> narrowed(const BasicView<Byte>& view, int axis, std::int64_t begin, std::int64_t count) {
  if (!view) return {};
  BasicView<Byte> out = view;
  out.data += begin * view.step(axis) * static_cast<std::int64_t>(size_of(view.dtype));
  out.shape.extent[static_cast<std::size_t>(axis)] = count;
  return out;
}

// `row` as a matrix of as many rows as `like`.
inline ConstTensorView repeated(const ConstTensorView& row, const TensorView& like) {
  ConstTensorView view = row;
  view.shape = like.shape;
  view.stride[0] = 0;
  return view;
}

inline ConstTensorView indices(std::span<const std::int64_t> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), DType::i64, {static_cast<std::int64_t>(values.size())}};
}

// Every sequence has one token and a state: a step in place on the pool.
inline bool steps(const Batch& batch, const MixerState& state) {
  return static_cast<bool>(state) && batch.rows() == batch.sequences() && !RowBlocks::fixed();
}

}  // namespace qdelta::block_views
