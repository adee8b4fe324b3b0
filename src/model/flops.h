// Floating-point operations of a model, the way papers count them: two for each multiply-add of a matrix product, and
// three times the forward for a training step.
#pragma once

#include "model/parameters.h"

namespace qdelta {

// Of the mixers of all blocks, per token, beside the products with parameters.
[[nodiscard]] inline double mixer_flop_per_token(const ParameterLayout& layout, bool backward) {
  double sum = 0;
  for (const Block& block : layout.blocks)
    sum += backward ? block.mixer().backward_flop() : block.mixer().forward_flop();
  return sum;
}

// Every parameter but the embedding table, which is looked up, takes part in a product once.
[[nodiscard]] inline double forward_flop_per_token(const ParameterLayout& layout) {
  const std::int64_t looked_up = layout.config.tie_word_embeddings ? 0 : layout.embeddings.shape.elements();
  return 2.0 * static_cast<double>(layout.parameters() - looked_up) + mixer_flop_per_token(layout, false);
}

// Of the output head in training, which tokens without a target may be spared.
[[nodiscard]] inline double head_training_flop_per_token(const ParameterLayout& layout) {
  return 6.0 * static_cast<double>(layout.head.shape.elements());
}

[[nodiscard]] inline double training_flop_per_token(const ParameterLayout& layout) {
  const double mixers = mixer_flop_per_token(layout, false);
  return 3.0 * (forward_flop_per_token(layout) - mixers) + mixers + mixer_flop_per_token(layout, true);
}

}  // namespace qdelta
