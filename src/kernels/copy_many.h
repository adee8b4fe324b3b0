// Many copies at once, as of the tensors of a state: one launch on a GPU, where each by itself takes as long to launch
// as to do.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/device.h"

namespace qdelta {

// Within the device's memory; nothing that is written is read by another.
struct CopyPart {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};
void copy_many(const Device& device, std::span<const CopyPart> parts);

}  // namespace qdelta
