// For benchmarks: how much of a GPU's memory was in use.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace qdelta {

// The most bytes of the GPU's memory that were in use at a time, by whatever program, as seen at the allocations of
// this one; 0 on the CPU.
[[nodiscard]] std::size_t peak_memory(const Device& device);

}  // namespace qdelta
