// Scratch memory for the ops of a test on the CPU.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "core/memory.h"
#include "kernels/workspace.h"

namespace qdelta::testing {

// Full of NaN, so that no result depends on what was there before.
inline Workspace& poisoned_workspace() {
  static AlignedBuffer memory(std::size_t{1} << 22, AlignedBuffer::Fill::none);
  static Workspace workspace(std::span<std::byte>(memory.data(), memory.size()));
  std::memset(memory.data(), 0xff, memory.size());
  return workspace;
}

}  // namespace qdelta::testing
