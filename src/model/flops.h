// Floating-point operations of a model, the way papers count them: two for each multiply-add of a matrix product, and
// three times the forward for a training step.
#pragma once

#include "kernels/recurrence.h"
#include "kernels/selective_scan.h"
#include "model/parameters.h"

namespace qdelta {

// Of the recurrence of all blocks, per token, in its chunk form; of the scan, where that is the mixer.
[[nodiscard]] inline double recurrence_flop_per_token(const ModelConfig& c, bool backward) {
  if (c.mixer == Mixer::mamba) {
    const auto N = static_cast<double>(c.state_size);
    return (backward ? scan_backward_flop(N) : scan_forward_flop(N)) *
           static_cast<double>(c.inner_width() * c.num_hidden_layers);
  }
  const auto K = static_cast<double>(c.head_dim);
  const auto V = static_cast<double>(c.value_dim());
  const double flop = backward ? chunk_backward_flop(K, V, kDefaultChunk) : chunk_forward_flop(K, V, kDefaultChunk);
  return flop * static_cast<double>(c.value_heads() * c.num_hidden_layers);
}

// Every parameter but the embedding table, which is looked up, takes part in a product once.
[[nodiscard]] inline double forward_flop_per_token(const ParameterLayout& layout) {
  const std::int64_t looked_up = layout.config.tie_word_embeddings ? 0 : layout.embeddings.shape.elements();
  return 2.0 * static_cast<double>(layout.parameters() - looked_up) + recurrence_flop_per_token(layout.config, false);
}

// Of the output head in training, which tokens without a target may be spared.
[[nodiscard]] inline double head_training_flop_per_token(const ParameterLayout& layout) {
  return 6.0 * static_cast<double>(layout.head.shape.elements());
}

[[nodiscard]] inline double training_flop_per_token(const ParameterLayout& layout) {
  const double recurrence = recurrence_flop_per_token(layout.config, false);
  return 3.0 * (forward_flop_per_token(layout) - recurrence) + recurrence +
         recurrence_flop_per_token(layout.config, true);
}

}  // namespace qdelta
