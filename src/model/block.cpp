#include "model/block.h"

#include <algorithm>
#include <cmath>

namespace qdelta {
namespace {

TensorView take(BumpAllocator& memory, const Shape& shape) {
  return {reinterpret_cast<std::byte*>(memory.take<float>(shape.elements())), DType::f32, shape};
}

// Columns [begin, begin + width) of a matrix.
template <class Byte>
BasicView<Byte> columns(const BasicView<Byte>& matrix, std::int64_t begin, std::int64_t width) {
  if (begin < 0) return {};
  BasicView<Byte> view = matrix;
  view.data += begin * static_cast<std::int64_t>(sizeof(float));
  view.shape = {matrix.extent(0), width};
  return view;
}

// Columns of a matrix as [1, N, heads, width].
template <class Byte>
BasicView<Byte> as_heads(const BasicView<Byte>& matrix, std::int64_t begin, std::int64_t heads, std::int64_t width) {
  BasicView<Byte> view = columns(matrix, begin, heads * width);
  view.shape = {1, matrix.extent(0), heads, width};
  view.stride = {matrix.extent(0) * matrix.step(0), matrix.step(0), width, 1};
  return view;
}

// [N, HV] as [1, N, HV].
template <class Byte>
BasicView<Byte> as_gates(const BasicView<Byte>& matrix) {
  BasicView<Byte> view = matrix;
  view.shape = {1, matrix.extent(0), matrix.extent(1)};
  view.stride = {matrix.extent(0) * matrix.step(0), matrix.step(0), 1};
  return view;
}

// [1, N, ...] as [N, ...].
template <class Byte>
BasicView<Byte> without_batch(const BasicView<Byte>& view) {
  BasicView<Byte> out = view;
  out.shape.rank = view.shape.rank - 1;
  for (int axis = 0; axis < out.shape.rank; ++axis) {
    out.shape.extent[static_cast<std::size_t>(axis)] = view.extent(axis + 1);
    out.stride[static_cast<std::size_t>(axis)] = view.step(axis + 1);
  }
  return out;
}

// The states of sequences that take several tokens at once, which must be neighbours in the pool.
TensorView consecutive(const TensorView& pool, std::span<const std::int64_t> slots) {
  for (std::size_t n = 1; n < slots.size(); ++n) {
    require(slots[n] == slots[0] + static_cast<std::int64_t>(n),
            "the states of sequences of several tokens are not neighbours");
  }
  require(slots[0] >= 0 && slots.back() < pool.extent(0), "there is no state {} in a pool of {}", slots.back(),
          pool.extent(0));
  TensorView view = pool;
  view.data += slots[0] * pool.step(0) * static_cast<std::int64_t>(sizeof(float));
  view.shape.extent[0] = static_cast<std::int64_t>(slots.size());
  return view;
}

// Every sequence has one token and a state: a step in place on the pool.
bool steps(const Batch& batch, const BlockState& state) {
  return static_cast<bool>(state.recurrent) && batch.rows() == batch.sequences();
}

void fill(const TensorView& view, float value) {
  std::fill_n(reinterpret_cast<float*>(view.data), view.shape.elements(), value);
}

}  // namespace

BlockActivations::BlockActivations(const ModelConfig& c, const BlockLayout& layout, std::int64_t rows,
                                   std::int64_t chunks, BumpAllocator& memory) {
  const std::int64_t HV = c.value_heads();
  attn_inverse_rms = take(memory, {rows});
  projected = take(memory, {rows, layout.projected});
  mixed = take(memory, {rows, 2 * c.key_width() + c.value_width()});
  g = take(memory, {rows, HV});
  beta = take(memory, {rows, HV});
  lambda = take(memory, {rows, HV});
  if (chunks > 0) chunk_states = take(memory, {chunks, HV, c.head_dim, c.value_dim()});
  o = take(memory, {rows, c.value_width()});
  middle = take(memory, {rows, c.hidden_size});
  mlp_inverse_rms = take(memory, {rows});
  gate_up = take(memory, {rows, 2 * c.mlp_width()});
}

BlockScratch::BlockScratch(const ModelConfig& c, const BlockLayout& layout, std::int64_t rows, bool backward,
                           BumpAllocator& memory) {
  const std::int64_t channels = 2 * c.key_width() + c.value_width();
  normed = take(memory, {rows, c.hidden_size});
  head_out = take(memory, {rows, c.value_width()});
  hidden = take(memory, {rows, c.mlp_width()});
  ones = take(memory, {channels, 1});
  if (ones) fill(ones, 1.0F);
  if (!backward) return;
  d_head_out = take(memory, {rows, c.value_width()});
  d_hidden = take(memory, {rows, c.mlp_width()});
  d_gate_up = take(memory, {rows, 2 * c.mlp_width()});
  d_projected = take(memory, {rows, layout.projected});
  d_mixed = take(memory, {rows, channels});
  dg = take(memory, {rows, c.value_heads()});
  dbeta = take(memory, {rows, c.value_heads()});
  dlambda = take(memory, {rows, c.value_heads()});
  d_ones = take(memory, {channels, 1});
}

RecurrenceInputs Block::recurrence_inputs(const Batch& batch, const BlockActivations& a) const {
  const ModelConfig& c = config_;
  RecurrenceInputs in;
  in.rule = c.rule;
  in.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  in.qk_l2norm = true;
  in.q = as_heads(a.mixed, 0, c.num_heads, c.head_dim);
  in.k = as_heads(a.mixed, c.key_width(), c.num_heads, c.head_dim);
  in.v = as_heads(a.mixed, 2 * c.key_width(), c.value_heads(), c.value_dim());
  in.g = as_gates(a.g);
  in.beta = as_gates(a.beta);
  in.lambda = as_gates(a.lambda);
  in.cu_seqlens = batch.offsets;
  return in;
}

RecurrenceForward Block::recurrence_forward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                 const TensorView& states) const {
  RecurrenceForward args;
  args.in = recurrence_inputs(batch, a);
  args.in.h0 = states;
  args.ht = states;
  args.o = as_heads(a.o, 0, config_.value_heads(), config_.value_dim());
  args.chunk_states = a.chunk_states;
  args.run.threads = device.threads;
  return args;
}

RecurrenceBackward Block::recurrence_backward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                   const BlockScratch& s) const {
  const ModelConfig& c = config_;
  RecurrenceBackward args;
  args.in = recurrence_inputs(batch, a);
  args.d_o = as_heads(s.d_head_out, 0, c.value_heads(), c.value_dim());
  args.chunk_states = a.chunk_states;
  args.dq = as_heads(s.d_mixed, 0, c.num_heads, c.head_dim);
  args.dk = as_heads(s.d_mixed, c.key_width(), c.num_heads, c.head_dim);
  args.dv = as_heads(s.d_mixed, 2 * c.key_width(), c.value_heads(), c.value_dim());
  args.dg = as_gates(s.dg);
  args.dbeta = as_gates(s.dbeta);
  args.dlambda = as_gates(s.dlambda);
  args.run.threads = device.threads;
  return args;
}

std::size_t Block::recurrence_workspace(const Device& device, const Batch& batch, const BlockActivations& a,
                                        BlockScratch& s, const BlockState& state, bool backward) const {
  if (steps(batch, state)) return qdelta::recurrence_workspace(recurrence_step_args(device, a, state));
  std::size_t bytes = qdelta::recurrence_workspace(recurrence_forward_args(device, batch, a, {}));
  if (backward) {
    bytes = std::max(bytes, qdelta::recurrence_workspace(recurrence_backward_args(device, batch, a, s)));
  }
  return bytes;
}

RecurrenceStep Block::recurrence_step_args(const Device& device, const BlockActivations& a,
                                           const BlockState& state) const {
  const RecurrenceInputs in = recurrence_inputs({}, a);
  RecurrenceStep args;
  args.rule = in.rule;
  args.scale = in.scale;
  args.qk_l2norm = in.qk_l2norm;
  args.q = without_batch(in.q);
  args.k = without_batch(in.k);
  args.v = without_batch(in.v);
  args.g = without_batch(in.g);
  args.beta = without_batch(in.beta);
  args.lambda = without_batch(in.lambda);
  args.states = state.recurrent;
  args.index = ConstTensorView(reinterpret_cast<const std::byte*>(state.slots.data()), DType::i64,
                               {static_cast<std::int64_t>(state.slots.size())});
  args.o = without_batch(as_heads(a.o, 0, config_.value_heads(), config_.value_dim()));
  args.threads = device.threads;
  return args;
}

void Block::run_recurrence(const Device& device, const Batch& batch, const BlockActivations& a, BlockScratch& s,
                           const BlockState& state) const {
  if (!state.recurrent) {
    recurrence_forward(recurrence_forward_args(device, batch, a, {}), s.recurrence);
  } else if (steps(batch, state)) {
    recurrence_step(recurrence_step_args(device, a, state), s.recurrence);
  } else {
    recurrence_forward(recurrence_forward_args(device, batch, a, consecutive(state.recurrent, state.slots)),
                       s.recurrence);
  }
}

GatesForward Block::gates(std::span<const float> parameters, const BlockActivations& a) const {
  const std::int64_t HV = config_.value_heads();
  GatesForward args;
  args.a = columns(a.projected, layout_.a_at, HV);
  args.b = columns(a.projected, layout_.b_at, HV);
  args.l = columns(a.projected, layout_.lambda_at, HV);
  args.A_log = layout_.A_log.in(parameters);
  args.dt_bias = layout_.dt_bias.in(parameters);
  if (layout_.lambda_bias.exists()) {
    args.lambda_bias = layout_.lambda_bias.in(parameters);
  } else {
    args.constant_lambda_bias = static_cast<float>(-config_.lamb_bias.value_or(0));
  }
  args.g = a.g;
  args.beta = a.beta;
  args.lambda = a.lambda;
  args.step_is_beta = config_.rule == Rule::mamba2;
  args.factor = config_.allow_neg_eigval ? 2.0F : 1.0F;
  return args;
}

// Gates that no parameter makes: g = 0 without decay, RetNet's fixed decay per head, a fixed lambda.
void Block::fill_fixed_gates(const BlockActivations& a) const {
  if (layout_.a_at < 0) {
    const std::int64_t HV = config_.value_heads();
    auto* g = reinterpret_cast<float*>(a.g.data);
    for (std::int64_t i = 0; i < a.g.shape.elements(); ++i) {
      const auto head = static_cast<double>(i % HV);
      g[i] = config_.rule == Rule::retnet ? static_cast<float>(std::log1p(-std::exp2(-5.0 - head))) : 0.0F;
    }
  }
  if (config_.fixed_lambda) fill(a.lambda, static_cast<float>(*config_.fixed_lambda));
}

void Block::forward(const Device& device, std::span<const float> parameters, const Batch& batch, BlockActivations& a,
                    BlockScratch& s, const TensorView& out, const BlockState& state) const {
  const ModelConfig& c = config_;
  const auto epsilon = static_cast<float>(c.norm_eps);
  const std::int64_t channels = 2 * c.key_width() + c.value_width();

  // x + mixer(norm(x))
  rms_norm_forward(device, {a.x, layout_.attn_norm.in(parameters), s.normed, a.attn_inverse_rms, epsilon});
  linear_forward(device, {s.normed, layout_.projections.in(parameters), a.projected, false});
  short_conv_forward(device, {columns(a.projected, 0, channels),
                              layout_.conv.exists() ? layout_.conv.in(parameters) : ConstTensorView(s.ones), a.mixed,
                              batch.offsets, state.conv, state.slots});
  gates_forward(device, gates(parameters, a));
  fill_fixed_gates(a);
  run_recurrence(device, batch, a, s, state);
  gated_norm_forward(device, {a.o, columns(a.projected, layout_.gate_at, c.value_width()),
                              layout_.out_norm.in(parameters), s.head_out, epsilon});
  copy_rows(device, {a.x, a.middle});
  linear_forward(device, {s.head_out, layout_.out.in(parameters), a.middle, true});

  // x + mlp(norm(x))
  copy_rows(device, {a.middle, out});
  if (!c.use_mlp) return;
  const std::int64_t F = c.mlp_width();
  rms_norm_forward(device, {a.middle, layout_.mlp_norm.in(parameters), s.normed, a.mlp_inverse_rms, epsilon});
  linear_forward(device, {s.normed, layout_.gate_up.in(parameters), a.gate_up, false});
  swiglu_forward(device, {columns(a.gate_up, 0, F), columns(a.gate_up, F, F), s.hidden});
  linear_forward(device, {s.hidden, layout_.down.in(parameters), out, true});
}

void Block::backward(const Device& device, std::span<const float> parameters, std::span<float> gradients,
                     const Batch& batch, const BlockActivations& a, BlockScratch& s, const TensorView& dx) const {
  if (config_.use_mlp) mlp_backward(device, parameters, gradients, a, s, dx);
  mixer_backward(device, parameters, gradients, batch, a, s, dx);
}

void Block::mlp_backward(const Device& device, std::span<const float> parameters, std::span<float> gradients,
                         const BlockActivations& a, BlockScratch& s, const TensorView& dx) const {
  const std::int64_t F = config_.mlp_width();
  const auto epsilon = static_cast<float>(config_.norm_eps);
  const TensorView gate = columns(a.gate_up, 0, F);
  const TensorView up = columns(a.gate_up, F, F);
  swiglu_forward(device, {gate, up, s.hidden});
  linear_backward(device, {s.hidden, layout_.down.in(parameters), dx, s.d_hidden, layout_.down.in(gradients), false});
  swiglu_backward(device, {gate, up, s.d_hidden, columns(s.d_gate_up, 0, F), columns(s.d_gate_up, F, F)});
  rms_norm_forward(device, {a.middle, layout_.mlp_norm.in(parameters), s.normed, {}, epsilon});
  // The gradient of the normalised input takes the place of the input itself, which is not needed any more.
  linear_backward(device,
                  {s.normed, layout_.gate_up.in(parameters), s.d_gate_up, {}, layout_.gate_up.in(gradients), false});
  linear_backward(device, {s.normed, layout_.gate_up.in(parameters), s.d_gate_up, s.normed, {}, false});
  rms_norm_backward(device, {a.middle, layout_.mlp_norm.in(parameters), a.mlp_inverse_rms, s.normed, dx,
                             layout_.mlp_norm.in(gradients)});
}

void Block::mixer_backward(const Device& device, std::span<const float> parameters, std::span<float> gradients,
                           const Batch& batch, const BlockActivations& a, BlockScratch& s, const TensorView& dx) const {
  const ModelConfig& c = config_;
  const auto epsilon = static_cast<float>(c.norm_eps);
  const std::int64_t HV = c.value_heads();
  const std::int64_t channels = 2 * c.key_width() + c.value_width();
  const TensorView gate = columns(a.projected, layout_.gate_at, c.value_width());
  gated_norm_forward(device, {a.o, gate, layout_.out_norm.in(parameters), s.head_out, epsilon});
  linear_backward(device, {s.head_out, layout_.out.in(parameters), dx, s.d_head_out, layout_.out.in(gradients), false});
  // head_out becomes the gradient of the gated norm's output, d_head_out that of the recurrence's.
  std::swap(s.head_out, s.d_head_out);
  gated_norm_backward(
      device, {a.o, gate, layout_.out_norm.in(parameters), s.head_out, s.d_head_out,
               columns(s.d_projected, layout_.gate_at, c.value_width()), layout_.out_norm.in(gradients), epsilon});
  recurrence_backward(recurrence_backward_args(device, batch, a, s), s.recurrence);

  GatesBackward d_gates;
  d_gates.forward = gates(parameters, a);
  d_gates.dg = s.dg;
  d_gates.dbeta = s.dbeta;
  d_gates.dlambda = s.dlambda;
  d_gates.da = columns(s.d_projected, layout_.a_at, HV);
  d_gates.db = columns(s.d_projected, layout_.b_at, HV);
  d_gates.dl = columns(s.d_projected, layout_.lambda_at, HV);
  d_gates.dA_log = layout_.A_log.in(gradients);
  d_gates.ddt_bias = layout_.dt_bias.in(gradients);
  d_gates.dlambda_bias = layout_.lambda_bias.in(gradients);
  gates_backward(device, d_gates);

  const bool has_conv = layout_.conv.exists();
  short_conv_backward(
      device,
      {columns(a.projected, 0, channels), has_conv ? layout_.conv.in(parameters) : ConstTensorView(s.ones), s.d_mixed,
       columns(s.d_projected, 0, channels), has_conv ? layout_.conv.in(gradients) : s.d_ones, batch.offsets});
  rms_norm_forward(device, {a.x, layout_.attn_norm.in(parameters), s.normed, {}, epsilon});
  const ConstTensorView weights = layout_.projections.in(parameters);
  linear_backward(device, {s.normed, weights, s.d_projected, {}, layout_.projections.in(gradients), false});
  linear_backward(device, {s.normed, weights, s.d_projected, s.normed, {}, false});
  rms_norm_backward(device, {a.x, layout_.attn_norm.in(parameters), a.attn_inverse_rms, s.normed, dx,
                             layout_.attn_norm.in(gradients)});
}

}  // namespace qdelta
