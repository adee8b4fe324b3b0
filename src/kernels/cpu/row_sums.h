// Loops over rows, and sums over rows that come out the same for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

// total[0, width) += the sum of what body(row, sums) adds to sums[0, width) over all rows. Rows are summed block by
// block and the blocks in order; how many rows a block has depends on `rows` alone, so that there are never more than
// kMaxBlocks partial sums.
template <class Body>
void sum_over_rows(const Device& device, std::int64_t rows, std::int64_t width, float* total, const Body& body) {
  constexpr std::int64_t kMaxBlocks = 64;
  const std::int64_t per_block = std::max<std::int64_t>(16, ceil_div(rows, kMaxBlocks));
  const std::int64_t blocks = ceil_div(rows, per_block);
  const std::int64_t stride = round_up(width, 16);
  thread_local std::vector<float> memory;  // kept from call to call, so that a training step allocates nothing
  memory.assign(static_cast<std::size_t>(blocks * stride), 0.0F);
  float* sums = memory.data();  // of the calling thread: inside the loop `memory` would name another
  parallel_for(blocks, thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    const std::int64_t end = std::min(rows, (block + 1) * per_block);
    for (std::int64_t r = block * per_block; r < end; ++r) body(r, sums + block * stride);
  });
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t i = 0; i < width; ++i) total[i] += sums[block * stride + i];
  }
}

}  // namespace qdelta::cpu
