#include "model/mamba_mixer.h"

#include "model/block_views.h"

namespace qdelta {

using block_views::columns;
using block_views::consecutive;
using block_views::steps;

SelectiveScanInputs MambaMixer::inputs(const Weights& weights, const Batch& batch, const BlockActivations& a) const {
  const std::int64_t N = config_.state_size;
  const std::int64_t R = config_.step_rank();
  SelectiveScanInputs in;
  in.x = a.mixed;
  in.dt = a.dt;
  in.B = columns(a.low, R, N);
  in.C = columns(a.low, R + N, N);
  in.z = columns(a.projected, layout_.gate_at, config_.inner_width());
  in.A_log = layout_.A_log.in(weights);
  in.skip = layout_.skip.in(weights);
  in.dt_bias = layout_.dt_bias.in(weights);
  in.offsets = batch.device_offsets;
  return in;
}

SelectiveScanForward MambaMixer::forward_args(const Weights& weights, const Batch& batch, const BlockActivations& a,
                                              const BlockState& state) const {
  SelectiveScanForward args;
  args.in = inputs(weights, batch, a);
  if (state.recurrent) {
    args.ht = consecutive(state.recurrent, state.slots);
    args.in.h0 = args.ht;
  }
  args.y = a.o;
  args.chunk_states = a.chunk_states;
  return args;
}

SelectiveScanBackward MambaMixer::backward_args(const Weights& weights, std::span<float> gradients, const Batch& batch,
                                                const BlockActivations& a, const BlockScratch& s) const {
  const std::int64_t N = config_.state_size;
  const std::int64_t R = config_.step_rank();
  SelectiveScanBackward args;
  args.in = inputs(weights, batch, a);
  args.dy = s.d_head_out;
  args.chunk_states = a.chunk_states;
  args.dx = s.d_mixed;
  args.ddt = s.d_dt;
  args.dB = columns(s.d_low, R, N);
  args.dC = columns(s.d_low, R + N, N);
  args.dz = columns(s.d_projected, layout_.gate_at, config_.inner_width());
  args.dA_log = layout_.A_log.in(gradients);
  args.dskip = layout_.skip.in(gradients);
  args.ddt_bias = layout_.dt_bias.in(gradients);
  return args;
}

std::size_t MambaMixer::workspace(const Device& device, const Weights& weights, const Batch& batch,
                                  const BlockActivations& a, const BlockState& state, bool backward) const {
  return steps(batch, state) ? 0 : selective_scan_workspace(device, inputs(weights, batch, a), backward);
}

void MambaMixer::forward(const Device& device, const Weights& weights, const Batch& batch, const BlockActivations& a,
                         const BlockScratch& s, const BlockState& state, const TensorView& out) const {
  short_conv_forward(device, {columns(a.projected, 0, config_.inner_width()), layout_.conv.in(weights), a.mixed,
                              batch.device_offsets, state.conv, state.device_slots, layout_.conv_bias.in(weights)});
  linear_forward(device, {a.mixed, layout_.low.matrix_in(weights), a.low, {}});
  linear_forward(device, {columns(a.low, 0, config_.step_rank()), layout_.dt.matrix_in(weights), a.dt, {}});
  if (steps(batch, state)) {
    const SelectiveScanInputs in = inputs(weights, batch, a);
    const ConstTensorView index(reinterpret_cast<const std::byte*>(state.device_slots.data()), DType::i64,
                                {static_cast<std::int64_t>(state.device_slots.size())});
    selective_scan_step(device,
                        {in.x, in.dt, in.B, in.C, in.z, in.A_log, in.skip, in.dt_bias, state.recurrent, index, a.o});
  } else {
    selective_scan_forward(device, forward_args(weights, batch, a, state), s.workspace);
  }
  linear_forward(device, {a.o, layout_.out.matrix_in(weights), out, a.x});
}

void MambaMixer::backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                          const BlockActivations& a, BlockScratch& s, const ConstTensorView& d_out) const {
  const std::int64_t D = config_.inner_width();
  const std::int64_t R = config_.step_rank();
  linear_backward(device, {a.o, layout_.out.matrix_in(weights), d_out, s.d_head_out, layout_.out.in(gradients), false});
  selective_scan_backward(device, backward_args(weights, gradients, batch, a, s), s.workspace);
  linear_backward(device, {columns(a.low, 0, R), layout_.dt.matrix_in(weights), s.d_dt, columns(s.d_low, 0, R),
                           layout_.dt.in(gradients), false});
  linear_backward(device,
                  {a.mixed, layout_.low.matrix_in(weights), s.d_low, s.d_mixed, layout_.low.in(gradients), true});
  short_conv_backward(device, {columns(a.projected, 0, D), layout_.conv.in(weights), s.d_mixed,
                               columns(s.d_projected, 0, D), layout_.conv.in(gradients), batch.device_offsets,
                               layout_.conv_bias.in(weights), layout_.conv_bias.in(gradients)});
}

}  // namespace qdelta
