// A few integers from host to device as arguments of a kernel: unlike a copy from pageable memory that never waits, and
// a captured graph carries the values with it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/context.h"

namespace qdelta::cuda {

void upload_offsets(const Context& context, std::int64_t* to, std::span<const std::int64_t> host);

}  // namespace qdelta::cuda
