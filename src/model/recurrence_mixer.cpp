#include "model/recurrence_mixer.h"

#include <algorithm>
#include <cmath>

#include "model/block_views.h"

namespace qdelta {
namespace {

using block_views::columns;
using block_views::consecutive;
using block_views::steps;

// Columns of a matrix as [B, T, heads, width], where `length` is T, or 0 for one row of packed sequences.
template <class Byte>
BasicView<Byte> as_heads(const BasicView<Byte>& matrix, std::int64_t length, std::int64_t begin, std::int64_t heads,
                         std::int64_t width) {
  BasicView<Byte> view = columns(matrix, begin, heads * width);
  const std::int64_t T = length > 0 ? length : matrix.extent(0);
  view.shape = {matrix.extent(0) / T, T, heads, width};
  view.stride = {T * matrix.step(0), matrix.step(0), width, 1};
  return view;
}

// [N, HV] as [B, T, HV].
template <class Byte>
BasicView<Byte> as_gates(const BasicView<Byte>& matrix, std::int64_t length) {
  BasicView<Byte> view = matrix;
  const std::int64_t T = length > 0 ? length : matrix.extent(0);
  view.shape = {matrix.extent(0) / T, T, matrix.extent(1)};
  view.stride = {T * matrix.step(0), matrix.step(0), 1};
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

// `row` as a matrix of as many rows as `like`.
ConstTensorView repeated(const TensorView& row, const TensorView& like) {
  ConstTensorView view = row;
  view.shape = like.shape;
  view.stride[0] = 0;
  return view;
}

}  // namespace

RecurrenceInputs RecurrenceMixer::inputs(const Batch& batch, const BlockActivations& a) const {
  const ModelConfig& c = config_;
  RecurrenceInputs in;
  in.rule = c.rule;
  in.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  in.qk_l2norm = true;
  // Sequences of one length are the rows of a batch, others are packed.
  const std::int64_t length = batch.offsets.empty() ? 0 : batch.common_length();
  in.q = as_heads(a.mixed, length, 0, c.num_heads, c.head_dim);
  in.k = as_heads(a.mixed, length, c.key_width(), c.num_heads, c.head_dim);
  in.v = as_heads(a.mixed, length, 2 * c.key_width(), c.value_heads(), c.value_dim());
  in.g = as_gates(a.g, length);
  in.beta = as_gates(a.beta, length);
  in.lambda = as_gates(a.lambda, length);
  if (length == 0) in.cu_seqlens = batch.offsets;
  return in;
}

RecurrenceForward RecurrenceMixer::forward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                const TensorView& states) const {
  RecurrenceForward args;
  args.in = inputs(batch, a);
  args.in.h0 = states;
  args.ht = states;
  args.o = as_heads(a.o, batch.common_length(), 0, config_.value_heads(), config_.value_dim());
  args.chunk_states = a.chunk_states;
  args.saved = a.saved;
  args.run.threads = device.threads;
  return args;
}

RecurrenceBackward RecurrenceMixer::backward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                  const BlockScratch& s) const {
  const ModelConfig& c = config_;
  RecurrenceBackward args;
  args.in = inputs(batch, a);
  const std::int64_t length = batch.common_length();
  args.d_o = as_heads(s.d_head_out, length, 0, c.value_heads(), c.value_dim());
  args.chunk_states = a.chunk_states;
  args.saved = a.saved;
  args.dq = as_heads(s.d_mixed, length, 0, c.num_heads, c.head_dim);
  args.dk = as_heads(s.d_mixed, length, c.key_width(), c.num_heads, c.head_dim);
  args.dv = as_heads(s.d_mixed, length, 2 * c.key_width(), c.value_heads(), c.value_dim());
  args.dg = as_gates(s.dg, length);
  args.dbeta = as_gates(s.dbeta, length);
  args.dlambda = as_gates(s.dlambda, length);
  args.run.threads = device.threads;
  return args;
}

std::size_t RecurrenceMixer::workspace(const Device& device, const Batch& batch, const BlockActivations& a,
                                       const BlockScratch& s, const BlockState& state, bool backward) const {
  if (steps(batch, state)) return recurrence_workspace(device, step_args(device, a, state));
  std::size_t bytes = recurrence_workspace(device, forward_args(device, batch, a, {}));
  if (backward) {
    bytes = std::max(bytes, recurrence_workspace(device, backward_args(device, batch, a, s)));
  }
  return bytes;
}

RecurrenceStep RecurrenceMixer::step_args(const Device& device, const BlockActivations& a,
                                          const BlockState& state) const {
  const RecurrenceInputs in = inputs({}, a);
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
  args.index = ConstTensorView(reinterpret_cast<const std::byte*>(state.device_slots.data()), DType::i64,
                               {static_cast<std::int64_t>(state.device_slots.size())});
  args.o = without_batch(as_heads(a.o, 0, 0, config_.value_heads(), config_.value_dim()));
  args.threads = device.threads;
  return args;
}

void RecurrenceMixer::run_recurrence(const Device& device, const Batch& batch, const BlockActivations& a,
                                     const BlockScratch& s, const BlockState& state) const {
  if (!state.recurrent) {
    recurrence_forward(device, forward_args(device, batch, a, {}), s.workspace);
  } else if (steps(batch, state)) {
    recurrence_step(device, step_args(device, a, state), s.workspace);
  } else {
    recurrence_forward(device, forward_args(device, batch, a, consecutive(state.recurrent, state.slots)), s.workspace);
  }
}

GatesForward RecurrenceMixer::gates(const Weights& weights, const BlockActivations& a) const {
  const std::int64_t HV = config_.value_heads();
  GatesForward args;
  args.a = columns(a.projected, layout_.a_at, HV);
  args.b = columns(a.projected, layout_.b_at, HV);
  args.l = columns(a.projected, layout_.lambda_at, HV);
  args.A_log = layout_.A_log.in(weights);
  args.dt_bias = layout_.dt_bias.in(weights);
  if (layout_.lambda_bias.exists()) {
    args.lambda_bias = layout_.lambda_bias.in(weights);
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

void RecurrenceMixer::fill_fixed_gates(const Device& device, const BlockActivations& a, const BlockScratch& s) const {
  if (layout_.a_at < 0) copy_rows(device, {repeated(s.fixed_g, a.g), a.g});
  if (config_.fixed_lambda) copy_rows(device, {repeated(s.fixed_lambda, a.lambda), a.lambda});
}

void RecurrenceMixer::forward(const Device& device, const Weights& weights, const Batch& batch,
                              const BlockActivations& a, const BlockScratch& s, const BlockState& state,
                              const TensorView& out) const {
  const ModelConfig& c = config_;
  short_conv_forward(device, {columns(a.projected, 0, c.conv_channels()),
                              layout_.conv.exists() ? layout_.conv.in(weights) : ConstTensorView(s.ones),
                              a.mixed,
                              batch.device_offsets,
                              state.conv,
                              state.device_slots,
                              {}});
  gates_forward(device, gates(weights, a));
  fill_fixed_gates(device, a, s);
  run_recurrence(device, batch, a, s, state);
  gated_norm_forward(device, {a.o, columns(a.projected, layout_.gate_at, c.value_width()), layout_.out_norm.in(weights),
                              s.head_out, static_cast<float>(c.norm_eps)});
  linear_forward(device, {s.head_out, layout_.out.matrix_in(weights), out, a.x});
}

void RecurrenceMixer::backward(const Device& device, const Weights& weights, std::span<float> gradients,
                               const Batch& batch, const BlockActivations& a, BlockScratch& s,
                               const ConstTensorView& d_out) const {
  const ModelConfig& c = config_;
  const auto epsilon = static_cast<float>(c.norm_eps);
  const std::int64_t HV = c.value_heads();
  const std::int64_t channels = c.conv_channels();
  const TensorView gate = columns(a.projected, layout_.gate_at, c.value_width());
  // head_out is the gradient of the gated norm's output, and then that output again.
  linear_backward(device, {s.head_out, layout_.out.matrix_in(weights), d_out, s.head_out, {}, false});
  gated_norm_backward(device, {a.o, gate, layout_.out_norm.in(weights), s.head_out, s.d_head_out,
                               columns(s.d_projected, layout_.gate_at, c.value_width()), layout_.out_norm.in(gradients),
                               epsilon, s.head_out});
  linear_backward(device, {s.head_out, layout_.out.matrix_in(weights), d_out, {}, layout_.out.in(gradients), false});
  recurrence_backward(device, backward_args(device, batch, a, s), s.workspace);

  GatesBackward d_gates;
  d_gates.forward = gates(weights, a);
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
  short_conv_backward(device, {columns(a.projected, 0, channels),
                               has_conv ? layout_.conv.in(weights) : ConstTensorView(s.ones),
                               s.d_mixed,
                               columns(s.d_projected, 0, channels),
                               has_conv ? layout_.conv.in(gradients) : s.d_ones,
                               batch.device_offsets,
                               {},
                               {}});
}

}  // namespace qdelta
