#include "kernels/workspace.h"

#include <cstdint>
#include <utility>

#include "core/error.h"
#include "core/memory.h"

namespace qdelta {

std::span<std::byte> Workspace::get(std::size_t bytes) {
  if (bytes == 0) return {};
  if (grows_) {
    const bool capturing = is_capturing(device_);
    if (memory_.size() < bytes) grow(bytes, capturing);
    in_graph_ = in_graph_ || capturing;
  }
  require(memory_.size() >= bytes, "the workspace has {} bytes, {} are needed", memory_.size(), bytes);
  require(reinterpret_cast<std::uintptr_t>(memory_.data()) % kAlignment == 0,
          "the workspace does not start at a multiple of {} bytes", kAlignment);
  return memory_.first(bytes);
}

void Workspace::forget_graphs() {
  in_graph_ = false;
  in_graphs_.clear();
}

std::size_t Workspace::bytes() const {
  std::size_t bytes = memory_.size();
  for (const DeviceBuffer& kept : in_graphs_) bytes += kept.size();
  return bytes;
}

void Workspace::grow(std::size_t bytes, bool capturing) {
  if (capturing) {
    fail(Status::internal, "the workspace has {} bytes, {} are needed, and it cannot grow while a graph is captured",
         memory_.size(), bytes);
  }
  if (std::exchange(in_graph_, false)) in_graphs_.push_back(std::move(buffer_));
  memory_ = {};
  buffer_.grow(device_, bytes);
  memory_ = {buffer_.data(), buffer_.size()};
}

}  // namespace qdelta
