// The one sort that the kernels use, for tests/emulator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* memory, std::size_t& bytes, const Key* keys, Key* sorted_keys, const Value* values,
                               Value* sorted_values, int count, int /*begin_bit*/ = 0, int /*end_bit*/ = 0,
                               cudaStream_t stream = nullptr) {
    if (memory == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    return emulator::enqueue(stream, [=] {
      std::vector<int> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
      for (int i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[static_cast<std::size_t>(i)]];
        sorted_values[i] = values[order[static_cast<std::size_t>(i)]];
      }
    });
  }
};

}  // namespace cub
