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
  TensorView x;                  // [N, hidden] f32: the residual stream on entry, given by the caller
  TensorView mixer_inverse_rms;  // [N] f32
  std::unique_ptr<MixerActivations> mixer;
  TensorView middle;           // [N, hidden] f32: the residual stream between mixer and MLP
  TensorView mlp_inverse_rms;  // [N] f32
  TensorView gate_up;          // [N, 2 mlp width], of the MLP
};

// Memory that one block after the other uses, beside the scratch of their mixers.
struct BlockScratch {
  TensorView normed;     // [N, hidden]
  TensorView hidden;     // [N, mlp width]
  TensorView d_gate_up;  // [N, 2 mlp width]
  TensorView d_stream;   // [N, hidden]: the residual stream's gradient as activations; missing where those are f32

  BlockScratch(const ModelConfig& config, const Device& device, const BatchShape& shape, BumpAllocator& memory);
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

  // Reads a.x, writes the residual stream on exit to `out`.
  void forward(const LayerContext& context, BlockActivations& a, BlockScratch& s, MixerScratch& mixer_scratch,
               const TensorView& out, const MixerState& state) const;
  // `dx` holds the gradient of `out` and becomes that of a.x. Gradients of parameters are added to.
  void backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a, BlockScratch& s,
                MixerScratch& mixer_scratch, const TensorView& dx) const;

 private:
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
