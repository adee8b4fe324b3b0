// One block: h = norm(x);  x += mixer(projections of h);  x += mlp(norm(x)).
//
// The mixer is the model's: the recurrence of a delta rule (recurrence_mixer.h) or Mamba's scan (mamba_mixer.h). A new
// one has a class with the same three functions, says what memory (block_memory.cpp), parameters (parameters.cpp) and
// state (ModelConfig) it needs, and is called here.
//
// Everything is written once, against the kernels' contracts. Activations lie in memory that the caller plans; what the
// backward needs of the forward is kept there, what is cheap is computed again.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/layers.h"
#include "model/block_memory.h"
#include "model/parameters.h"

namespace qdelta {

class Block {
 public:
  Block(const ModelConfig& config, const BlockLayout& layout) : config_(config), layout_(layout) {}

  // Reads a.x, writes the residual stream on exit to `out`.
  void forward(const Device& device, const Weights& weights, const Batch& batch, BlockActivations& a, BlockScratch& s,
               const TensorView& out, const BlockState& state) const;
  // `dx` holds the gradient of `out` and becomes that of a.x. Gradients of parameters are added to.
  void backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                const BlockActivations& a, BlockScratch& s, const TensorView& dx) const;

  // Bytes of BlockScratch::workspace that forward and, if asked, backward need for this batch.
  [[nodiscard]] std::size_t workspace(const Device& device, const Weights& weights, const Batch& batch,
                                      const BlockActivations& a, const BlockScratch& s, const BlockState& state,
                                      bool backward) const;

 private:
  void mixer_backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                      const BlockActivations& a, BlockScratch& s, const TensorView& dx) const;
  void mlp_backward(const Device& device, const Weights& weights, std::span<float> gradients, const BlockActivations& a,
                    BlockScratch& s, const TensorView& dx) const;

  const ModelConfig& config_;
  const BlockLayout& layout_;
};

}  // namespace qdelta
