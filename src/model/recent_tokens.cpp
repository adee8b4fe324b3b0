#include "model/recent_tokens.h"

#include "core/memory.h"
#include "model/block_views.h"

namespace qdelta {

using block_views::narrowed;

RecentTokens::RecentTokens(std::span<const Block> blocks, std::int64_t count, const Device& device)
    : blocks_(blocks), device_(device), layers_(blocks.size()) {
  constexpr std::int64_t kAligned = 4;  // elements
  std::vector<std::int64_t> at;
  for (const Block& block : blocks) {
    at.push_back(per_slot_);
    per_slot_ += round_up(block.mixer().recent_elements(device), kAligned);
  }
  memory_ = DeviceBuffer(device, static_cast<std::size_t>(count * per_slot_) * sizeof(float));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t elements = blocks[i].mixer().recent_elements(device);
    if (elements == 0) continue;
    TensorView& view = layers_[i];
    view = {memory_.data() + static_cast<std::size_t>(at[i]) * sizeof(float), DType::f32, {count, elements}};
    view.stride[0] = per_slot_;
  }
}

void RecentTokens::settle(ModelStates& states, std::int64_t slot) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!layers_[i]) continue;
    std::vector<TensorView> pools;
    for (const TensorView& pool : states.layer(i)) pools.push_back(narrowed(pool, 0, slot, 1));
    blocks_[i].mixer().settle(device_, pools, narrowed(layers_[i], 0, slot, 1));
  }
}

void RecentTokens::forget(std::int64_t slot) const {
  const std::size_t bytes = static_cast<std::size_t>(per_slot_) * sizeof(float);
  if (bytes > 0) clear(device_, const_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(slot) * bytes, bytes);
}

}  // namespace qdelta
