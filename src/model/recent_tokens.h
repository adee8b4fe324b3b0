// What steps keep beside the states of a pool, for each slot and layer, to write the states more rarely: the last
// tokens (kernels/recurrence.h). Until they are settled a state in the pool is not what its sequence has left behind.
// Whoever steps has them and sees to that; everybody else finds states in pools as they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/block.h"
#include "model/model_states.h"

namespace qdelta {

class RecentTokens {
 public:
  // Of a pool of `count` states. Nothing on the CPU, nor for mixers that keep nothing.
  RecentTokens(std::span<const Block> blocks, std::int64_t count, const Device& device);

  // [count, what the layer's mixer keeps]; missing where that is nothing.
  [[nodiscard]] const TensorView& layer(std::size_t index) const { return layers_[index]; }
  // The tokens of a slot go into its state.
  void settle(ModelStates& states, std::int64_t slot) const;
  // They are of no use, for neither is the state.
  void forget(std::int64_t slot) const;

 private:
  std::span<const Block> blocks_;
  Device device_;
  std::int64_t per_slot_ = 0;  // elements of all layers, one after the other
  DeviceBuffer memory_;
  std::vector<TensorView> layers_;
};

}  // namespace qdelta
