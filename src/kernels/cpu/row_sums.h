// Loops over rows, and sums over rows that come out the same for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/memory.h"
#include "core/threads.h"
#include "kernels/layers.h"

namespace qdelta::cpu {

inline constexpr std::int64_t kRowBlock = 64;  // rows that a thread takes at a time

template <class Body>
void for_rows(const Device& device, std::int64_t rows, const Body& body) {
  parallel_for(ceil_div(rows, kRowBlock), thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    const std::int64_t end = std::min(rows, (block + 1) * kRowBlock);
    for (std::int64_t r = block * kRowBlock; r < end; ++r) body(r);
  });
}

// How a sum over rows is divided: rows are summed block by block and the blocks in order. How many rows a block has
// depends on `rows` alone, so that there are never more than kMaxBlocks partial sums.
struct RowSums {
  static constexpr std::int64_t kMaxBlocks = 64;
  std::int64_t rows, width, per_block, blocks, stride;

  RowSums(std::int64_t row_count, std::int64_t columns)
      : rows(row_count),
        width(columns),
        per_block(std::max<std::int64_t>(16, ceil_div(rows, kMaxBlocks))),
        blocks(ceil_div(rows, per_block)),
        stride(round_up(width, 16)) {}
  // Floats of scratch memory.
  [[nodiscard]] std::int64_t floats() const { return blocks * stride; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(floats()) * sizeof(float); }
};

// total[0, width) += the sum of what body(row, sums) adds to sums[0, width) over all rows. `partial` has
// RowSums::floats() floats.
template <class Body>
void sum_over_rows(const Device& device, const RowSums& sums, float* partial, float* total, const Body& body) {
  std::fill_n(partial, sums.floats(), 0.0F);
  parallel_for(sums.blocks, thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    const std::int64_t end = std::min(sums.rows, (block + 1) * sums.per_block);
    for (std::int64_t r = block * sums.per_block; r < end; ++r) body(r, partial + block * sums.stride);
  });
  for (std::int64_t block = 0; block < sums.blocks; ++block) {
    for (std::int64_t i = 0; i < sums.width; ++i) total[i] += partial[block * sums.stride + i];
  }
}

}  // namespace qdelta::cpu
