#include "model/mamba_mixer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "model/adjacent_states.h"
#include "model/block_views.h"

namespace qdelta {
namespace {

using block_views::columns;
using block_views::steps;
using block_views::take;
using block_views::take_rows;

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
  return a;
}

std::unique_ptr<MixerScratch> MambaMixer::plan_scratch(const Device& device, const BatchShape& shape,
                                                       BumpAllocator& memory) const {
  const ModelConfig& c = *config_;
  const std::int64_t rows = shape.rows();
  const DType dtype = device.activations;
  auto s = std::make_unique<Scratch>();
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

void MambaMixer::run_scan(const LayerContext& context, const Activations& a, const MixerState& state) const {
  if (!steps(context.batch, state)) {
    if (!state) return selective_scan_forward(context.device, forward_args(context, a, {}), context.workspace);
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

// Forward and backward ------------------------------------------------------------------------------------------------

void MambaMixer::forward(const LayerContext& context, const Forward& args, MixerActivations& activations,
                         MixerScratch& /*scratch*/, const MixerState& state) const {
  const auto& a = dynamic_cast<const Activations&>(activations);
  const Device& device = context.device;
  const Weights& weights = context.weights;
  linear_forward(device, {.x = args.in, .w = in_proj_.matrix_in(weights), .y = a.projected, .add = {}});
  short_conv_forward(device,
                     {.x = columns(a.projected, 0, inner()),
                      .weight = conv_.in(weights),
                      .y = a.x,
                      .offsets = context.batch.device_offsets,
                      .state = state ? state.pools[kConvPool] : TensorView(),
                      .slots = state.device_slots,
                      .bias = conv_bias_.in(weights)},
                     context.workspace);
  linear_forward(device, {.x = a.x, .w = x_proj_.matrix_in(weights), .y = a.low, .add = {}});
  const TensorView low_dt = columns(a.low, 0, config_->step_rank());
  linear_forward(device, {.x = low_dt, .w = dt_proj_.matrix_in(weights), .y = a.dt, .add = {}});
  run_scan(context, a, state);
  linear_forward(device, {.x = a.y, .w = out_proj_.matrix_in(weights), .y = args.out, .add = args.residual});
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
  selective_scan_backward(device, backward_args(context, gradients, a, s), context.workspace);
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
                       .dbias = conv_bias_.in(gradients)},
                      context.workspace);
  linear_backward(device, {.x = args.in,
                           .w = in_proj_.matrix_in(weights),
                           .dy = s.d_projected,
                           .dx = args.d_in,
                           .dw = in_proj_.in(gradients)});
}

}  // namespace qdelta
