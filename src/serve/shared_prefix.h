// Prompts of one request that begin alike, as the choices of a multiple-choice question do: which of them share how
// much. It depends on the request alone, so that the answer does too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "serve/job.h"

namespace qdelta::serve {

// Fewer tokens are read again.
inline constexpr std::size_t kLeastShared = 16;

// Marks the groups among sequences whose prompts are scored; the others have the cache. A prompt joins the group before
// it unless that would leave less than half of what the others share.
inline void mark_shared(std::vector<SequenceRequest>& sequences) {
  std::size_t group = 0;
  for (std::size_t first = 0, end = 0; first < sequences.size(); first = end) {
    const std::span<const std::int32_t> leading = sequences[first].prompt;
    std::size_t shared = 0;
    for (end = first + 1; end < sequences.size() && sequences[end].options.score_prompt; ++end) {
      const std::span<const std::int32_t> prompt = sequences[end].prompt;
      if (std::ranges::equal(prompt, leading)) continue;
      const auto parted = std::ranges::mismatch(prompt, leading).in1 - prompt.begin();
      // The token at which they part is scored by reading the one before it: that is not shared.
      const std::size_t common = parted > 0 ? static_cast<std::size_t>(parted) - 1 : 0;
      if (common < kLeastShared || 2 * common < shared) break;
      shared = shared == 0 ? common : std::min(shared, common);
    }
    if (shared == 0) continue;
    ++group;
    for (std::size_t i = first; i < end; ++i) {
      sequences[i].group = group;
      sequences[i].shared = shared;
    }
  }
}

}  // namespace qdelta::serve
