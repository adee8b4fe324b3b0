#include "model/block.h"

#include "model/block_views.h"
#include "model/mamba_mixer.h"
#include "model/recurrence_mixer.h"

namespace qdelta {

using block_views::columns;

std::size_t Block::workspace(const Device& device, const Weights& weights, const Batch& batch,
                             const BlockActivations& a, const BlockScratch& s, const BlockState& state,
                             bool backward) const {
  if (config_.mixer == Mixer::mamba) {
    return MambaMixer(config_, layout_).workspace(device, weights, batch, a, state, backward);
  }
  return RecurrenceMixer(config_, layout_).workspace(device, batch, a, s, state, backward);
}

void Block::forward(const Device& device, const Weights& weights, const Batch& batch, BlockActivations& a,
                    BlockScratch& s, const TensorView& out, const BlockState& state) const {
  const ModelConfig& c = config_;
  const auto epsilon = static_cast<float>(c.norm_eps);

  // x + mixer(norm(x))
  rms_norm_forward(device, {a.x, layout_.attn_norm.in(weights), s.normed, a.attn_inverse_rms, epsilon});
  linear_forward(device, {s.normed, layout_.projections.matrix_in(weights), a.projected, {}});
  const TensorView& middle = c.use_mlp ? a.middle : out;
  if (c.mixer == Mixer::mamba) {
    MambaMixer(c, layout_).forward(device, weights, batch, a, s, state, middle);
  } else {
    RecurrenceMixer(c, layout_).forward(device, weights, batch, a, s, state, middle);
  }

  // x + mlp(norm(x))
  if (!c.use_mlp) return;
  const std::int64_t F = c.mlp_width();
  rms_norm_forward(device, {a.middle, layout_.mlp_norm.in(weights), s.normed, a.mlp_inverse_rms, epsilon});
  linear_forward(device, {s.normed, layout_.gate_up.matrix_in(weights), a.gate_up, {}});
  swiglu_forward(device, {columns(a.gate_up, 0, F), columns(a.gate_up, F, F), s.hidden});
  linear_forward(device, {s.hidden, layout_.down.matrix_in(weights), out, a.middle});
}

void Block::backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                     const BlockActivations& a, BlockScratch& s, const TensorView& dx) const {
  if (config_.use_mlp) mlp_backward(device, weights, gradients, a, s, dx);
  mixer_backward(device, weights, gradients, batch, a, s, dx);
}

void Block::mlp_backward(const Device& device, const Weights& weights, std::span<float> gradients,
                         const BlockActivations& a, BlockScratch& s, const TensorView& dx) const {
  const std::int64_t F = config_.mlp_width();
  const auto epsilon = static_cast<float>(config_.norm_eps);
  const TensorView gate = columns(a.gate_up, 0, F);
  const TensorView up = columns(a.gate_up, F, F);
  // The gradient of the hidden layer, and in its place then the hidden layer again.
  const ConstTensorView d_out = s.d_stream_of(dx);
  linear_backward(device, {s.hidden, layout_.down.matrix_in(weights), d_out, s.hidden, {}, false});
  swiglu_backward(device, {gate, up, s.hidden, columns(s.d_gate_up, 0, F), columns(s.d_gate_up, F, F), s.hidden});
  linear_backward(device, {s.hidden, layout_.down.matrix_in(weights), d_out, {}, layout_.down.in(gradients), false});
  rms_norm_forward(device, {a.middle, layout_.mlp_norm.in(weights), s.normed, {}, epsilon});
  // The gradient of the normalised input takes the place of the input itself, which is not needed any more.
  linear_backward(
      device, {s.normed, layout_.gate_up.matrix_in(weights), s.d_gate_up, {}, layout_.gate_up.in(gradients), false});
  linear_backward(device, {s.normed, layout_.gate_up.matrix_in(weights), s.d_gate_up, s.normed, {}, false});
  rms_norm_backward(device, {a.middle, layout_.mlp_norm.in(weights), a.mlp_inverse_rms, s.normed, dx,
                             layout_.mlp_norm.in(gradients), s.d_stream});
}

void Block::mixer_backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                           const BlockActivations& a, BlockScratch& s, const TensorView& dx) const {
  const ConstTensorView d_out = s.d_stream_of(dx);
  if (config_.mixer == Mixer::mamba) {
    MambaMixer(config_, layout_).backward(device, weights, gradients, batch, a, s, d_out);
  } else {
    RecurrenceMixer(config_, layout_).backward(device, weights, gradients, batch, a, s, d_out);
  }
  const auto epsilon = static_cast<float>(config_.norm_eps);
  rms_norm_forward(device, {a.x, layout_.attn_norm.in(weights), s.normed, {}, epsilon});
  const ConstTensorView projections = layout_.projections.matrix_in(weights);
  linear_backward(device, {s.normed, projections, s.d_projected, {}, layout_.projections.in(gradients), false});
  linear_backward(device, {s.normed, projections, s.d_projected, s.normed, {}, false});
  rms_norm_backward(device, {a.x, layout_.attn_norm.in(weights), a.attn_inverse_rms, s.normed, dx,
                             layout_.attn_norm.in(gradients), s.d_stream});
}

}  // namespace qdelta
