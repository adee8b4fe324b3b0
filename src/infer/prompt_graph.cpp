#include "infer/prompt_graph.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/recurrence.h"

namespace qdelta {
namespace {

// Whole chunks, of which only the last may be shorter: the launches depend on their number.
std::int64_t rows_for(std::size_t tokens) {
  return ceil_div(static_cast<std::int64_t>(tokens), kDefaultChunk) * kDefaultChunk;
}

}  // namespace

PromptGraph::PromptGraph(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states)
    : runner_(model, std::move(weights), states.device()),
      states_(states),
      slots_(static_cast<std::size_t>(std::min(kSlots, states.count()))) {
  std::iota(slots_.begin(), slots_.end(), std::int64_t{0});
  // The most tokens first: their memory is enough for fewer, so that what graphs point to stays where it is.
  runner_.prepare_prompt(std::vector<std::int32_t>(kMostTokens), rows_for(kMostTokens), state_of(0));
}

StateSlots PromptGraph::state_of(std::int64_t slot) const {
  return {&states_, std::span(slots_).subspan(static_cast<std::size_t>(slot), 1)};
}

PromptGraph::Graph& PromptGraph::graph_for(std::int64_t rows, std::int64_t slot) {
  Graph& graph = graphs_[{rows, slot}];
  if (!graph.captured) {
    graph.slot = slot;
    graph.captured.emplace(states_.device(), [this, &graph] {
      const RowBlocks rows_alone;
      graph.logits = runner_.prompt_logits(state_of(graph.slot));
    });
  }
  return graph;
}

TensorView PromptGraph::read(std::span<const std::int32_t> tokens, std::int64_t slot) {
  require(!tokens.empty() && tokens.size() <= kMostTokens, "{} tokens of a prompt, expected 1 to {}", tokens.size(),
          kMostTokens);
  require(slot >= 0 && slot < static_cast<std::int64_t>(slots_.size()), "there is no graph for slot {}", slot);
  const std::int64_t rows = rows_for(tokens.size());
  runner_.prepare_prompt(tokens, rows, state_of(slot));
  Graph& graph = graph_for(rows, slot);
  graph.captured->replay();
  return graph.logits;
}

}  // namespace qdelta
