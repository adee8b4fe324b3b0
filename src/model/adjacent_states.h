// The recurrent states of a call's sequences side by side, as kernels that read several tokens of a sequence at once
// take them: a view of the pool where the slots are neighbours, else copies, which `put_back` writes to their slots.
#pragma once

#include <algorithm>
#include <span>

#include "core/error.h"
#include "kernels/device.h"
#include "kernels/layers.h"
#include "model/mixer.h"

namespace qdelta {

class AdjacentStates {
 public:
  AdjacentStates(const Device& device, const TensorView& pool, const MixerState& state)
      : device_(device), pool_(pool), slots_(state.slots), device_slots_(state.device_slots), view_(pool) {
    for (const std::int64_t slot : slots_) {
      require(slot >= 0 && slot < pool.extent(0), "there is no state {} in a pool of {}", slot, pool.extent(0));
    }
    view_.shape.extent[0] = static_cast<std::int64_t>(slots_.size());
    copied_ = std::ranges::adjacent_find(slots_, [](auto a, auto b) { return b != a + 1; }) != slots_.end();
    if (!copied_) {
      view_.data = slot_in_pool(0);
      return;
    }
    require(state.copies != nullptr, "the states of sequences of several tokens are not neighbours");
    state.copies->grow(device_, slots_.size() * bytes());
    view_.data = state.copies->data();
    gather_slots(device_, copies());
  }
  AdjacentStates(const AdjacentStates&) = delete;
  AdjacentStates& operator=(const AdjacentStates&) = delete;

  [[nodiscard]] const TensorView& view() const { return view_; }
  void put_back() const {
    if (copied_) scatter_slots(device_, copies());
  }

 private:
  // Of one state.
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(pool_.step(0)) * sizeof(float); }
  [[nodiscard]] std::byte* slot_in_pool(std::size_t n) const {
    return pool_.data + static_cast<std::size_t>(slots_[n]) * bytes();
  }
  [[nodiscard]] CopySlots copies() const {
    const auto rows = [this](std::byte* data, std::int64_t count) {
      return TensorView(data, DType::f32, {count, pool_.step(0)});
    };
    return {
        .pool = rows(pool_.data, pool_.extent(0)), .slots = device_slots_, .rows = rows(view_.data, view_.extent(0))};
  }

  const Device& device_;
  TensorView pool_;
  std::span<const std::int64_t> slots_, device_slots_;
  TensorView view_;
  bool copied_ = false;
};

}  // namespace qdelta
