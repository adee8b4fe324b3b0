// Reads short pieces of prompts on a GPU, such as what comes behind a prefix whose state was kept: one captured graph
// instead of hundreds of launches, which take longer than the work itself. A graph takes tokens and their number from
// device memory, so that a slot has two, with room for 64 and 128 tokens; bits are those of the launches one by one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "kernels/row_blocks.h"
#include "model/language_model.h"

namespace qdelta {

class PromptGraph {
 public:
  static constexpr std::size_t kMostTokens = kRowBlock;
  // Slots from here on have none: to capture a graph takes milliseconds. The first slots are those that are used most.
  static constexpr std::int64_t kSlots = 16;

  // All mixers of the model must keep bits wherever a prompt is cut (Mixer::cuts_keep_bits).
  PromptGraph(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states);
  PromptGraph(const PromptGraph&) = delete;  // graphs point into it
  PromptGraph& operator=(const PromptGraph&) = delete;

  // Reads up to kMostTokens tokens into the state of one of the first kSlots slots. Gives the logits [1, vocabulary]
  // after the last, in device memory until the next call.
  [[nodiscard]] TensorView read(std::span<const std::int32_t> tokens, std::int64_t slot);

 private:
  struct Graph {
    std::int64_t slot = 0;
    TensorView logits;
    std::optional<CapturedGraph> captured;
  };
  [[nodiscard]] Graph& graph_for(std::int64_t rows, std::int64_t slot);
  [[nodiscard]] StateSlots state_of(std::int64_t slot) const;

  ModelRunner runner_;  // of its own: graphs point into its memory, which other calls would lay out anew
  ModelStates& states_;
  std::vector<std::int64_t> slots_;                                // 0, 1, ...
  std::map<std::pair<std::int64_t, std::int64_t>, Graph> graphs_;  // by the number of rows and the slot
};

}  // namespace qdelta
