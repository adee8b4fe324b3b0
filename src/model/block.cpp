#include "model/block.h"

#include "kernels/layers.h"
#include "model/block_views.h"

namespace qdelta {

using block_views::columns;
using block_views::take;

BlockScratch::BlockScratch(const ModelConfig& c, const Device& device, const BatchShape& shape, BumpAllocator& memory) {
  const std::int64_t rows = shape.rows();
  const DType dtype = device.activations;
  normed = take(memory, {rows, c.hidden_size}, dtype);
  hidden = take(memory, {rows, c.mlp_width()}, dtype);
  if (!shape.training) return;
  d_gate_up = take(memory, {rows, 2 * c.mlp_width()}, dtype);
  if (dtype != DType::f32) d_stream = take(memory, {rows, c.hidden_size}, dtype);
}

Block::Block(const ModelConfig& c, std::shared_ptr<Mixer> mixer, const std::string& prefix, ParameterPlacer& placer)
    : hidden_size_(c.hidden_size), mlp_width_(c.mlp_width()), epsilon_(static_cast<float>(c.norm_eps)) {
  const std::int64_t D = hidden_size_;
  const std::int64_t F = mlp_width_;
  const Initializer normal = initial::normal(c.initializer_range);
  mixer_norm_ =
      placer.tensor(prefix + (c.published_mamba() ? "norm.weight" : "attn_norm.weight"), {D}, initial::constant(1));
  mixer->place(prefix, placer);
  mixer_ = std::move(mixer);
  if (F == 0) return;
  mlp_norm_ = placer.tensor(prefix + "mlp_norm.weight", {D}, initial::constant(1));
  placer.align();
  gate_up_ = {placer.end(), {2 * F, D}};
  placer.adjacent(prefix + "mlp.gate_proj.weight", {F, D}, normal);
  placer.adjacent(prefix + "mlp.up_proj.weight", {F, D}, normal);
  down_ = placer.tensor(prefix + "mlp.down_proj.weight", {D, F}, normal);
}

BlockActivations Block::plan_activations(const Device& device, const BatchShape& shape, BumpAllocator& memory) const {
  const std::int64_t rows = shape.rows();
  BlockActivations a;
  a.mixer_inverse_rms = take(memory, {rows});
  a.mixer = mixer_->plan_activations(device, shape, memory);
  a.middle = take(memory, {rows, hidden_size_});
  a.mlp_inverse_rms = take(memory, {rows});
  a.gate_up = take(memory, {rows, 2 * mlp_width_}, device.activations);
  return a;
}

void Block::forward(const LayerContext& context, BlockActivations& a, BlockScratch& s, MixerScratch& mixer_scratch,
                    const TensorView& out, const MixerState& state) const {
  const Device& device = context.device;
  const Weights& weights = context.weights;

  // x + mixer(norm(x))
  rms_norm_forward(device, {.x = a.x,
                            .weight = mixer_norm_.in(weights),
                            .y = s.normed,
                            .inverse_rms = a.mixer_inverse_rms,
                            .epsilon = epsilon_});
  const TensorView& middle = mlp_width_ > 0 ? a.middle : out;
  mixer_->forward(context, {.in = s.normed, .residual = a.x, .out = middle}, *a.mixer, mixer_scratch, state);
  if (mlp_width_ == 0) return;

  // x + mlp(norm(x))
  const std::int64_t F = mlp_width_;
  rms_norm_forward(device, {.x = a.middle,
                            .weight = mlp_norm_.in(weights),
                            .y = s.normed,
                            .inverse_rms = a.mlp_inverse_rms,
                            .epsilon = epsilon_});
  linear_forward(device, {.x = s.normed, .w = gate_up_.matrix_in(weights), .y = a.gate_up, .add = {}});
  swiglu_forward(device, {.gate = columns(a.gate_up, 0, F), .up = columns(a.gate_up, F, F), .y = s.hidden});
  linear_forward(device, {.x = s.hidden, .w = down_.matrix_in(weights), .y = out, .add = a.middle});
}

void Block::backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a,
                     BlockScratch& s, MixerScratch& mixer_scratch, const TensorView& dx) const {
  if (mlp_width_ > 0) mlp_backward(context, gradients, a, s, dx);
  mixer_backward(context, gradients, a, s, mixer_scratch, dx);
}

void Block::mlp_backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a,
                         BlockScratch& s, const TensorView& dx) const {
  const Device& device = context.device;
  const Weights& weights = context.weights;
  const std::int64_t F = mlp_width_;
  const ConstTensorView d_out = s.d_stream_of(dx);
  const ConstTensorView down = down_.matrix_in(weights);
  const ConstTensorView gate_up = gate_up_.matrix_in(weights);
  // The gradient of the hidden layer, and in its place then the hidden layer again.
  linear_backward(device, {.x = s.hidden, .w = down, .dy = d_out, .dx = s.hidden, .dw = {}});
  swiglu_backward(device, {.gate = columns(a.gate_up, 0, F),
                           .up = columns(a.gate_up, F, F),
                           .dy = s.hidden,
                           .dgate = columns(s.d_gate_up, 0, F),
                           .dup = columns(s.d_gate_up, F, F),
                           .y = s.hidden});
  linear_backward(device, {.x = s.hidden, .w = down, .dy = d_out, .dx = {}, .dw = down_.in(gradients)});
  rms_norm_forward(
      device, {.x = a.middle, .weight = mlp_norm_.in(weights), .y = s.normed, .inverse_rms = {}, .epsilon = epsilon_});
  // The gradient of the normalised input takes the place of the input itself, which is not needed any more.
  linear_backward(device, {.x = s.normed, .w = gate_up, .dy = s.d_gate_up, .dx = {}, .dw = gate_up_.in(gradients)});
  linear_backward(device, {.x = s.normed, .w = gate_up, .dy = s.d_gate_up, .dx = s.normed, .dw = {}});
  rms_norm_backward(device,
                    {.x = a.middle,
                     .weight = mlp_norm_.in(weights),
                     .inverse_rms = a.mlp_inverse_rms,
                     .dy = s.normed,
                     .dx = dx,
                     .dweight = mlp_norm_.in(gradients),
                     .rounded = s.d_stream},
                    context.workspace);
}

void Block::mixer_backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a,
                           BlockScratch& s, MixerScratch& mixer_scratch, const TensorView& dx) const {
  const Device& device = context.device;
  const Weights& weights = context.weights;
  rms_norm_forward(
      device, {.x = a.x, .weight = mixer_norm_.in(weights), .y = s.normed, .inverse_rms = {}, .epsilon = epsilon_});
  mixer_->backward(context, {.in = s.normed, .d_out = s.d_stream_of(dx), .gradients = gradients}, *a.mixer,
                   mixer_scratch);
  rms_norm_backward(device,
                    {.x = a.x,
                     .weight = mixer_norm_.in(weights),
                     .inverse_rms = a.mixer_inverse_rms,
                     .dy = s.normed,
                     .dx = dx,
                     .dweight = mixer_norm_.in(gradients),
                     .rounded = s.d_stream},
                    context.workspace);
}

}  // namespace qdelta
