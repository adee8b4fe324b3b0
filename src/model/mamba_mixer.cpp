#include "model/mamba_mixer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/adjacent_states.h"
#include "model/block_views.h"
#include "model/sequence_part.h"

namespace qdelta {
namespace {

using block_views::columns;
using block_views::floats_of;
using block_views::narrowed;
using block_views::steps;
using block_views::take;
using block_views::take_rows;

// Tokens [begin, begin + count), which `offsets` says are one sequence.
SelectiveScanInputs tokens_of(SelectiveScanInputs in, std::int64_t begin, std::int64_t count,
                              std::span<const std::int64_t> offsets) {
  for (ConstTensorView* view : {&in.x, &in.dt, &in.B, &in.C, &in.z}) *view = narrowed(*view, 0, begin, count);
  in.offsets = offsets;
  return in;
}

// out = map . state + out, the map being diagonal.
void add_mapped(const Device& device, const TensorView& map, const TensorView& state, const TensorView& out) {
  add_product(device, {.a = floats_of(map), .b = floats_of(state), .out = floats_of(out)});
}

void clear(const Device& device, const TensorView& view) { clear(device, view.data, floats_of(view).size_bytes()); }

// A of state n is -(n + 1).
Initializer log_of_state_number(std::int64_t states) {
  return [states](Random& /*random*/, std::span<float> values) {
    std::int64_t n = 0;
    for (float& value : values) value = static_cast<float>(std::log(1.0 + static_cast<double>(n++ % states)));
  };
}

}  // namespace

std::unique_ptr<Mixer> make_mamba_mixer(const MixerType& /*type*/, std::shared_ptr<const ModelConfig> config) {
  return std::make_unique<MambaMixer>(std::move(config));
}

// What it is ----------------------------------------------------------------------------------------------------------

// What Mamba has no use for must not be asked of it.
void MambaMixer::check() const {
  const ModelConfig& c = *config_;
  require(c.expand > 0 && c.expand <= 1024, "config: expand is {}, which makes no sense", c.expand);
  require(std::abs(static_cast<double>(c.hidden_size) * c.expand - static_cast<double>(inner())) < 1e-9 && inner() > 0,
          "config: hidden_size {} times expand {} is no whole number", c.hidden_size, c.expand);
  require(c.state_size >= 1 && c.state_size <= kMaxScanStates, "config: state_size is {}, expected 1 to {}",
          c.state_size, kMaxScanStates);
  require(c.dt_rank >= 0 && c.dt_rank <= inner(), "config: time_step_rank is {}, which makes no sense", c.dt_rank);
  require(c.use_short_conv, "config: mamba has no use_short_conv false");
  require(c.use_gate, "config: mamba has no use_gate false");
  require(c.use_decay, "config: mamba has no use_decay false");
  require(!c.allow_neg_eigval, "config: mamba has no allow_neg_eigval");
}

double MambaMixer::approximate_parameters() const {
  const ModelConfig& c = *config_;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  return number(inner()) * (3 + 2 * number(c.step_rank() + 2 * c.state_size) / number(c.hidden_size)) *
         number(c.hidden_size + c.conv_size);
}

void MambaMixer::write_config(nlohmann::ordered_json& json) const {
  json["expand"] = config_->expand;
  json["state_size"] = config_->state_size;
  json["time_step_rank"] = config_->dt_rank > 0 ? nlohmann::ordered_json(config_->dt_rank) : "auto";
}

MixerDescription MambaMixer::description() const {
  const ModelConfig& c = *config_;
  MixerDescription about;
  about.label = "Channels";
  about.text = fmt::format("{} of {} states, steps of rank {}", inner(), c.state_size, c.step_rank());
  about.sizes = {{"inner_width", inner()}, {"state_size", c.state_size}, {"dt_rank", c.step_rank()}};
  about.summary = fmt::format("{} channels of {} states", inner(), c.state_size);
  about.summary_sizes = {{"inner_width", inner()}, {"state_size", c.state_size}};
  return about;
}

double MambaMixer::forward_flop() const {
  return scan_forward_flop(static_cast<double>(config_->state_size)) * static_cast<double>(inner());
}

double MambaMixer::backward_flop() const {
  return scan_backward_flop(static_cast<double>(config_->state_size)) * static_cast<double>(inner());
}

std::vector<StateTensor> MambaMixer::state_tensors() const {
  return {{"conv", {config_->conv_size - 1, inner()}}, {"recurrent", {config_->state_size, inner()}}};
}

// Parameters ----------------------------------------------------------------------------------------------------------

void MambaMixer::place(const std::string& prefix, ParameterPlacer& placer) {
  const ModelConfig& c = *config_;
  const Initializer normal = initial::normal(c.initializer_range);
  const auto tensor = [&](const char* name, const Shape& shape, const Initializer& initializer) {
    return placer.tensor(prefix + "mixer." + name, shape, initializer);
  };
  in_proj_ = tensor("in_proj.weight", {2 * inner(), c.hidden_size}, normal);
  conv_ = tensor("conv1d.weight", {inner(), 1, c.conv_size}, initial::uniform(c.conv_size));
  conv_.shape = {inner(), c.conv_size};
  conv_bias_ = tensor("conv1d.bias", {inner()}, initial::uniform(c.conv_size));
  x_proj_ = tensor("x_proj.weight", {c.step_rank() + 2 * c.state_size, inner()}, normal);
  dt_proj_ = tensor("dt_proj.weight", {inner(), c.step_rank()}, initial::uniform(c.step_rank()));
  dt_bias_ = tensor("dt_proj.bias", {inner()}, initial::step_bias());
  A_log_ = tensor("A_log", {inner(), c.state_size}, log_of_state_number(c.state_size));
  skip_ = tensor("D", {inner()}, initial::constant(1));
  out_proj_ = tensor("out_proj.weight", {c.hidden_size, inner()}, normal);
}

// Memory --------------------------------------------------------------------------------------------------------------

std::unique_ptr<MixerActivations> MambaMixer::plan_activations(const Device& device, const BatchShape& shape,
                                                               BumpAllocator& memory) const {
  const ModelConfig& c = *config_;
  const std::int64_t rows = shape.rows();
  const DType dtype = device.activations;
  auto a = std::make_unique<Activations>();
  a->projected = take_rows(memory, rows, 2 * inner(), dtype);
  a->x = take(memory, {rows, inner()}, dtype);
  a->low = take_rows(memory, rows, c.step_rank() + 2 * c.state_size, dtype);
  a->dt = take(memory, {rows, inner()}, dtype);
  // The scan's states lose too much in bfloat16: its backward goes through many tokens from each.
  if (shape.training) a->chunk_states = take(memory, {scan_chunks(rows), c.state_size, inner()});
  a->y = take(memory, {rows, inner()}, dtype);
  if (shape.part) {
    a->before = take(memory, {c.conv_size - 1, inner()});
    for (TensorView* state : {&a->entry, &a->map}) *state = take(memory, {1, c.state_size, inner()});
  }
  return a;
}

std::unique_ptr<MixerScratch> MambaMixer::plan_scratch(const Device& device, const BatchShape& shape,
                                                       BumpAllocator& memory) const {
  const ModelConfig& c = *config_;
  const std::int64_t rows = shape.rows();
  const DType dtype = device.activations;
  auto s = std::make_unique<Scratch>();
  if (shape.part) {
    const auto sequences = static_cast<std::int64_t>(shape.offsets.size()) - 1;
    for (TensorView* halo : {&s->rows_own, &s->rows_in}) *halo = take(memory, {c.conv_size - 1, inner()});
    for (TensorView* all : {&s->states, &s->d_states}) *all = take(memory, {sequences, c.state_size, inner()});
    s->state_own = take(memory, {1, c.state_size, inner()});
    s->no_input = take(memory, {1, inner()}, dtype);
    s->offsets = take(memory, {2}, DType::i64);
    s->dA_log = take(memory, {inner(), c.state_size});
    for (TensorView* unwanted : {&s->d_skip, &s->d_dt_bias}) *unwanted = take(memory, {inner()});
  }
  if (!shape.training) return s;
  s->d_y = take(memory, {rows, inner()}, dtype);
  s->d_projected = take_rows(memory, rows, 2 * inner(), dtype);
  s->d_x = take(memory, {rows, inner()}, dtype);
  s->d_low = take_rows(memory, rows, c.step_rank() + 2 * c.state_size, dtype);
  s->d_dt = take(memory, {rows, inner()}, dtype);
  return s;
}

// The scan ------------------------------------------------------------------------------------------------------------

SelectiveScanInputs MambaMixer::inputs(const LayerContext& context, const Activations& a) const {
  const std::int64_t N = config_->state_size;
  const std::int64_t R = config_->step_rank();
  SelectiveScanInputs in;
  in.x = a.x;
  in.dt = a.dt;
  in.B = columns(a.low, R, N);
  in.C = columns(a.low, R + N, N);
  in.z = columns(a.projected, inner(), inner());
  in.A_log = A_log_.in(context.weights);
  in.skip = skip_.in(context.weights);
  in.dt_bias = dt_bias_.in(context.weights);
  in.offsets = context.batch.device_offsets;
  return in;
}

SelectiveScanForward MambaMixer::forward_args(const LayerContext& context, const Activations& a,
                                              const TensorView& states) const {
  SelectiveScanForward args;
  args.in = inputs(context, a);
  args.ht = states;
  args.in.h0 = states;
  args.y = a.y;
  args.chunk_states = a.chunk_states;
  return args;
}

SelectiveScanBackward MambaMixer::backward_args(const LayerContext& context, std::span<float> gradients,
                                                const Activations& a, const Scratch& s) const {
  const std::int64_t N = config_->state_size;
  const std::int64_t R = config_->step_rank();
  SelectiveScanBackward args;
  args.in = inputs(context, a);
  args.dy = s.d_y;
  args.chunk_states = a.chunk_states;
  args.dx = s.d_x;
  args.ddt = s.d_dt;
  args.dB = columns(s.d_low, R, N);
  args.dC = columns(s.d_low, R + N, N);
  args.dz = columns(s.d_projected, inner(), inner());
  args.dA_log = A_log_.in(gradients);
  args.dskip = skip_.in(gradients);
  args.ddt_bias = dt_bias_.in(gradients);
  return args;
}

void MambaMixer::run_scan(const LayerContext& context, const Activations& a, const Scratch& s,
                          const MixerState& state) const {
  if (!state) {
    SelectiveScanForward args = forward_args(context, a, {});
    if (context.batch.part != nullptr) args.in.h0 = carry_states(context, a, s);
    return selective_scan_forward(context.device, args, context.workspace);
  }
  if (!steps(context.batch, state)) {
    const AdjacentStates states(context.device, state.pools[kRecurrentPool], state);
    selective_scan_forward(context.device, forward_args(context, a, states.view()), context.workspace);
    return states.put_back();
  }
  const SelectiveScanInputs in = inputs(context, a);
  selective_scan_step(context.device, {.x = in.x,
                                       .dt = in.dt,
                                       .B = in.B,
                                       .C = in.C,
                                       .z = in.z,
                                       .A_log = in.A_log,
                                       .skip = in.skip,
                                       .dt_bias = in.dt_bias,
                                       .states = state.pools[kRecurrentPool],
                                       .index = block_views::indices(state.device_slots),
                                       .y = a.y});
}

// Over the cuts of a batch --------------------------------------------------------------------------------------------
//
// The map of a part is diagonal, h_out = m . h_in + n. Both are final states of the scan: n from zeros, m from ones
// without an input. The gradient that a part's own outputs send to h_in is that of its backward without d_ht.

TensorView MambaMixer::states_on_entry(const LayerContext& context, const Activations& a, const Scratch& s) {
  if (!SequencePart::enters(context.batch)) return {};
  clear(context.device, s.states);
  copy_on_device(context.device, s.states.data, a.entry.data, floats_of(a.entry).size_bytes());
  return s.states;
}

// One sequence of so many tokens, as the scan wants it on this device.
std::span<const std::int64_t> MambaMixer::one_sequence(const LayerContext& context, const Scratch& s,
                                                       std::int64_t tokens) {
  const std::array<std::int64_t, 2> offsets{0, tokens};
  upload(context.device, s.offsets.data, offsets.data(), sizeof(offsets));
  return {reinterpret_cast<const std::int64_t*>(s.offsets.data), offsets.size()};
}

TensorView MambaMixer::carry_states(const LayerContext& context, const Activations& a, const Scratch& s) const {
  const Batch& batch = context.batch;
  const bool passes = SequencePart::passes(batch);
  if (batch.part->leaves()) {
    const std::int64_t begin = batch.offsets[batch.offsets.size() - 2];
    const std::int64_t tokens = batch.rows() - begin;
    SelectiveScanForward args;
    args.in = tokens_of(inputs(context, a), begin, tokens, one_sequence(context, s, tokens));
    args.y = narrowed(a.y, 0, begin, tokens);
    args.ht = s.state_own;
    selective_scan_forward(context.device, args, context.workspace);
    if (passes) {
      const std::vector<float> ones(floats_of(a.map).size(), 1.0F);
      upload(context.device, a.map.data, ones.data(), floats_of(a.map).size_bytes());
      clear(context.device, s.no_input.data, static_cast<std::size_t>(inner()) * size_of(s.no_input.dtype));
      args.in.x = block_views::repeated(s.no_input, a.x);
      args.in.h0 = a.map;
      args.ht = a.map;
      selective_scan_forward(context.device, args, context.workspace);
    }
  }
  batch.part->carry(context.device, SequencePart::Direction::later, floats_of(s.state_own), floats_of(a.entry), passes,
                    [&] { add_mapped(context.device, a.map, a.entry, s.state_own); });
  return states_on_entry(context, a, s);
}

TensorView MambaMixer::carry_state_gradients(const LayerContext& context, std::span<float> gradients,
                                             const Activations& a, const Scratch& s) const {
  const Batch& batch = context.batch;
  if (batch.part->enters()) {
    const std::int64_t tokens = batch.offsets[1];
    for (const TensorView& unwanted : {s.dA_log, s.d_skip, s.d_dt_bias}) clear(context.device, unwanted);
    SelectiveScanBackward args = backward_args(context, gradients, a, s);
    args.in = tokens_of(args.in, 0, tokens, one_sequence(context, s, tokens));
    args.in.h0 = a.entry;
    args.chunk_states = narrowed(a.chunk_states, 0, 0, scan_chunks(tokens));
    args.dy = narrowed(args.dy, 0, 0, tokens);
    for (TensorView* view : {&args.dx, &args.ddt, &args.dB, &args.dC, &args.dz}) *view = narrowed(*view, 0, 0, tokens);
    args.dA_log = s.dA_log;
    args.dskip = s.d_skip;
    args.ddt_bias = s.d_dt_bias;
    args.dh0 = s.state_own;
    selective_scan_backward(context.device, args, context.workspace);
  }
  const TensorView exit = narrowed(s.d_states, 0, batch.sequences() - 1, 1);
  if (batch.part->leaves()) clear(context.device, s.d_states);
  batch.part->carry(context.device, SequencePart::Direction::earlier, floats_of(s.state_own), floats_of(exit),
                    SequencePart::passes(batch), [&] { add_mapped(context.device, a.map, exit, s.state_own); });
  return batch.part->leaves() ? s.d_states : TensorView();
}

// Forward and backward ------------------------------------------------------------------------------------------------

void MambaMixer::forward(const LayerContext& context, const Forward& args, MixerActivations& activations,
                         MixerScratch& scratch, const MixerState& state) const {
  const auto& a = dynamic_cast<const Activations&>(activations);
  const auto& s = dynamic_cast<const Scratch&>(scratch);
  const Device& device = context.device;
  const Weights& weights = context.weights;
  rms_norm_forward(device, args.norm);
  linear_forward(device, {.x = args.norm.y, .w = in_proj_.matrix_in(weights), .y = a.projected, .add = {}});
  if (SequencePart* part = context.batch.part; part != nullptr) {
    part->carry_rows(device, context.batch, columns(a.projected, 0, inner()), s.rows_own, a.before);
  }
  short_conv_forward(device,
                     {.x = columns(a.projected, 0, inner()),
                      .weight = conv_.in(weights),
                      .y = a.x,
                      .offsets = context.batch.device_offsets,
                      .state = state ? state.pools[kConvPool] : TensorView(),
                      .slots = state.device_slots,
                      .bias = conv_bias_.in(weights),
                      .before = SequencePart::enters(context.batch) ? a.before : TensorView()},
                     context.workspace);
  linear_forward(device, {.x = a.x, .w = x_proj_.matrix_in(weights), .y = a.low, .add = {}});
  const TensorView low_dt = columns(a.low, 0, config_->step_rank());
  linear_forward(device, {.x = low_dt, .w = dt_proj_.matrix_in(weights), .y = a.dt, .add = {}});
  run_scan(context, a, s, state);
  linear_forward(device, {.x = a.y, .w = out_proj_.matrix_in(weights), .y = args.out, .add = args.norm.x});
}

void MambaMixer::backward(const LayerContext& context, const Backward& args, const MixerActivations& activations,
                          MixerScratch& scratch) const {
  const auto& a = dynamic_cast<const Activations&>(activations);
  const auto& s = dynamic_cast<const Scratch&>(scratch);
  const Device& device = context.device;
  const Weights& weights = context.weights;
  const std::span<float> gradients = args.gradients;
  const std::int64_t R = config_->step_rank();
  linear_backward(
      device,
      {.x = a.y, .w = out_proj_.matrix_in(weights), .dy = args.d_out, .dx = s.d_y, .dw = out_proj_.in(gradients)});
  SelectiveScanBackward scan = backward_args(context, gradients, a, s);
  if (context.batch.part != nullptr) {
    scan.d_ht = carry_state_gradients(context, gradients, a, s);
    scan.in.h0 = states_on_entry(context, a, s);
  }
  selective_scan_backward(device, scan, context.workspace);
  linear_backward(device, {.x = columns(a.low, 0, R),
                           .w = dt_proj_.matrix_in(weights),
                           .dy = s.d_dt,
                           .dx = columns(s.d_low, 0, R),
                           .dw = dt_proj_.in(gradients)});
  linear_backward(device, {.x = a.x,
                           .w = x_proj_.matrix_in(weights),
                           .dy = s.d_low,
                           .dx = s.d_x,
                           .dw = x_proj_.in(gradients),
                           .add_dx = true});
  short_conv_backward(device,
                      {.x = columns(a.projected, 0, inner()),
                       .weight = conv_.in(weights),
                       .dy = s.d_x,
                       .dx = columns(s.d_projected, 0, inner()),
                       .dweight = conv_.in(gradients),
                       .offsets = context.batch.device_offsets,
                       .bias = conv_bias_.in(weights),
                       .dbias = conv_bias_.in(gradients),
                       .before = SequencePart::enters(context.batch) ? a.before : TensorView(),
                       .dbefore = SequencePart::enters(context.batch) ? s.rows_own : TensorView()},
                      context.workspace);
  if (SequencePart* part = context.batch.part; part != nullptr) {
    part->carry_row_gradients(device, context.batch, s.rows_own, s.rows_in, columns(s.d_projected, 0, inner()));
  }
  linear_backward(device, {.x = args.in,
                           .w = in_proj_.matrix_in(weights),
                           .dy = s.d_projected,
                           .dx = args.d_in,
                           .dw = in_proj_.in(gradients)});
}

}  // namespace qdelta
