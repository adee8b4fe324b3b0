// What steps keep beside the states of a pool, for each slot and layer, to write the states more rarely: the last
// tokens (kernels/recurrence.h). Until they are settled a state in the pool is not what its sequence has left behind,
// and they can be taken back. Whoever steps has them and sees to that; everybody else finds states in pools as they
// are.
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
  // Of a pool of `count` states. Nothing for mixers that keep nothing, as all do on the CPU.
  RecentTokens(std::span<const Block> blocks, std::int64_t count, const Device& device);

  // [count, what the layer's mixer keeps]; missing where that is nothing.
  [[nodiscard]] const TensorView& layer(std::size_t index) const { return layers_[index]; }
  // One more token of a slot has been read, by all layers.
  void add(std::int64_t slot);
  // The tokens of a slot go into its state.
  void settle(ModelStates& states, std::int64_t slot);
  // They are of no use, for neither is the state.
  void forget(std::int64_t slot);
  // How many tokens can be taken back: at most kRecentTokens, and none that were settled; none at all where a layer
  // keeps nothing.
  [[nodiscard]] std::int64_t undoable(std::int64_t slot) const;
  // The slot becomes what it was so many tokens ago.
  void undo(ModelStates& states, std::int64_t slot, std::int64_t tokens);

 private:
  [[nodiscard]] std::int64_t& count_of(std::int64_t slot) { return counts_[static_cast<std::size_t>(slot)]; }
  // Calls body(mixer, views of its pools, view of what is kept) for each layer that keeps something.
  template <class Body>
  void for_each_layer(ModelStates& states, std::int64_t slot, const Body& body) const;

  std::span<const Block> blocks_;
  Device device_;
  std::int64_t per_slot_ = 0;  // elements of all layers, one after the other
  DeviceBuffer memory_;
  std::vector<TensorView> layers_;
  std::vector<std::int64_t> counts_;  // tokens that are kept, by slot
};

}  // namespace qdelta
