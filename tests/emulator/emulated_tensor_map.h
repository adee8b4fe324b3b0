// What a tensor map holds for the emulator, and the copy of a box by it: of 16-bit elements in four dimensions, with
// the 128-byte swizzle.
#pragma once

#include <cstdint>

namespace emulator {

struct TensorMapFields {
  const std::uint16_t* data;
  std::uint64_t shape[4];
  std::uint64_t strides[3];  // in bytes
  std::uint32_t box[2];      // columns, rows

  [[nodiscard]] int box_bytes() const { return static_cast<int>(box[0] * box[1] * sizeof(std::uint16_t)); }
  // Zeros beyond the shape. The box that begins at `origin` (column, row, ...).
  void copy_box(void* to, const std::int64_t (&origin)[4]) const;
};

}  // namespace emulator
