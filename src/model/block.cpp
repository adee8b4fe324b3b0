#include "model/block.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace qdelta {
namespace {

TensorView take(BumpAllocator& memory, const Shape& shape, DType dtype = DType::f32) {
  return {memory.take<std::byte>(shape.elements() * static_cast<std::int64_t>(size_of(dtype))), dtype, shape};
}

// A matrix whose rows start at multiples of 16 bytes, whatever their width.
TensorView take_rows(BumpAllocator& memory, std::int64_t rows, std::int64_t width, DType dtype) {
  const std::int64_t step = round_up(width, 16 / static_cast<std::int64_t>(size_of(dtype)));
  TensorView view = take(memory, {rows, step}, dtype);
  view.shape = {rows, width};
  return view;
}

// Columns [begin, begin + width) of a matrix.
template <class Byte>
BasicView<Byte> columns(const BasicView<Byte>& matrix, std::int64_t begin, std::int64_t width) {
  if (begin < 0) return {};
  BasicView<Byte> view = matrix;
  view.data += begin * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {matrix.extent(0), width};
  return view;
}

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

void fill(const Device& device, const TensorView& view, const std::vector<float>& values) {
  copy_in(device, view.data, values.data(), values.size() * sizeof(float));
}

// `row` as a matrix of as many rows as `like`.
ConstTensorView repeated(const TensorView& row, const TensorView& like) {
  ConstTensorView view = row;
  view.shape = like.shape;
  view.stride[0] = 0;
  return view;
}

}  // namespace

std::int64_t Batch::common_length() const {
  const std::int64_t length = offsets[1] - offsets[0];
  for (std::size_t n = 1; n + 1 < offsets.size(); ++n) {
    if (offsets[n + 1] - offsets[n] != length) return 0;
  }
  return length;
}

BlockActivations::BlockActivations(const ModelConfig& c, const BlockLayout& layout, DType dtype, std::int64_t rows,
                                   std::int64_t chunks, BumpAllocator& memory) {
  const std::int64_t HV = c.value_heads();
  attn_inverse_rms = take(memory, {rows});
  projected = take_rows(memory, rows, layout.projected, dtype);
  mixed = take(memory, {rows, 2 * c.key_width() + c.value_width()}, dtype);
  g = take(memory, {rows, HV});
  beta = take(memory, {rows, HV});
  lambda = take(memory, {rows, HV});
  if (chunks > 0) chunk_states = take(memory, {chunks, HV, c.head_dim, c.value_dim()}, dtype);
  o = take(memory, {rows, c.value_width()}, dtype);
  middle = take(memory, {rows, c.hidden_size});
  mlp_inverse_rms = take(memory, {rows});
  gate_up = take(memory, {rows, 2 * c.mlp_width()}, dtype);
}

BlockScratch::BlockScratch(const ModelConfig& c, const BlockLayout& layout, DType dtype, std::int64_t rows,
                           bool backward, BumpAllocator& memory) {
  const std::int64_t channels = 2 * c.key_width() + c.value_width();
  const std::int64_t HV = c.value_heads();
  normed = take(memory, {rows, c.hidden_size}, dtype);
  head_out = take(memory, {rows, c.value_width()}, dtype);
  hidden = take(memory, {rows, c.mlp_width()}, dtype);
  ones = take(memory, {channels, 1});
  fixed_g = take(memory, {1, HV});
  fixed_lambda = take(memory, {1, HV});
  if (!backward) return;
  d_head_out = take(memory, {rows, c.value_width()}, dtype);
  d_gate_up = take(memory, {rows, 2 * c.mlp_width()}, dtype);
  d_projected = take_rows(memory, rows, layout.projected, dtype);
  d_mixed = take(memory, {rows, channels}, dtype);
  if (dtype != DType::f32) d_stream = take(memory, {rows, c.hidden_size}, dtype);
  dg = take(memory, {rows, HV});
  dbeta = take(memory, {rows, HV});
  dlambda = take(memory, {rows, HV});
  d_ones = take(memory, {channels, 1});
}

// g = 0 without decay, RetNet's fixed decay per head; a fixed lambda.
void BlockScratch::fill_constants(const Device& device, const ModelConfig& c) {
  // Its last columns belong to no projection.
  if (d_projected) {
    const auto floats = static_cast<std::size_t>(d_projected.extent(0) * d_projected.step(0));
    clear(device, d_projected.data, floats * size_of(d_projected.dtype));
  }
  const auto HV = static_cast<std::size_t>(c.value_heads());
  std::vector<float> g(HV);
  for (std::size_t head = 0; head < HV && c.rule == Rule::retnet; ++head) {
    g[head] = static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(head))));
  }
  fill(device, ones, std::vector<float>(static_cast<std::size_t>(ones.shape.elements()), 1.0F));
  fill(device, fixed_g, g);
  fill(device, fixed_lambda, std::vector<float>(HV, static_cast<float>(c.fixed_lambda.value_or(0))));
}

RecurrenceInputs Block::recurrence_inputs(const Batch& batch, const BlockActivations& a) const {
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

RecurrenceForward Block::recurrence_forward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                 const TensorView& states) const {
  RecurrenceForward args;
  args.in = recurrence_inputs(batch, a);
  args.in.h0 = states;
  args.ht = states;
  args.o = as_heads(a.o, batch.common_length(), 0, config_.value_heads(), config_.value_dim());
  args.chunk_states = a.chunk_states;
  args.run.threads = device.threads;
  return args;
}

RecurrenceBackward Block::recurrence_backward_args(const Device& device, const Batch& batch, const BlockActivations& a,
                                                   const BlockScratch& s) const {
  const ModelConfig& c = config_;
  RecurrenceBackward args;
  args.in = recurrence_inputs(batch, a);
  const std::int64_t length = batch.common_length();
  args.d_o = as_heads(s.d_head_out, length, 0, c.value_heads(), c.value_dim());
  args.chunk_states = a.chunk_states;
  args.dq = as_heads(s.d_mixed, length, 0, c.num_heads, c.head_dim);
  args.dk = as_heads(s.d_mixed, length, c.key_width(), c.num_heads, c.head_dim);
  args.dv = as_heads(s.d_mixed, length, 2 * c.key_width(), c.value_heads(), c.value_dim());
  args.dg = as_gates(s.dg, length);
  args.dbeta = as_gates(s.dbeta, length);
  args.dlambda = as_gates(s.dlambda, length);
  args.run.threads = device.threads;
  return args;
}

std::size_t Block::recurrence_workspace(const Device& device, const Batch& batch, const BlockActivations& a,
                                        BlockScratch& s, const BlockState& state, bool backward) const {
  if (steps(batch, state)) return qdelta::recurrence_workspace(device, recurrence_step_args(device, a, state));
  std::size_t bytes = qdelta::recurrence_workspace(device, recurrence_forward_args(device, batch, a, {}));
  if (backward) {
    bytes = std::max(bytes, qdelta::recurrence_workspace(device, recurrence_backward_args(device, batch, a, s)));
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
  args.index = ConstTensorView(reinterpret_cast<const std::byte*>(state.device_slots.data()), DType::i64,
                               {static_cast<std::int64_t>(state.device_slots.size())});
  args.o = without_batch(as_heads(a.o, 0, 0, config_.value_heads(), config_.value_dim()));
  args.threads = device.threads;
  return args;
}

void Block::run_recurrence(const Device& device, const Batch& batch, const BlockActivations& a, BlockScratch& s,
                           const BlockState& state) const {
  if (!state.recurrent) {
    recurrence_forward(device, recurrence_forward_args(device, batch, a, {}), s.recurrence);
  } else if (steps(batch, state)) {
    recurrence_step(device, recurrence_step_args(device, a, state), s.recurrence);
  } else {
    recurrence_forward(device, recurrence_forward_args(device, batch, a, consecutive(state.recurrent, state.slots)),
                       s.recurrence);
  }
}

GatesForward Block::gates(const Weights& weights, const BlockActivations& a) const {
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

void Block::fill_fixed_gates(const Device& device, const BlockActivations& a, const BlockScratch& s) const {
  if (layout_.a_at < 0) copy_rows(device, {repeated(s.fixed_g, a.g), a.g});
  if (config_.fixed_lambda) copy_rows(device, {repeated(s.fixed_lambda, a.lambda), a.lambda});
}

void Block::forward(const Device& device, const Weights& weights, const Batch& batch, BlockActivations& a,
                    BlockScratch& s, const TensorView& out, const BlockState& state) const {
  const ModelConfig& c = config_;
  const auto epsilon = static_cast<float>(c.norm_eps);
  const std::int64_t channels = 2 * c.key_width() + c.value_width();

  // x + mixer(norm(x))
  rms_norm_forward(device, {a.x, layout_.attn_norm.in(weights), s.normed, a.attn_inverse_rms, epsilon});
  linear_forward(device, {s.normed, layout_.projections.matrix_in(weights), a.projected, {}});
  short_conv_forward(device, {columns(a.projected, 0, channels),
                              layout_.conv.exists() ? layout_.conv.in(weights) : ConstTensorView(s.ones), a.mixed,
                              batch.device_offsets, state.conv, state.device_slots});
  gates_forward(device, gates(weights, a));
  fill_fixed_gates(device, a, s);
  run_recurrence(device, batch, a, s, state);
  gated_norm_forward(device, {a.o, columns(a.projected, layout_.gate_at, c.value_width()), layout_.out_norm.in(weights),
                              s.head_out, epsilon});
  const TensorView& middle = c.use_mlp ? a.middle : out;
  linear_forward(device, {s.head_out, layout_.out.matrix_in(weights), middle, a.x});

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
  const ModelConfig& c = config_;
  const auto epsilon = static_cast<float>(c.norm_eps);
  const std::int64_t HV = c.value_heads();
  const std::int64_t channels = 2 * c.key_width() + c.value_width();
  const TensorView gate = columns(a.projected, layout_.gate_at, c.value_width());
  // head_out is the gradient of the gated norm's output, and then that output again.
  const ConstTensorView d_out = s.d_stream_of(dx);
  linear_backward(device, {s.head_out, layout_.out.matrix_in(weights), d_out, s.head_out, {}, false});
  gated_norm_backward(device, {a.o, gate, layout_.out_norm.in(weights), s.head_out, s.d_head_out,
                               columns(s.d_projected, layout_.gate_at, c.value_width()), layout_.out_norm.in(gradients),
                               epsilon, s.head_out});
  linear_backward(device, {s.head_out, layout_.out.matrix_in(weights), d_out, {}, layout_.out.in(gradients), false});
  recurrence_backward(device, recurrence_backward_args(device, batch, a, s), s.recurrence);

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
  short_conv_backward(
      device,
      {columns(a.projected, 0, channels), has_conv ? layout_.conv.in(weights) : ConstTensorView(s.ones), s.d_mixed,
       columns(s.d_projected, 0, channels), has_conv ? layout_.conv.in(gradients) : s.d_ones, batch.device_offsets});
  rms_norm_forward(device, {a.x, layout_.attn_norm.in(weights), s.normed, {}, epsilon});
  const ConstTensorView projections = layout_.projections.matrix_in(weights);
  linear_backward(device, {s.normed, projections, s.d_projected, {}, layout_.projections.in(gradients), false});
  linear_backward(device, {s.normed, projections, s.d_projected, s.normed, {}, false});
  rms_norm_backward(device, {a.x, layout_.attn_norm.in(weights), a.attn_inverse_rms, s.normed, dx,
                             layout_.attn_norm.in(gradients), s.d_stream});
}

}  // namespace qdelta
