#include "infer/prompt_cuts.h"

#include <algorithm>

#include "infer/prompt_reader.h"
#include "kernels/row_blocks.h"

namespace qdelta {

PromptCuts prompt_cuts(const LanguageModel& model, const Device& device) {
  const bool within_pieces = std::ranges::all_of(
      model.blocks(), [&device](const Block& block) { return block.mixer().cuts_keep_bits(device); });
  if (!within_pieces) return {.grid = prompt_piece(device), .segment = prompt_piece(device)};
  constexpr auto kGrid = static_cast<std::size_t>(kRowBlock);
  return {.grid = kGrid, .segment = device.gpu == nullptr ? kGrid : static_cast<std::size_t>(kSegmentTokens)};
}

}  // namespace qdelta
