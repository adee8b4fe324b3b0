#include "model/recent_tokens.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "kernels/recurrence.h"
#include "model/block_views.h"

namespace qdelta {

using block_views::narrowed;

RecentTokens::RecentTokens(std::span<const Block> blocks, std::int64_t count, const Device& device)
    : blocks_(blocks), device_(device), layers_(blocks.size()), counts_(static_cast<std::size_t>(count)) {
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

template <class Body>
void RecentTokens::for_each_layer(ModelStates& states, std::int64_t slot, const Body& body) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!layers_[i]) continue;
    std::vector<TensorView> pools;
    for (const TensorView& pool : states.layer(i)) pools.push_back(narrowed(pool, 0, slot, 1));
    body(blocks_[i].mixer(), pools, narrowed(layers_[i], 0, slot, 1));
  }
}

// As the kernels count: a token for which there is no room moves the others into the state.
void RecentTokens::add(std::int64_t slot) {
  std::int64_t& count = count_of(slot);
  count = count == kRecentTokens ? 1 : count + 1;
}

void RecentTokens::settle(ModelStates& states, std::int64_t slot) {
  if (std::exchange(count_of(slot), 0) == 0) return;
  for_each_layer(states, slot, [&](const Mixer& mixer, std::span<const TensorView> pools, const TensorView& recent) {
    mixer.settle(device_, pools, recent);
  });
}

void RecentTokens::forget(std::int64_t slot) {
  if (std::exchange(count_of(slot), 0) == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(per_slot_) * sizeof(float);
  if (bytes > 0) clear(device_, memory_.data() + static_cast<std::size_t>(slot) * bytes, bytes);
}

std::int64_t RecentTokens::undoable(std::int64_t slot) const {
  const bool all_keep = std::ranges::all_of(layers_, [](const TensorView& layer) { return static_cast<bool>(layer); });
  return all_keep ? counts_[static_cast<std::size_t>(slot)] : 0;
}

void RecentTokens::undo(ModelStates& states, std::int64_t slot, std::int64_t tokens) {
  require(tokens >= 0 && tokens <= undoable(slot), "{} tokens to take back, of {} that can be", tokens, undoable(slot));
  if (tokens == 0) return;
  for_each_layer(states, slot, [&](const Mixer& mixer, std::span<const TensorView> pools, const TensorView& recent) {
    mixer.undo(device_, pools, recent, tokens);
  });
  count_of(slot) -= tokens;
}

}  // namespace qdelta
