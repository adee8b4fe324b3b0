#include "train/weight_decay.h"

#include "core/memory.h"
#include "kernels/layers.h"

namespace qdelta {
namespace {

bool is_matrix(const NamedSlot& tensor) {
  return tensor.slot.shape.rank >= 2 && !tensor.name.ends_with("A_log");  // Mamba's has an entry for each state
}

}  // namespace

std::vector<std::uint8_t> decay_groups(const ParameterLayout& layout, const DecayedParameters& decayed) {
  if (decayed.which == DecayedParameters::Which::all) return {};
  constexpr std::int64_t kGroup = AdamW::kDecayGroup;
  std::vector<std::uint8_t> groups(static_cast<std::size_t>(ceil_div(layout.size, kGroup)));
  for (const NamedSlot& tensor : layout.tensors) {
    const bool embeddings = tensor.slot.offset == layout.embeddings.offset;
    if (!is_matrix(tensor) || (embeddings && !decayed.embeddings)) continue;
    const std::int64_t end = tensor.slot.offset + tensor.slot.shape.elements();
    // Tensors begin at a group of their own, but for matrices side by side, which all decay.
    for (std::int64_t group = tensor.slot.offset / kGroup; group < ceil_div(end, kGroup); ++group) {
      groups[static_cast<std::size_t>(group)] = 1;
    }
  }
  return groups;
}

}  // namespace qdelta
