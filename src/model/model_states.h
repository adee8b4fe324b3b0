// A pool of recurrent states. A state is what a prefix leaves behind, whatever its length: all zeros for no prefix at
// all. What it is made of, only the mixers of the layers know (Mixer::state_tensors).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "model/config.h"

namespace qdelta {

class ModelStates {
 public:
  struct Pool {
    std::string name;     // "conv.3": the mixer's name for it, and the layer
    DeviceTensor tensor;  // [count, ...] f32
  };

  ModelStates(const ModelConfig& config, std::int64_t count, const Device& device = {});

  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::size_t bytes() const;
  void clear(std::int64_t slot);
  // Slot `to` of this pool becomes a copy of slot `slot` of `from`, which may be on the other device.
  void copy(const ModelStates& from, std::int64_t slot, std::int64_t to);

  // Every tensor of a state, layer by layer.
  [[nodiscard]] std::span<const Pool> pools() const { return pools_; }
  // One slot of a pool, [1, ...].
  [[nodiscard]] TensorView slot_of(std::size_t pool, std::int64_t slot);
  [[nodiscard]] ConstTensorView slot_of(std::size_t pool, std::int64_t slot) const;
  // The pools of a layer, in the order of its mixer's state_tensors().
  [[nodiscard]] std::span<const TensorView> layer(std::size_t index) const;

 private:
  Device device_;
  std::int64_t count_;
  std::vector<Pool> pools_;
  std::vector<TensorView> views_;         // of pools_
  std::vector<std::size_t> layer_begin_;  // in views_; one more than there are layers
};

}  // namespace qdelta
