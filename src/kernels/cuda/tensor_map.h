// What the copy engine of a GPU (compute capability 9.0) must know of a tensor to copy boxes of it (tensor_copy.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/recurrence_chunk_args.h"

namespace qdelta::cuda {

// CUDA's CUtensorMap. A kernel takes it by value, as a __grid_constant__.
struct alignas(128) TensorMap {
  std::uint64_t opaque[16];
};

// Whether the GPU has such an engine.
[[nodiscard]] bool has_tensor_copies(const Context& context);

// Boxes of kBlockV columns and so many rows of bf16 [index, head, row, column] tensors; zeros beyond their extents.
struct TensorExtents {
  std::int64_t columns, rows, heads, count;
};
// Rows are tokens.
[[nodiscard]] TensorMap tensor_map(const TokensIn& tokens, const TensorExtents& extents, int box_rows);
// Rows are keys.
[[nodiscard]] TensorMap tensor_map(const StatesIn& states, const TensorExtents& extents, int box_rows);
// Rows of so many columns, one after the other.
[[nodiscard]] TensorMap tensor_map(const void* data, std::int64_t rows, std::int64_t columns, int box_rows);

}  // namespace qdelta::cuda
