// The mixer of the delta rules: q, k, v through a short causal convolution with silu; the gates; the recurrence over
// L2-normalised q and k; an RMS norm per head, gated by silu of one more projection; the output projection.
#pragma once

#include "kernels/layers.h"
#include "kernels/recurrence.h"
#include "model/block_memory.h"

namespace qdelta {

class RecurrenceMixer {
 public:
  RecurrenceMixer(const ModelConfig& config, const BlockLayout& layout) : config_(config), layout_(layout) {}

  // out = a.x + what the mixer makes of a.projected.
  void forward(const Device& device, const Weights& weights, const Batch& batch, const BlockActivations& a,
               const BlockScratch& s, const BlockState& state, const TensorView& out) const;
  // Leaves the gradient of a.projected in s.d_projected; adds to those of the parameters behind the projections.
  void backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                const BlockActivations& a, BlockScratch& s, const ConstTensorView& d_out) const;
  // Bytes of BlockScratch::workspace that forward and, if asked, backward need for this batch.
  [[nodiscard]] std::size_t workspace(const Device& device, const Batch& batch, const BlockActivations& a,
                                      const BlockScratch& s, const BlockState& state, bool backward) const;

 private:
  [[nodiscard]] RecurrenceInputs inputs(const Batch& batch, const BlockActivations& a) const;
  [[nodiscard]] RecurrenceForward forward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                               const TensorView& states) const;
  [[nodiscard]] RecurrenceStep step_args(const Device& device, const BlockActivations& a,
                                         const BlockState& state) const;
  [[nodiscard]] RecurrenceBackward backward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                 const BlockScratch& s) const;
  [[nodiscard]] GatesForward gates(const Weights& weights, const BlockActivations& a) const;
  void fill_fixed_gates(const Device& device, const BlockActivations& a, const BlockScratch& s) const;
  // o from q, k, v and the gates: in place on the pool of states where every sequence has one token.
  void run_recurrence(const Device& device, const Batch& batch, const BlockActivations& a, const BlockScratch& s,
                      const BlockState& state) const;

  const ModelConfig& config_;
  const BlockLayout& layout_;
};

}  // namespace qdelta
