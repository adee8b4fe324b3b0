// One block, a layer of the model:  x += mixer(norm(x));  x += mlp(norm(x)).
//
// The mixer is the layer's (mixer.h), and the block does not know which it is. Everything is written once, against the
// kernels' contracts. Activations lie in memory that the caller plans; what the backward needs of the forward is saved
// there, what is cheap is computed again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/config.h"
#include "model/mixer.h"

namespace qdelta {

// What a forward saves for its backward.
struct BlockActivations {
  TensorView mixer_in;           // [N, hidden]: the normalised residual stream
  TensorView mixer_inverse_rms;  // [N] f32
  std::unique_ptr<MixerActivations> mixer;
  TensorView mlp_in;           // [N, hidden]
  TensorView mlp_inverse_rms;  // [N] f32
  TensorView gate_up;          // [N, 2 mlp width], of the MLP; missing where it is recomputed
};

// Memory of the MLP, whose place its block's mixer uses as well (for its own scratch).
struct MlpScratch {
  TensorView gate_up;    // [N, 2 mlp width], where the activations do not have it
  TensorView hidden;     // [N, mlp width]
  TensorView d_gate_up;  // [N, 2 mlp width]; in training

  MlpScratch() = default;
  MlpScratch(const ModelConfig& config, const Device& device, const BatchShape& shape, BumpAllocator& memory);
};

// Memory that one block after the other uses, beside the scratch of their mixers.
struct BlockScratch {
  MlpScratch mlp;
  TensorView d_normed;  // [N, hidden]: the gradient of what a mixer or an MLP reads; in training
  TensorView d_stream;  // [N, hidden]: the residual stream's gradient as activations; missing where those are f32

  // All but the MLP's.
  BlockScratch(const ModelConfig& config, const Device& device, const BatchShape& shape, BumpAllocator& memory);
  [[nodiscard]] bool is_for_training() const { return static_cast<bool>(d_normed); }
  // The gradient of the residual stream as activations: d_stream, written together with `dx`, or `dx` itself.
  [[nodiscard]] ConstTensorView d_stream_of(const TensorView& dx) const { return d_stream ? d_stream : dx; }
};

class Block {
 public:
  // Takes places for its parameters, whose names start with `prefix`.
  Block(const ModelConfig& config, std::shared_ptr<Mixer> mixer, const std::string& prefix, ParameterPlacer& placer);

  [[nodiscard]] const Mixer& mixer() const { return *mixer_; }
  [[nodiscard]] BlockActivations plan_activations(const Device& device, const BatchShape& shape,
                                                  BumpAllocator& memory) const;

  // The residual stream, [N, hidden] f32: on entry `x`, on exit `out`, which may be the same memory.
  void forward(const LayerContext& context, BlockActivations& a, BlockScratch& s, MixerScratch& mixer_scratch,
               const ConstTensorView& x, const TensorView& out, const MixerState& state) const;
  // `dx` holds the gradient of `out` and becomes that of `x`. Gradients of parameters are added to.
  void backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a, BlockScratch& s,
                MixerScratch& mixer_scratch, const TensorView& dx) const;

 private:
  [[nodiscard]] static const TensorView& gate_up_of(const BlockActivations& a, const BlockScratch& s) {
    return a.gate_up ? a.gate_up : s.mlp.gate_up;
  }
  void mlp_backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a, BlockScratch& s,
                    const TensorView& dx) const;
  void mixer_backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a,
                      BlockScratch& s, MixerScratch& mixer_scratch, const TensorView& dx) const;

  std::shared_ptr<const Mixer> mixer_;
  std::int64_t hidden_size_, mlp_width_;  // mlp_width_ 0: no MLP
  float epsilon_;
  Slot mixer_norm_, mlp_norm_;
  Slot gate_up_;  // [2 mlp width, hidden]: two tensors side by side
  Slot down_;
};

}  // namespace qdelta
