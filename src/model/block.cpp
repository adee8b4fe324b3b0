#include "model/block.h"

#include "kernels/fused_layers.h"
#include "kernels/steps.h"
#include "model/block_views.h"

namespace qdelta {

using block_views::columns;
using block_views::take;

MlpScratch::MlpScratch(const ModelConfig& c, const Device& device, const BatchShape& shape, BumpAllocator& memory) {
  if (!shape.keeps_large()) gate_up = take(memory, {shape.rows(), 2 * c.mlp_width()}, device.activations);
  hidden = take(memory, {shape.rows(), c.mlp_width()}, device.activations);
  if (shape.training) d_gate_up = take(memory, {shape.rows(), 2 * c.mlp_width()}, device.activations);
}

BlockScratch::BlockScratch(const ModelConfig& c, const Device& device, const BatchShape& shape, BumpAllocator& memory) {
  if (!shape.training) return;
  const DType dtype = device.activations;
  d_normed = take(memory, {shape.rows(), c.hidden_size}, dtype);
  if (dtype != DType::f32) d_stream = take(memory, {shape.rows(), c.hidden_size}, dtype);
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
  a.mixer_in = take(memory, {rows, hidden_size_}, device.activations);
  a.mixer_inverse_rms = take(memory, {rows});
  a.mixer = mixer_->plan_activations(device, shape, memory);
  if (mlp_width_ == 0) return a;
  a.mlp_in = take(memory, {rows, hidden_size_}, device.activations);
  a.mlp_inverse_rms = take(memory, {rows});
  if (shape.keeps_large()) a.gate_up = take(memory, {rows, 2 * mlp_width_}, device.activations);
  return a;
}

void Block::forward(const LayerContext& context, BlockActivations& a, BlockScratch& s, MixerScratch& mixer_scratch,
                    const ConstTensorView& x, const TensorView& out, const MixerState& state) const {
  const Device& device = context.device;
  const Weights& weights = context.weights;

  // What only the backward wants of a norm is left out of a step.
  const bool step = block_views::steps(context.batch, state);

  // x + mixer(norm(x))
  const RmsNormForward mixer_norm{.x = x,
                                  .weight = mixer_norm_.in(weights),
                                  .y = a.mixer_in,
                                  .inverse_rms = step ? TensorView() : a.mixer_inverse_rms,
                                  .epsilon = epsilon_};
  mixer_->forward(context, {.norm = mixer_norm, .out = out}, *a.mixer, mixer_scratch, state);
  if (mlp_width_ == 0) return;

  // x + mlp(norm(x))
  const std::int64_t F = mlp_width_;
  const TensorView& gate_up = gate_up_of(a, s);
  const MlpStep mlp{.norm = {.x = out,
                             .weight = mlp_norm_.in(weights),
                             .y = a.mlp_in,
                             .inverse_rms = step ? TensorView() : a.mlp_inverse_rms,
                             .epsilon = epsilon_},
                    .gate_up = {.x = a.mlp_in, .w = gate_up_.matrix_in(weights), .y = gate_up, .add = {}},
                    .swiglu = {.gate = columns(gate_up, 0, F), .up = columns(gate_up, F, F), .y = s.mlp.hidden},
                    .down = {.x = s.mlp.hidden, .w = down_.matrix_in(weights), .y = out, .add = out}};
  if (step) return mlp_step(device, mlp);
  rms_norm_forward(device, mlp.norm);
  if (s.is_for_training()) {  // the backward wants gate and up
    linear_forward(device, mlp.gate_up);
    swiglu_forward(device, mlp.swiglu);
  } else {
    linear_swiglu_forward(device, {.linear = mlp.gate_up, .swiglu = mlp.swiglu});
  }
  linear_forward(device, mlp.down);
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
  const TensorView& gate_up = gate_up_of(a, s);
  if (!a.gate_up) linear_forward(device, {.x = a.mlp_in, .w = gate_up_.matrix_in(weights), .y = gate_up, .add = {}});
  // The gradient of the hidden layer, and in its place then the hidden layer again.
  const TensorView& hidden = s.mlp.hidden;
  linear_backward(device, {.x = hidden, .w = down, .dy = d_out, .dx = hidden, .dw = {}});
  swiglu_backward(device, {.gate = columns(gate_up, 0, F),
                           .up = columns(gate_up, F, F),
                           .dy = hidden,
                           .dgate = columns(s.mlp.d_gate_up, 0, F),
                           .dup = columns(s.mlp.d_gate_up, F, F),
                           .y = hidden});
  linear_backward(device, {.x = hidden, .w = down, .dy = d_out, .dx = {}, .dw = down_.in(gradients)});
  linear_backward(device, {.x = a.mlp_in,
                           .w = gate_up_.matrix_in(weights),
                           .dy = s.mlp.d_gate_up,
                           .dx = s.d_normed,
                           .dw = gate_up_.in(gradients)});
  rms_norm_backward(device,
                    {.y = a.mlp_in,
                     .weight = mlp_norm_.in(weights),
                     .inverse_rms = a.mlp_inverse_rms,
                     .dy = s.d_normed,
                     .dx = dx,
                     .dweight = mlp_norm_.in(gradients),
                     .rounded = s.d_stream},
                    context.workspace);
}

void Block::mixer_backward(const LayerContext& context, std::span<float> gradients, const BlockActivations& a,
                           BlockScratch& s, MixerScratch& mixer_scratch, const TensorView& dx) const {
  const Device& device = context.device;
  mixer_->backward(context, {.in = a.mixer_in, .d_out = s.d_stream_of(dx), .d_in = s.d_normed, .gradients = gradients},
                   *a.mixer, mixer_scratch);
  rms_norm_backward(device,
                    {.y = a.mixer_in,
                     .weight = mixer_norm_.in(context.weights),
                     .inverse_rms = a.mixer_inverse_rms,
                     .dy = s.d_normed,
                     .dx = dx,
                     .dweight = mixer_norm_.in(gradients),
                     .rounded = s.d_stream},
                    context.workspace);
}

}  // namespace qdelta
