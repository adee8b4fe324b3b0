// Scratch memory. A kernel allocates nothing: the op asks its Workspace for as many bytes as the kernel's ..._workspace
// function says and hands them over as a span. Nothing in them outlives the op, and the next op gets the same bytes, so
// one Workspace serves any number of ops that run one after the other, as those of a model do. (Libraries allocate for
// themselves: oneDNN when it packs a matrix.)
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace qdelta {

class Workspace {
 public:
  // Owns memory on `device`, which grows to the most that an op has asked for.
  explicit Workspace(const Device& device) : device_(device), grows_(true) {}
  // The caller's memory, which does not grow: an op that needs more of it fails.
  explicit Workspace(std::span<std::byte> memory) : memory_(memory) {}

  // So many bytes, from a multiple of kAlignment on. On a GPU a captured graph goes on pointing to them: memory that
  // one was captured with is kept until forget_graphs(), and while one is captured the workspace cannot grow.
  [[nodiscard]] std::span<std::byte> get(std::size_t bytes);
  // There are no such graphs any more.
  void forget_graphs();
  // Of its memory.
  [[nodiscard]] std::size_t bytes() const;

 private:
  void grow(std::size_t bytes, bool capturing);

  Device device_;
  bool grows_ = false;
  bool in_graph_ = false;  // a captured graph points to memory_
  DeviceBuffer buffer_;
  std::vector<DeviceBuffer> in_graphs_;  // what was outgrown while graphs point to it
  std::span<std::byte> memory_;
};

}  // namespace qdelta
