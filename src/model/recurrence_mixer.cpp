#include "model/recurrence_mixer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "kernels/fused_layers.h"
#include "kernels/lengths_on_device.h"
#include "kernels/row_blocks.h"
#include "kernels/steps.h"
#include "model/adjacent_states.h"
#include "model/block.h"
#include "model/block_views.h"
#include "model/sequence_part.h"

namespace qdelta {
namespace {

using block_views::columns;
using block_views::floats_of;
using block_views::narrowed;
using block_views::repeated;
using block_views::steps;
using block_views::take;
using block_views::take_rows;

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

// The length of every sequence; 0 where they differ, or the device alone knows them: then they are packed.
std::int64_t length_of_all(const Batch& batch) {
  return batch.offsets.empty() || LengthsOnDevice::current() != nullptr ? 0 : batch.common_length();
}

std::int64_t chunks_of(std::span<const std::int64_t> offsets) {
  std::int64_t sum = 0;
  for (std::size_t n = 1; n < offsets.size(); ++n) sum += ceil_div(offsets[n] - offsets[n - 1], kDefaultChunk);
  return sum;
}

Initializer log_of_uniform_decay() {
  return [](Random& random, std::span<float> values) {
    for (float& value : values) value = static_cast<float>(std::log(16 * (1 - random.uniform())));
  };
}

}  // namespace

std::unique_ptr<Mixer> make_recurrence_mixer(const MixerType& type, std::shared_ptr<const ModelConfig> config) {
  return std::make_unique<RecurrenceMixer>(rule_from_name(type.name).value(), std::move(config));
}

const RecurrenceActivations* recurrence_activations(const BlockActivations& activations) {
  return dynamic_cast<const RecurrenceActivations*>(activations.mixer.get());
}

// What it is ----------------------------------------------------------------------------------------------------------

RecurrenceMixer::RecurrenceMixer(Rule rule, std::shared_ptr<const ModelConfig> config)
    : rule_(rule), traits_(traits_of(rule)), config_(std::move(config)) {}

void RecurrenceMixer::check() const {
  require(!traits_.beta_is_step || config_->use_decay, "config: {} needs its decay", traits_.name);
}

double RecurrenceMixer::approximate_parameters() const {
  const ModelConfig& c = *config_;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double width =
      2 * number(c.num_heads) * number(c.head_dim) + 3 * number(c.value_heads()) * number(c.value_dim());
  return width * number(c.hidden_size + c.conv_size);
}

void RecurrenceMixer::write_config(nlohmann::ordered_json& json) const {
  if (!traits_.reads_lambda || config_->initial_lamb_bias == ModelConfig().initial_lamb_bias) return;
  json["initial_lamb_bias"] = config_->initial_lamb_bias;
}

MixerDescription RecurrenceMixer::description() const {
  const ModelConfig& c = *config_;
  MixerDescription about;
  about.label = "Heads";
  about.text = c.value_heads() == c.num_heads
                   ? fmt::format("{}, keys of {}, values of {}", c.num_heads, c.head_dim, c.value_dim())
                   : fmt::format("{} of keys ({} wide), {} of values ({} wide)", c.num_heads, c.head_dim,
                                 c.value_heads(), c.value_dim());
  about.sizes = {{"key_heads", c.num_heads}, {"value_heads", c.value_heads()}, {"K", c.head_dim}, {"V", c.value_dim()}};
  about.summary = fmt::format("{} heads of {} x {}", c.value_heads(), c.head_dim, c.value_dim());
  about.summary_sizes = {{"heads", c.value_heads()}, {"K", c.head_dim}, {"V", c.value_dim()}};
  return about;
}

// In its chunk form.
double RecurrenceMixer::forward_flop() const {
  const auto K = static_cast<double>(config_->head_dim);
  const auto V = static_cast<double>(config_->value_dim());
  return chunk_forward_flop(K, V, kDefaultChunk) * static_cast<double>(config_->value_heads());
}

double RecurrenceMixer::backward_flop() const {
  const auto K = static_cast<double>(config_->head_dim);
  const auto V = static_cast<double>(config_->value_dim());
  return chunk_backward_flop(K, V, kDefaultChunk) * static_cast<double>(config_->value_heads());
}

std::vector<StateTensor> RecurrenceMixer::state_tensors() const {
  const ModelConfig& c = *config_;
  return {{"conv", {c.use_short_conv ? c.conv_size - 1 : 0, channels()}},
          {"recurrent", {c.value_heads(), c.head_dim, c.value_dim()}}};
}

std::int64_t RecurrenceMixer::recent_elements(const Device& device) const {
  const ModelConfig& c = *config_;
  if (device.gpu == nullptr) return 0;
  return evicted_elements() + c.value_heads() * qdelta::recent_elements(c.head_dim, c.value_dim());
}

// What follows them begins at a multiple of 16 bytes.
std::int64_t RecurrenceMixer::evicted_elements() const { return round_up((kEvictedRows + 1) * channels(), 4); }

TensorView RecurrenceMixer::evicted_inputs(const TensorView& recent) const {
  static_assert(kEvictedRows >= kRecentTokens);
  if (!recent) return {};
  TensorView view = recent;
  view.shape = {recent.extent(0), kEvictedRows + 1, channels()};
  view.stride = {recent.step(0), channels(), 1};
  return view;
}

TensorView RecurrenceMixer::recent_of_heads(const TensorView& recent) const {
  if (!recent) return {};
  const std::int64_t each = qdelta::recent_elements(config_->head_dim, config_->value_dim());
  TensorView view = recent;
  view.data += evicted_elements() * static_cast<std::int64_t>(sizeof(float));
  view.shape = {recent.extent(0), config_->value_heads(), each};
  view.stride = {recent.step(0), each, 1};
  return view;
}

void RecurrenceMixer::settle(const Device& device, std::span<const TensorView> pools, const TensorView& recent) const {
  recurrence_settle(device, {.states = pools[kRecurrentPool], .recent = recent_of_heads(recent)});
}

void RecurrenceMixer::undo(const Device& device, std::span<const TensorView> pools, const TensorView& recent,
                           std::int64_t tokens) const {
  recurrence_undo(
      device, {.recent = recent_of_heads(recent), .K = config_->head_dim, .V = config_->value_dim(), .tokens = tokens});
  short_conv_undo(device, {.state = pools[kConvPool], .evicted = evicted_inputs(recent), .tokens = tokens});
}

// Parameters ----------------------------------------------------------------------------------------------------------

void RecurrenceMixer::place_projections(const std::string& prefix, ParameterPlacer& placer) {
  const ModelConfig& c = *config_;
  const std::int64_t HV = c.value_heads();
  placer.align();
  projections_.offset = placer.end();
  const auto project = [&](const char* name, std::int64_t width) {
    placer.adjacent(prefix + name + "_proj.weight", {width, c.hidden_size}, initial::normal(c.initializer_range));
    const std::int64_t at = used_;
    used_ += width;
    return at;
  };
  project("q", c.key_width());
  project("k", c.key_width());
  project("v", c.value_width());
  if (c.use_gate) gate_at_ = project("g", c.value_width());
  if (learns_decay()) a_at_ = project("a", HV);
  if (traits_.learns_beta()) b_at_ = project("b", HV);
  if (learns_lambda()) lambda_at_ = project("lamb", HV);
  projected_ = round_up(used_, 8);
  placer.skip((projected_ - used_) * c.hidden_size);
  projections_.shape = {projected_, c.hidden_size};
}

void RecurrenceMixer::place_constants(ParameterPlacer& placer) {
  const ModelConfig& c = *config_;
  const std::int64_t HV = c.value_heads();
  const auto filled = [&](const Shape& shape, float value) {
    return placer.constant(shape, std::vector<float>(static_cast<std::size_t>(shape.elements()), value));
  };
  if (!c.use_short_conv) ones_ = filled({channels(), 1}, 1.0F);
  if (c.fixed_lambda) fixed_lambda_ = filled({1, HV}, static_cast<float>(*c.fixed_lambda));
  if (used_ < projected_) zeros_ = filled({1, projected_ - used_}, 0.0F);
  if (learns_decay()) return;
  std::vector<float> g(static_cast<std::size_t>(HV));
  for (std::int64_t head = 0; head < HV && traits_.fixed_log_decay != nullptr; ++head) {
    g[static_cast<std::size_t>(head)] = static_cast<float>(traits_.fixed_log_decay(head));
  }
  fixed_g_ = placer.constant({1, HV}, g);
}

void RecurrenceMixer::place(const std::string& block_prefix, ParameterPlacer& placer) {
  const ModelConfig& c = *config_;
  const std::string prefix = block_prefix + "attn.";
  const Initializer normal = initial::normal(c.initializer_range);
  place_projections(prefix, placer);
  if (c.use_short_conv) {
    placer.align();
    conv_ = {placer.end(), {channels(), c.conv_size}};
    placer.adjacent(prefix + "q_conv1d.weight", {c.key_width(), 1, c.conv_size}, normal);
    placer.adjacent(prefix + "k_conv1d.weight", {c.key_width(), 1, c.conv_size}, normal);
    placer.adjacent(prefix + "v_conv1d.weight", {c.value_width(), 1, c.conv_size}, normal);
  }
  if (learns_decay()) {
    A_log_ = placer.tensor(prefix + "A_log", {c.value_heads()}, log_of_uniform_decay());
    dt_bias_ = placer.tensor(prefix + "dt_bias", {c.value_heads()}, initial::step_bias());
  }
  if (learns_lambda() && !c.lamb_bias) {
    lambda_bias_ = placer.tensor(prefix + "lamb_bias", {1}, initial::constant(-c.initial_lamb_bias));
  }
  out_norm_ = placer.tensor(prefix + "o_norm.weight", {c.value_dim()}, initial::constant(1));
  out_ = placer.tensor(prefix + "o_proj.weight", {c.hidden_size, c.value_width()}, normal);
  place_constants(placer);
}

// Memory --------------------------------------------------------------------------------------------------------------

std::unique_ptr<MixerActivations> RecurrenceMixer::plan_activations(const Device& device, const BatchShape& shape,
                                                                    BumpAllocator& memory) const {
  const ModelConfig& c = *config_;
  const std::int64_t rows = shape.rows();
  const DType dtype = device.activations;
  auto a = std::make_unique<Activations>();
  a->projected = take_rows(memory, rows, projected_, dtype);
  if (shape.keeps_large()) a->qkv = take(memory, {rows, channels()}, dtype);
  for (TensorView* gate : {&a->g, &a->beta, &a->lambda}) *gate = take(memory, {rows, c.value_heads()});
  if (shape.training) {
    const std::int64_t chunks = chunks_of(shape.offsets);
    a->chunk_states = take(memory, {chunks, c.value_heads(), c.head_dim, c.value_dim()}, dtype);
    const std::size_t bytes =
        shape.keeps_large() ? recurrence_saved_bytes(device, rule_, chunks * c.value_heads(), c.value_dim()) : 0;
    a->saved = {memory.take<std::byte>(static_cast<std::int64_t>(bytes)), bytes};
  }
  a->o = take(memory, {rows, c.value_width()}, dtype);
  if (shape.part) {
    a->before = take(memory, {conv_.exists() ? c.conv_size - 1 : 0, channels()});
    a->map = take(memory, {1, c.value_heads(), c.head_dim, c.head_dim});
  }
  return a;
}

std::unique_ptr<MixerScratch> RecurrenceMixer::plan_scratch(const Device& device, const BatchShape& shape,
                                                            BumpAllocator& memory) const {
  const ModelConfig& c = *config_;
  const std::int64_t rows = shape.rows();
  const DType dtype = device.activations;
  auto s = std::make_unique<Scratch>();
  if (!shape.keeps_large()) s->qkv = take(memory, {rows, channels()}, dtype);
  s->head_out = take(memory, {rows, c.value_width()}, dtype);
  if (shape.part) {
    const auto sequences = static_cast<std::int64_t>(shape.offsets.size()) - 1;
    for (TensorView* halo : {&s->rows_own, &s->rows_in}) {
      *halo = take(memory, {conv_.exists() ? c.conv_size - 1 : 0, channels()});
    }
    s->states = take(memory, {sequences, c.value_heads(), c.head_dim, c.value_dim()});
    s->state_own = take(memory, {1, c.value_heads(), c.head_dim, c.value_dim()});
  }
  if (!shape.training) return s;
  s->d_o = take(memory, {rows, c.value_width()}, dtype);
  s->d_projected = take_rows(memory, rows, projected_, dtype);
  s->d_qkv = take(memory, {rows, channels()}, dtype);
  for (TensorView* gate : {&s->dg, &s->dbeta, &s->dlambda}) *gate = take(memory, {rows, c.value_heads()});
  if (!conv_.exists()) s->d_ones = take(memory, {channels(), 1});
  return s;
}

// The recurrence ------------------------------------------------------------------------------------------------------

RecurrenceInputs RecurrenceMixer::inputs(const Batch& batch, const Activations& a, const TensorView& qkv) const {
  const ModelConfig& c = *config_;
  RecurrenceInputs in;
  in.rule = rule_;
  in.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  in.qk_l2norm = true;
  // Sequences of one length are the rows of a batch, others are packed.
  const std::int64_t length = length_of_all(batch);
  in.q = as_heads(qkv, length, 0, c.num_heads, c.head_dim);
  in.k = as_heads(qkv, length, c.key_width(), c.num_heads, c.head_dim);
  in.v = as_heads(qkv, length, 2 * c.key_width(), c.value_heads(), c.value_dim());
  in.g = as_gates(a.g, length);
  in.beta = as_gates(a.beta, length);
  in.lambda = as_gates(a.lambda, length);
  if (length == 0) in.cu_seqlens = batch.offsets;
  return in;
}

RecurrenceForward RecurrenceMixer::forward_args(const LayerContext& context, const Activations& a,
                                                const TensorView& qkv, const TensorView& states) const {
  RecurrenceForward args;
  args.in = inputs(context.batch, a, qkv);
  args.in.h0 = states;
  args.ht = states;
  args.o = as_heads(a.o, length_of_all(context.batch), 0, config_->value_heads(), config_->value_dim());
  args.chunk_states = a.chunk_states;
  args.saved = a.saved;
  if (RowBlocks::fixed()) args.run.segment_tokens = kSegmentTokens;
  return args;
}

RecurrenceBackward RecurrenceMixer::backward_args(const LayerContext& context, const Activations& a,
                                                  const Scratch& s) const {
  const ModelConfig& c = *config_;
  RecurrenceBackward args;
  args.in = inputs(context.batch, a, qkv_of(a, s));
  const std::int64_t length = length_of_all(context.batch);
  args.d_o = as_heads(s.d_o, length, 0, c.value_heads(), c.value_dim());
  args.chunk_states = a.chunk_states;
  args.saved = a.saved;
  args.dq = as_heads(s.d_qkv, length, 0, c.num_heads, c.head_dim);
  args.dk = as_heads(s.d_qkv, length, c.key_width(), c.num_heads, c.head_dim);
  args.dv = as_heads(s.d_qkv, length, 2 * c.key_width(), c.value_heads(), c.value_dim());
  args.dg = as_gates(s.dg, length);
  args.dbeta = as_gates(s.dbeta, length);
  args.dlambda = as_gates(s.dlambda, length);
  return args;
}

RecurrenceStep RecurrenceMixer::step_args(const Activations& a, const MixerState& state) const {
  const RecurrenceInputs in = inputs({}, a, a.qkv);
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
  args.states = state.pools[kRecurrentPool];
  args.recent = recent_of_heads(state.recent);
  args.index = block_views::indices(state.device_slots);
  args.o = without_batch(as_heads(a.o, 0, 0, config_->value_heads(), config_->value_dim()));
  return args;
}

void RecurrenceMixer::run_recurrence(const LayerContext& context, const Activations& a, const Scratch& s,
                                     const MixerState& state) const {
  const Device& device = context.device;
  const TensorView& qkv = qkv_of(a, s);
  if (!state) {
    RecurrenceForward args = forward_args(context, a, qkv, {});
    if (context.batch.part != nullptr) args.in.h0 = carry_states(context, a, s);
    recurrence_forward(device, args, context.workspace);
  } else {
    const AdjacentStates states(device, state.pools[kRecurrentPool], state);
    recurrence_forward(device, forward_args(context, a, qkv, states.view()), context.workspace);
    states.put_back();
  }
}

// Over the cuts of a batch --------------------------------------------------------------------------------------------

RecurrenceInputs RecurrenceMixer::inputs_of_sequence(const LayerContext& context, const Activations& a,
                                                     const TensorView& qkv, std::int64_t sequence) const {
  RecurrenceInputs in = inputs({}, a, qkv);
  const std::span<const std::int64_t> at = context.batch.offsets.subspan(static_cast<std::size_t>(sequence), 2);
  for (ConstTensorView* view : {&in.q, &in.k, &in.v, &in.g, &in.beta, &in.lambda}) {
    *view = narrowed(*view, 1, at[0], at[1] - at[0]);
  }
  return in;
}

TensorView RecurrenceMixer::carry_states(const LayerContext& context, const Activations& a, const Scratch& s) const {
  SequencePart& part = *context.batch.part;
  const bool passes = SequencePart::passes(context.batch);
  if (part.leaves()) {
    const RecurrenceInputs last = inputs_of_sequence(context, a, qkv_of(a, s), context.batch.sequences() - 1);
    recurrence_map(context.device, {.in = last, .m = passes ? a.map : TensorView(), .n = s.state_own},
                   context.workspace);
  }
  const TensorView entry = narrowed(s.states, 0, 0, 1);
  if (part.enters()) clear(context.device, s.states.data, floats_of(s.states).size_bytes());
  part.carry(context.device, SequencePart::Direction::later, floats_of(s.state_own), floats_of(entry), passes, [&] {
    recurrence_map_product(context.device, {.m = a.map, .state = entry, .add = s.state_own, .out = s.state_own},
                           context.workspace);
  });
  return part.enters() ? s.states : TensorView();
}

TensorView RecurrenceMixer::carry_state_gradients(const LayerContext& context, const Activations& a,
                                                  const Scratch& s) const {
  const ModelConfig& c = *config_;
  SequencePart& part = *context.batch.part;
  if (part.enters()) {
    const ConstTensorView d_o = as_heads(s.d_o, 0, 0, c.value_heads(), c.value_dim());
    recurrence_entry_gradient(context.device,
                              {.in = inputs_of_sequence(context, a, qkv_of(a, s), 0),
                               .d_o = narrowed(d_o, 1, 0, context.batch.offsets[1]),
                               .dn = s.state_own},
                              context.workspace);
  }
  const TensorView exit = narrowed(s.states, 0, context.batch.sequences() - 1, 1);
  if (part.leaves()) clear(context.device, s.states.data, floats_of(s.states).size_bytes());
  const auto through = [&] {
    recurrence_map_product(context.device,
                           {.m = a.map, .state = exit, .add = s.state_own, .out = s.state_own, .transposed = true},
                           context.workspace);
  };
  part.carry(context.device, SequencePart::Direction::earlier, floats_of(s.state_own), floats_of(exit),
             SequencePart::passes(context.batch), through);
  return part.leaves() ? s.states : TensorView();
}

// The gates -----------------------------------------------------------------------------------------------------------

GatesForward RecurrenceMixer::gates(const Weights& weights, const Activations& a) const {
  const std::int64_t HV = config_->value_heads();
  GatesForward args;
  args.a = columns(a.projected, a_at_, HV);
  args.b = columns(a.projected, b_at_, HV);
  args.l = columns(a.projected, lambda_at_, HV);
  args.A_log = A_log_.in(weights);
  args.dt_bias = dt_bias_.in(weights);
  if (lambda_bias_.exists()) {
    args.lambda_bias = lambda_bias_.in(weights);
  } else {
    args.constant_lambda_bias = static_cast<float>(-config_->lamb_bias.value_or(0));
  }
  args.g = a.g;
  args.beta = a.beta;
  args.lambda = a.lambda;
  args.step_is_beta = traits_.beta_is_step;
  args.factor = config_->allow_neg_eigval ? 2.0F : 1.0F;
  return args;
}

void RecurrenceMixer::fill_fixed_gates(const LayerContext& context, const Activations& a) const {
  const std::span<const float> constants = context.weights.constants;
  if (fixed_g_.exists()) copy_rows(context.device, {repeated(fixed_g_.in(constants), a.g), a.g});
  if (fixed_lambda_.exists()) {
    copy_rows(context.device, {repeated(fixed_lambda_.in(constants), a.lambda), a.lambda});
  }
}

// Forward and backward ------------------------------------------------------------------------------------------------

ConstTensorView RecurrenceMixer::conv_weight(const Weights& weights) const {
  return conv_.exists() ? conv_.in(weights) : ones_.in(weights.constants);
}

ShortConvForward RecurrenceMixer::convolution(const LayerContext& context, const Activations& a, const TensorView& qkv,
                                              const MixerState& state) const {
  return {.x = columns(a.projected, 0, channels()),
          .weight = conv_weight(context.weights),
          .y = qkv,
          .offsets = context.batch.device_offsets,
          .state = state ? state.pools[kConvPool] : TensorView(),
          .slots = state.device_slots,
          .bias = {},
          .before = SequencePart::enters(context.batch) ? a.before : TensorView(),
          .evicted = evicted_inputs(state.recent)};
}

void RecurrenceMixer::forward(const LayerContext& context, const Forward& args, MixerActivations& activations,
                              MixerScratch& scratch, const MixerState& state) const {
  const auto& a = dynamic_cast<const Activations&>(activations);
  const auto& s = dynamic_cast<const Scratch&>(scratch);
  const Device& device = context.device;
  const Weights& weights = context.weights;
  const LinearForward project{.x = args.norm.y, .w = projections_.matrix_in(weights), .y = a.projected, .add = {}};
  const ShortConvForward conv = convolution(context, a, qkv_of(a, s), state);
  const GatedNormForward out_norm{.x = a.o,
                                  .gate = columns(a.projected, gate_at_, config_->value_width()),
                                  .weight = out_norm_.in(weights),
                                  .y = s.head_out,
                                  .epsilon = static_cast<float>(config_->norm_eps),
                                  .activation = config_->output_gate};
  const LinearForward out{.x = s.head_out, .w = out_.matrix_in(weights), .y = args.out, .add = args.norm.x};
  fill_fixed_gates(context, a);
  if (steps(context.batch, state)) {
    return mixer_step(device,
                      {.norm = args.norm,
                       .project = project,
                       .conv = conv,
                       .gates = gates(weights, a),
                       .recurrence = step_args(a, state),
                       .out_norm = out_norm,
                       .out = out},
                      context.workspace);
  }
  rms_norm_forward(device, args.norm);
  linear_forward(device, project);
  if (SequencePart* part = context.batch.part; part != nullptr) {
    part->carry_rows(device, context.batch, columns(a.projected, 0, channels()), s.rows_own, a.before);
  }
  conv_gates_forward(device, {.conv = conv, .gates = gates(weights, a)}, context.workspace);
  run_recurrence(context, a, s, state);
  gated_norm_forward(device, out_norm);
  linear_forward(device, out);
}

void RecurrenceMixer::backward(const LayerContext& context, const Backward& args, const MixerActivations& activations,
                               MixerScratch& scratch) const {
  const auto& a = dynamic_cast<const Activations&>(activations);
  const auto& s = dynamic_cast<const Scratch&>(scratch);
  const Device& device = context.device;
  const Weights& weights = context.weights;
  const std::int64_t width = config_->value_width();
  // head_out is the gradient of the gated norm's output, and then that output again.
  linear_backward(device,
                  {.x = s.head_out, .w = out_.matrix_in(weights), .dy = args.d_out, .dx = s.head_out, .dw = {}});
  gated_norm_backward(device,
                      {.x = a.o,
                       .gate = columns(a.projected, gate_at_, width),
                       .weight = out_norm_.in(weights),
                       .dy = s.head_out,
                       .dx = s.d_o,
                       .dgate = columns(s.d_projected, gate_at_, width),
                       .dweight = out_norm_.in(args.gradients),
                       .epsilon = static_cast<float>(config_->norm_eps),
                       .y = s.head_out,
                       .activation = config_->output_gate},
                      context.workspace);
  linear_backward(
      device,
      {.x = s.head_out, .w = out_.matrix_in(weights), .dy = args.d_out, .dx = {}, .dw = out_.in(args.gradients)});
  if (!a.qkv) short_conv_forward(device, convolution(context, a, s.qkv, {}), context.workspace);
  RecurrenceBackward recurrence = backward_args(context, a, s);
  if (context.batch.part != nullptr) recurrence.d_ht = carry_state_gradients(context, a, s);
  recurrence_backward(device, recurrence, context.workspace);
  gates_and_conv_backward(context, args.gradients, a, s);
  projections_backward(context, args, s);
}

void RecurrenceMixer::gates_and_conv_backward(const LayerContext& context, std::span<float> gradients,
                                              const Activations& a, const Scratch& s) const {
  const std::int64_t HV = config_->value_heads();
  gates_backward(context.device,
                 {.forward = gates(context.weights, a),
                  .dg = s.dg,
                  .dbeta = s.dbeta,
                  .dlambda = s.dlambda,
                  .da = columns(s.d_projected, a_at_, HV),
                  .db = columns(s.d_projected, b_at_, HV),
                  .dl = columns(s.d_projected, lambda_at_, HV),
                  .dA_log = A_log_.in(gradients),
                  .ddt_bias = dt_bias_.in(gradients),
                  .dlambda_bias = lambda_bias_.in(gradients)},
                 context.workspace);
  short_conv_backward(context.device,
                      {.x = columns(a.projected, 0, channels()),
                       .weight = conv_weight(context.weights),
                       .dy = s.d_qkv,
                       .dx = columns(s.d_projected, 0, channels()),
                       .dweight = conv_.exists() ? conv_.in(gradients) : s.d_ones,
                       .offsets = context.batch.device_offsets,
                       .bias = {},
                       .dbias = {},
                       .before = SequencePart::enters(context.batch) ? a.before : TensorView(),
                       .dbefore = SequencePart::enters(context.batch) ? s.rows_own : TensorView()},
                      context.workspace);
  if (SequencePart* part = context.batch.part; part != nullptr) {
    part->carry_row_gradients(context.device, context.batch, s.rows_own, s.rows_in,
                              columns(s.d_projected, 0, channels()));
  }
}

void RecurrenceMixer::projections_backward(const LayerContext& context, const Backward& args, const Scratch& s) const {
  const Device& device = context.device;
  // The last columns belong to no projection, and other layers' mixers use the same memory.
  if (zeros_.exists()) {
    const TensorView unused = columns(s.d_projected, used_, projected_ - used_);
    copy_rows(device, {repeated(zeros_.in(context.weights.constants), unused), unused});
  }
  linear_backward(device, {.x = args.in,
                           .w = projections_.matrix_in(context.weights),
                           .dy = s.d_projected,
                           .dx = args.d_in,
                           .dw = projections_.in(args.gradients)});
}

}  // namespace qdelta
