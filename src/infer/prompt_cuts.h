// Where a text may be cut into calls of the model, and be read on from a state that was kept there, without a change of
// bits (kernels/row_blocks.h).
#pragma once

#include <cstddef>

#include "kernels/device.h"
#include "model/language_model.h"

namespace qdelta {

struct PromptCuts {
  // Counted from the text's beginning, at multiples of `grid`; but calls that read to a multiple of `segment`, or
  // beyond, begin at one. Segments are whole multiples of the grid; where they are no longer, any place on it will do.
  std::size_t grid = 1, segment = 1;

  // Whether a text that is read up to `end` tokens may be cut at `at`, before its end: within a segment only if the
  // text does not complete it. Who does not know where exactly reading ends may give any later place instead.
  [[nodiscard]] bool allow(std::size_t at, std::size_t end) const {
    return at % grid == 0 && (at % segment == 0 || at / segment == end / segment);
  }
  // The last such place up to `at`; 0: there is none.
  [[nodiscard]] std::size_t last(std::size_t at, std::size_t end) const {
    const std::size_t on_grid = at / grid * grid;
    return allow(on_grid, end) ? on_grid : segment_of(at);
  }
  // Where the segment of a token begins.
  [[nodiscard]] std::size_t segment_of(std::size_t at) const { return at / segment * segment; }
};

[[nodiscard]] PromptCuts prompt_cuts(const LanguageModel& model, const Device& device);

}  // namespace qdelta
