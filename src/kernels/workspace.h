// The check of the scratch space that an op is handed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"
#include "core/memory.h"

namespace qdelta {

inline void check_workspace(std::span<std::byte> workspace, std::size_t needed) {
  require(workspace.size() >= needed, "the workspace has {} bytes, {} are needed", workspace.size(), needed);
  require(needed == 0 || reinterpret_cast<std::uintptr_t>(workspace.data()) % kAlignment == 0,
          "the workspace does not start at a multiple of {} bytes", kAlignment);
}

}  // namespace qdelta
