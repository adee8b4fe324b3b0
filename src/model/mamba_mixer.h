// Mamba's mixer (Gu and Dao, 2023), in the block that all mixers share:
//
//   x, z = in_proj(h)                            both of the inner width
//   x    = silu(conv(x) + bias)                  causal, per channel
//   low, B, C = x_proj(x)                        of dt_rank, N and N columns
//   dt   = dt_proj(low)                          its bias and softplus are the scan's
//   out  = out_proj( scan(x, dt, B, C, z) )      kernels/selective_scan.h
#pragma once

#include "kernels/layers.h"
#include "kernels/selective_scan.h"
#include "model/block_memory.h"

namespace qdelta {

class MambaMixer {
 public:
  MambaMixer(const ModelConfig& config, const BlockLayout& layout) : config_(config), layout_(layout) {}

  // As RecurrenceMixer's.
  void forward(const Device& device, const Weights& weights, const Batch& batch, const BlockActivations& a,
               const BlockScratch& s, const BlockState& state, const TensorView& out) const;
  void backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                const BlockActivations& a, BlockScratch& s, const ConstTensorView& d_out) const;
  [[nodiscard]] std::size_t workspace(const Device& device, const Weights& weights, const Batch& batch,
                                      const BlockActivations& a, const BlockState& state, bool backward) const;

 private:
  [[nodiscard]] SelectiveScanInputs inputs(const Weights& weights, const Batch& batch, const BlockActivations& a) const;
  [[nodiscard]] SelectiveScanForward forward_args(const Weights& weights, const Batch& batch, const BlockActivations& a,
                                                  const BlockState& state) const;
  [[nodiscard]] SelectiveScanBackward backward_args(const Weights& weights, std::span<float> gradients,
                                                    const Batch& batch, const BlockActivations& a,
                                                    const BlockScratch& s) const;

  const ModelConfig& config_;
  const BlockLayout& layout_;
};

}  // namespace qdelta
