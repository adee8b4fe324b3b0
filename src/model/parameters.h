// The parameters of a model: one flat array, in which every tensor has a name and a place. Gradients and the
// optimizer's moments have the same layout, so that a step runs over flat arrays. Tensors that are used in one matrix
// product lie side by side (the projections of a block; gate and up of its MLP), so that they also are one tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/block.h"
#include "model/config.h"
#include "model/parameter_placer.h"

namespace qdelta {

struct ParameterLayout {
  ModelConfig config;
  Slot embeddings, final_norm, head;  // head is embeddings where the two are tied
  std::vector<Block> blocks;
  std::vector<std::int64_t> block_parameters;  // of each
  std::vector<std::int64_t> block_begins;      // where the tensors of each begin in the flat array
  std::vector<NamedSlot> tensors;              // every tensor once, with its published name
  std::int64_t size = 0;                       // floats of the flat array, with the padding between tensors
  std::vector<float> constants;                // Weights::constants

  explicit ParameterLayout(const ModelConfig& model);
  [[nodiscard]] std::int64_t parameters() const;  // without the padding
};

// Fills `values` as the published implementations do: normal with initializer_range, but norms one, and a mixer's own
// as it says. Every tensor has random numbers of its own, by its name: rules that have other tensors besides begin
// alike.
void initialise(const ParameterLayout& layout, std::uint64_t seed, std::span<float> values);

}  // namespace qdelta
