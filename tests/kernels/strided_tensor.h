// A tensor that lies in memory in an unusual way, with guarded memory all around and between its elements.
#pragma once

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "testing.h"

namespace qdelta::testing {

// How the axes lie in memory. `order` lists them from the outermost to the innermost; empty: as they are.
struct MemoryLayout {
  std::string name;
  std::vector<int> order;
  std::int64_t inner_step = 1;     // between neighbours of the innermost axis
  std::int64_t padding = 0;        // elements after each row of the innermost axis
  std::int64_t outer_padding = 0;  // elements after each block of the axes outside that
  bool backwards = false;          // every axis runs towards lower addresses
};

class StridedTensor {
 public:
  StridedTensor() = default;
  // Holds the values of `content` at places that `layout` says.
  StridedTensor(const Tensor& content, const MemoryLayout& layout) {
    if (content.data() == nullptr) return;
    const int rank = content.shape().rank;
    std::vector<int> order = layout.order;
    if (static_cast<int>(order.size()) != rank) {
      order.resize(static_cast<std::size_t>(rank));
      std::iota(order.begin(), order.end(), 0);
    }
    view_.dtype = content.dtype();
    view_.shape = content.shape();
    std::int64_t step = layout.inner_step;
    std::int64_t highest = 0;
    for (int i = rank - 1; i >= 0; --i) {
      const int axis = order[static_cast<std::size_t>(i)];
      const std::int64_t extent = content.shape()[axis];
      view_.stride[static_cast<std::size_t>(axis)] = step;
      if (extent > 0) highest += (extent - 1) * step;
      step = step * extent + (i == rank - 1 ? layout.padding : layout.outer_padding);
    }
    const auto size = static_cast<std::int64_t>(size_of(content.dtype()));
    memory_ = AlignedBuffer(static_cast<std::size_t>((highest + 1 + 2 * kMargin) * size));
    std::memset(memory_.data(), kGuard, memory_.size());
    view_.data = memory_.data() + kMargin * size;
    if (layout.backwards) {
      view_.data += highest * size;
      for (std::int64_t& stride : view_.stride) stride = -stride;
    }
    for_each_element(memory_.data(), [&](std::byte* element, std::int64_t index) {
      std::memcpy(element, content.data() + index * size, static_cast<std::size_t>(size));
    });
  }

  [[nodiscard]] TensorView view() { return view_; }
  [[nodiscard]] ConstTensorView view() const { return view_; }
  // The values, row-major.
  [[nodiscard]] Tensor content() const { return view_ ? converted(view_, view_.dtype) : Tensor(); }

  // True as long as nothing but elements has been written.
  [[nodiscard]] bool guards_untouched() const {
    std::vector<std::byte> copy(memory_.data(), memory_.data() + memory_.size());
    for_each_element(copy.data(),
                     [&](std::byte* element, std::int64_t) { std::memset(element, kGuard, size_of(view_.dtype)); });
    for (const std::byte byte : copy) {
      if (byte != std::byte{kGuard}) return false;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kMargin = 32;  // elements before and after; odd multiples of a line end up unaligned
  static constexpr unsigned char kGuard = 0xa5;

  template <class Visit>
  void for_each_element(std::byte* memory, const Visit& visit) const {
    if (!view_) return;
    const auto size = static_cast<std::int64_t>(size_of(view_.dtype));
    for (std::int64_t index = 0; index < view_.shape.elements(); ++index) {
      std::int64_t rest = index;
      std::int64_t offset = 0;
      for (int axis = view_.shape.rank - 1; axis >= 0; --axis) {
        offset += rest % view_.shape[axis] * view_.step(axis);
        rest /= view_.shape[axis];
      }
      visit(memory + (view_.data - memory_.data()) + offset * size, index);
    }
  }

  AlignedBuffer memory_;
  TensorView view_;
};

}  // namespace qdelta::testing
