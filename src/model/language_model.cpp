#include "model/language_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/lengths_on_device.h"
#include "kernels/overlapped_launches.h"
#include "kernels/product_tuning.h"
#include "kernels/steps.h"
#include "kernels/work_times.h"
#include "model/block_views.h"
#include "model/recent_tokens.h"

namespace qdelta {

LanguageModel::LanguageModel(const ModelConfig& config)
    : layout_((config.check(), config)), storage_(static_cast<std::size_t>(layout_.size) * sizeof(float)) {}

DeviceWeights::DeviceWeights(const LanguageModel& model, const Device& device) : model_(model), device_(device) {
  if (device.gpu == nullptr) {
    require(device.activations == DType::f32, "activations on the CPU are float32");
    return;
  }
  const auto size = static_cast<std::size_t>(model.layout().size);
  values_ = DeviceBuffer(device, size * sizeof(float));
  if (device.activations == DType::bf16) rounded_ = DeviceBuffer(device, size * sizeof(BFloat16));
  const std::vector<float>& constants = model.layout().constants;
  constants_ = DeviceBuffer(device, constants.size() * sizeof(float));
  qdelta::upload(device, constants_.data(), constants.data(), constants_.size());
  upload();
}

Weights DeviceWeights::get() const {
  if (device_.gpu == nullptr) return {model_.parameters(), nullptr, model_.layout().constants};
  return {{reinterpret_cast<const float*>(values_.data()), model_.parameters().size()},
          reinterpret_cast<const BFloat16*>(rounded_.data()),
          {reinterpret_cast<const float*>(constants_.data()), constants_.size() / sizeof(float)}};
}

std::span<float> DeviceWeights::values() {
  return {reinterpret_cast<float*>(values_.data()), values_.size() / sizeof(float)};
}

std::span<BFloat16> DeviceWeights::rounded() {
  return {reinterpret_cast<BFloat16*>(rounded_.data()), rounded_.size() / sizeof(BFloat16)};
}

void DeviceWeights::upload() {
  if (device_.gpu == nullptr) return;
  const std::span<const float> host = model_.parameters();
  qdelta::upload(device_, values_.data(), host.data(), host.size_bytes());
  if (rounded_.size() > 0) {
    const std::vector<BFloat16> narrow(host.begin(), host.end());
    qdelta::upload(device_, rounded_.data(), narrow.data(), narrow.size() * sizeof(BFloat16));
  }
}

void DeviceWeights::download(LanguageModel& model) const {
  if (device_.gpu == nullptr) return;
  qdelta::download(device_, model.parameters().data(), values_.data(), values_.size());
}

using block_views::take;

namespace {

// Rows of logits that are in memory at a time.
std::int64_t head_rows(const Device& device) { return device.gpu == nullptr ? 1024 : 8192; }

TensorView rows_of(const TensorView& matrix, std::int64_t begin, std::int64_t count) {
  TensorView view = matrix;
  view.data += begin * matrix.step(0) * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {count, matrix.extent(1)};
  return view;
}

}  // namespace

// What a training step computes from tokens in device memory, whose number the plan knows.
struct ModelRunner::TrainingPass {
  const std::vector<std::int32_t>* few;   // the rows that have a target, where the others are spared; null: all rows
  std::span<const std::int32_t> targets;  // of these rows, in device memory
  std::span<float> gradients;
  float scale;

  [[nodiscard]] bool is_same_work(const TrainingPass& other) const {
    return few == other.few && targets.data() == other.targets.data() && targets.size() == other.targets.size() &&
           gradients.data() == other.gradients.data() && scale == other.scale;
  }
};

// Views into the runner's memory for one shape. In training every block has activations of its own, or where blocks are
// recomputed only the residual stream on entry to it; otherwise all blocks share. The scratch memory of the mixers,
// of the MLP and of the head are the same: no two of them are in use at a time.
class ModelRunner::ActivationPlan {
 public:
  std::int64_t rows, head_rows;
  std::vector<BlockActivations> blocks;  // of each layer
  std::vector<std::unique_ptr<MixerScratch>> mixer_scratch;
  BlockScratch scratch;
  TensorView inverse_rms, normed, d_stream, picked, head, losses, best;
  // The last training step on this memory, to be repeated.
  struct TrainingGraph {
    TrainingPass pass;
    CapturedGraph captured;
  };
  std::optional<TrainingGraph> training_graph;

  ActivationPlan(const ParameterLayout& layout, const Device& device, const BatchShape& shape, BumpAllocator& memory)
      : rows(shape.rows()),
        head_rows(std::min(rows, qdelta::head_rows(device))),
        scratch(layout.config, device, shape, memory),
        training_(shape.training),
        part_(shape.part) {
    const ModelConfig& c = layout.config;
    if (training_ || part_) offsets_.assign(shape.offsets.begin(), shape.offsets.end());
    const std::size_t layers = layout.blocks.size();
    mixer_scratch.resize(layers);
    overlaid(layers + 2, memory, [&](std::size_t part_of, BumpAllocator& part) {
      if (part_of < layers) {
        mixer_scratch[part_of] = layout.blocks[part_of].mixer().plan_scratch(device, shape, part);
      } else if (part_of == layers) {
        scratch.mlp = MlpScratch(c, device, shape, part);
      } else {
        head = take(part, {head_rows, c.vocab_size}, training_ ? device.activations : DType::f32);
      }
    });
    const std::size_t streams = training_ && shape.recompute == Recompute::all ? layers + 1 : 1;
    for (std::size_t i = 0; i < streams; ++i) stream_.push_back(take(memory, {rows, c.hidden_size}));
    blocks.resize(layers);
    const auto plan_block = [&](std::size_t layer, BumpAllocator& part) {
      blocks[layer] = layout.blocks[layer].plan_activations(device, shape, part);
    };
    if (training_ && shape.recompute != Recompute::all) {
      for (std::size_t layer = 0; layer < blocks.size(); ++layer) plan_block(layer, memory);
    } else {
      overlaid(blocks.size(), memory, plan_block);
    }
    inverse_rms = take(memory, {rows});
    normed = take(memory, {rows, c.hidden_size}, device.activations);
    if (training_) d_stream = take(memory, {rows, c.hidden_size});
    // Rows of `normed` side by side, where not all go through the head; one more, of zeros, for the way back.
    picked = take(memory, {rows + 1, c.hidden_size}, device.activations);
    losses = take(memory, {rows});
    best = take(memory, {rows}, DType::i32);
  }
  // Whether a batch of this shape can use it. Where nothing is saved only the number of rows matters.
  [[nodiscard]] bool fits(const BatchShape& shape) const {
    return rows == shape.rows() && training_ == shape.training && part_ == shape.part &&
           (offsets_.empty() ||
            std::equal(offsets_.begin(), offsets_.end(), shape.offsets.begin(), shape.offsets.end()));
  }
  // The residual stream on entry to a layer, and after the last; the same memory unless blocks are recomputed.
  TensorView& stream_at(std::size_t layer) { return stream_[stream_.size() == 1 ? 0 : layer]; }
  [[nodiscard]] std::span<float> losses_of(std::int64_t begin, std::int64_t count) const {
    return {reinterpret_cast<float*>(losses.data) + begin, static_cast<std::size_t>(count)};
  }
  [[nodiscard]] std::span<std::int32_t> best_of(std::int64_t begin, std::int64_t count) const {
    return {reinterpret_cast<std::int32_t*>(best.data) + begin, static_cast<std::size_t>(count)};
  }

 private:
  // One region for several, as large as the largest needs; each lays its own views into it.
  template <class Plan>
  static void overlaid(std::size_t count, BumpAllocator& memory, const Plan& plan) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      BumpAllocator counter(nullptr);
      plan(i, counter);
      bytes = std::max(bytes, counter.used());
    }
    auto* const region = memory.take<std::byte>(static_cast<std::int64_t>(bytes));
    for (std::size_t i = 0; i < count; ++i) {
      BumpAllocator part(region);
      plan(i, part);
    }
  }

  bool training_, part_;
  std::vector<std::int64_t> offsets_;  // where they matter
  std::vector<TensorView> stream_;
};

ModelRunner::ModelRunner(const LanguageModel& model, const Device& device, Recompute recompute)
    : ModelRunner(model, std::make_shared<DeviceWeights>(model, device), device, recompute) {}
ModelRunner::ModelRunner(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, const Device& device,
                         Recompute recompute)
    : model_(model),
      weights_(std::move(weights)),
      device_(device),
      recompute_(recompute),
      workspace_(device),
      log_probabilities_(device) {}
ModelRunner::~ModelRunner() = default;

std::size_t ModelRunner::training_bytes(const ParameterLayout& layout, const Device& device, std::int64_t batch,
                                        std::int64_t tokens, Recompute recompute) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t n = 0; n <= batch; ++n) offsets.push_back(n * tokens);
  BumpAllocator counter(nullptr);
  (void)ActivationPlan(layout, device, {.offsets = offsets, .training = true, .recompute = recompute}, counter);
  return counter.used();
}

MixerState ModelRunner::state_of_layer(const StateSlots& states, std::size_t layer) {
  if (states.states == nullptr) return {};
  return {.pools = states.states->layer(layer),
          .slots = states.slots,
          .device_slots = device_slots_,
          .recent = states.recent != nullptr ? states.recent->layer(layer) : TensorView(),
          .copies = &state_copies_};
}

LayerContext ModelRunner::context(const Weights& weights) {
  return {.device = device_, .weights = weights, .batch = batch_, .workspace = workspace_};
}

void ModelRunner::plan(const ModelInput& input, bool training, const StateSlots& states) {
  require(!input.ids.empty(), "there are no tokens to run");
  require(input.offsets.size() > 1 && input.offsets.front() == 0 &&
              input.offsets.back() == static_cast<std::int64_t>(input.ids.size()),
          "the offsets of the sequences do not span the {} tokens", input.ids.size());
  const bool part = input.part != nullptr;
  require(!part || states.states == nullptr, "a part of a batch has no states of its own");
  const BatchShape shape{.offsets = input.offsets, .training = training, .recompute = recompute_, .part = part};
  if (plan_ == nullptr || !plan_->fits(shape)) {
    BumpAllocator counter(nullptr);
    (void)ActivationPlan(model_.layout(), device_, shape, counter);
    if (plan_ != nullptr && plan_->training_graph) workspace_.forget_graphs();
    plan_.reset();  // it points into memory that may not come back
    memory_.grow(device_, counter.used());
    BumpAllocator memory(memory_.data());
    plan_ = std::make_unique<ActivationPlan>(model_.layout(), device_, shape, memory);
  }
  batch_ = {.offsets = input.offsets, .device_offsets = offsets_(device_, input.offsets), .part = input.part};
  device_ids_ = ids_(device_, input.ids);
  device_slots_ = slots_(device_, states.slots);
}

void ModelRunner::run_blocks(const ModelInput& input, bool training, const StateSlots& states) {
  plan(input, training, states);
  run_planned(device_ids_, states);
  rms_norm_forward(device_, final_norm(weights_->get()));
}

void ModelRunner::observe(const ModelInput& input, const BlockObserver& observer, const StateSlots& states) {
  plan(input, false, states);
  run_planned(device_ids_, states, observer);
}

void ModelRunner::run_planned(std::span<const std::int32_t> device_ids, const StateSlots& states,
                              const BlockObserver& observer) {
  const Weights weights = weights_->get();
  embedding_forward(device_, {device_ids, model_.layout().embeddings.matrix_in(weights), plan_->stream_at(0)});
  for (std::size_t i = 0; i < model_.blocks().size(); ++i) {
    BlockActivations& a = plan_->blocks[i];
    model_.blocks()[i].forward(context(weights), a, plan_->scratch, *plan_->mixer_scratch[i], plan_->stream_at(i),
                               plan_->stream_at(i + 1), state_of_layer(states, i));
    if (observer) observer(i, a);
  }
}

RmsNormForward ModelRunner::final_norm(const Weights& weights) const {
  return {plan_->stream_at(model_.blocks().size()), model_.layout().final_norm.in(weights), plan_->normed,
          plan_->inverse_rms, static_cast<float>(model_.config().norm_eps)};
}

void ModelRunner::logits(const ModelInput& input, const TensorView& out, const StateSlots& states) {
  run_blocks(input, false, states);
  write_logits(plan_->normed, out);
}

void ModelRunner::last_logits(const ModelInput& input, const TensorView& out, const StateSlots& states) {
  run_blocks(input, false, states);
  std::vector<std::int32_t> rows;
  for (std::size_t n = 0; n + 1 < input.offsets.size(); ++n) {
    require(input.offsets[n + 1] > input.offsets[n], "sequence {} has no tokens", n);
    rows.push_back(static_cast<std::int32_t>(input.offsets[n + 1] - 1));
  }
  write_logits(gathered(rows), out);
}

TensorView ModelRunner::gathered(std::span<const std::int32_t> rows) {
  return gathered_on_device(picked_rows_(device_, rows));
}

TensorView ModelRunner::gathered_on_device(std::span<const std::int32_t> device_rows) {
  const TensorView together = rows_of(plan_->picked, 0, static_cast<std::int64_t>(device_rows.size()));
  embedding_forward(device_, {device_rows, plan_->normed, together});
  return together;
}

void ModelRunner::prepare_steps(const StateSlots& states) {
  const std::vector<std::int32_t> ids(states.slots.size());
  step_offsets_.resize(ids.size() + 1);
  for (std::size_t n = 0; n < step_offsets_.size(); ++n) step_offsets_[n] = static_cast<std::int64_t>(n);
  plan({ids, step_offsets_}, false, states);
}

TensorView ModelRunner::step_logits(std::span<const std::int32_t> device_ids, const StateSlots& states) {
  require(plan_ != nullptr && plan_->rows <= plan_->head_rows, "too many rows for one step");
  const OverlappedLaunches overlapped;  // after the embedding, which starts when all before it is done
  run_planned(device_ids, states);
  const Weights weights = weights_->get();
  RmsNormForward norm = final_norm(weights);
  norm.inverse_rms = {};  // the backward's
  head_step(device_, {.norm = norm, .head = {plan_->normed, model_.layout().head.matrix_in(weights), plan_->head, {}}});
  return plan_->head;
}

void ModelRunner::prepare_prompt(std::span<const std::int32_t> ids, std::int64_t rows, const StateSlots& states) {
  require(device_.gpu != nullptr, "prompts are prepared for a GPU");
  const auto length = static_cast<std::int64_t>(ids.size());
  require(ceil_div(length, kDefaultChunk) * kDefaultChunk == rows && states.slots.size() == 1,
          "{} tokens of {} sequences do not fill the chunks of {}", length, states.slots.size(), rows);
  std::vector<std::int32_t> padded(ids.begin(), ids.end());
  padded.resize(static_cast<std::size_t>(rows));
  step_offsets_ = {0, rows};
  plan({padded, step_offsets_}, false, states);
  const std::vector<std::int64_t> offsets = {0, length};
  batch_.device_offsets = offsets_(device_, offsets);
  const auto last = static_cast<std::int32_t>(length - 1);
  device_last_ = picked_rows_(device_, {&last, 1});
}

TensorView ModelRunner::prompt_logits(const StateSlots& states) {
  const LengthsOnDevice lengths(batch_.device_offsets);
  const OverlappedLaunches overlapped;  // as in a step
  run_planned(device_ids_, states);
  rms_norm_forward(device_, final_norm(weights_->get()));
  return logits_of(gathered_on_device(device_last_));
}

// A block of rows at a time through the head, and out to the host.
void ModelRunner::write_logits(const TensorView& normed, const TensorView& out) {
  const ConstTensorView head = model_.layout().head.matrix_in(weights_->get());
  for (std::int64_t begin = 0; begin < normed.extent(0); begin += plan_->head_rows) {
    const std::int64_t count = std::min(plan_->head_rows, normed.extent(0) - begin);
    const TensorView block = rows_of(plan_->head, 0, count);
    linear_forward(device_, {rows_of(normed, begin, count), head, block, {}});
    download(device_, rows_of(out, begin, count).data, block.data,
             static_cast<std::size_t>(block.shape.elements()) * sizeof(float));
  }
}

namespace {

// The rows that have a target, where they are so few that the head had better be spared the others; else none.
std::optional<std::vector<std::int32_t>> few_targets(std::span<const std::int32_t> targets) {
  std::vector<std::int32_t> rows;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] >= 0) rows.push_back(static_cast<std::int32_t>(i));
  }
  if (2 * rows.size() > targets.size()) return std::nullopt;
  return rows;
}

std::vector<std::int32_t> values_at(std::span<const std::int32_t> values, std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = values[static_cast<std::size_t>(rows[i])];
  return out;
}

// to[rows[i]] = from[i], and zeros between.
template <class T>
void spread(const std::vector<T>& from, std::span<const std::int32_t> rows, std::span<T> to) {
  if (to.empty()) return;
  std::fill(to.begin(), to.end(), T{});
  for (std::size_t i = 0; i < rows.size(); ++i) to[static_cast<std::size_t>(rows[i])] = from[i];
}

}  // namespace

void ModelRunner::losses(const ModelInput& input, std::span<const std::int32_t> targets, std::span<float> out,
                         std::span<std::int32_t> best, const StateSlots& states) {
  if (const auto few = few_targets(targets)) {
    run_blocks(input, false, states);
    std::vector<float> losses(few->size());
    std::vector<std::int32_t> guesses(best.empty() ? 0 : few->size());
    losses_of_rows(gathered(*few), values_at(targets, *few), losses, guesses);
    spread(losses, *few, out);
    spread(guesses, *few, best);
    return;
  }
  run_blocks(input, false, states);
  losses_of_rows(plan_->normed, targets, out, best);
}

void ModelRunner::losses_of_rows(const TensorView& rows, std::span<const std::int32_t> targets, std::span<float> out,
                                 std::span<std::int32_t> best) {
  const ConstTensorView head = model_.layout().head.matrix_in(weights_->get());
  const std::span<const std::int32_t> device_targets = targets_(device_, targets);
  for (std::int64_t begin = 0; begin < rows.extent(0); begin += plan_->head_rows) {
    const std::int64_t count = std::min(plan_->head_rows, rows.extent(0) - begin);
    const TensorView block = rows_of(plan_->head, 0, count);
    linear_forward(device_, {rows_of(rows, begin, count), head, block, {}});
    CrossEntropy args;
    args.logits = block;
    args.targets = device_targets.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
    args.loss = plan_->losses_of(begin, count);
    if (!best.empty()) args.best = plan_->best_of(begin, count);
    cross_entropy(device_, args);
  }
  download(device_, out.data(), plan_->losses.data, out.size_bytes());
  download(device_, best.data(), plan_->best.data, best.size_bytes());
}

void ModelRunner::next_tokens(const ModelInput& input, std::span<const std::int32_t> rows,
                              const TokenLogProbabilities& out, const StateSlots& states) {
  const auto wanted = static_cast<std::int64_t>(rows.size());
  out.check(wanted, model_.config().vocab_size);
  run_blocks(input, false, states);
  for (std::int64_t begin = 0; begin < wanted; begin += plan_->head_rows) {
    const std::int64_t count = std::min(plan_->head_rows, wanted - begin);
    const auto part = rows.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
    log_probabilities_.compute(logits_at(part), out.part(begin, count));
  }
}

TensorView ModelRunner::logits_at(std::span<const std::int32_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  require(plan_ != nullptr && count <= plan_->head_rows, "too many rows for one product");
  return logits_of(gathered(rows));
}

TensorView ModelRunner::logits_of(const TensorView& normed_rows) {
  const TensorView block = rows_of(plan_->head, 0, normed_rows.extent(0));
  linear_forward(device_, {normed_rows, model_.layout().head.matrix_in(weights_->get()), block, {}});
  return block;
}

double ModelRunner::loss_and_gradients(const ModelInput& input, std::span<const std::int32_t> targets,
                                       std::span<float> gradients, std::int64_t count,
                                       const GradientObserver& observer) {
  require(targets.size() == input.ids.size(), "{} targets for {} tokens", targets.size(), input.ids.size());
  require(static_cast<std::int64_t>(gradients.size()) == model_.layout().size,
          "the gradients have another size than the model");
  const auto few = few_targets(targets);
  const std::int64_t counted =
      count > 0 ? count : std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; });
  const std::vector<std::int32_t> targets_of_few = few ? values_at(targets, *few) : std::vector<std::int32_t>();
  plan(input, true, {});
  const TrainingPass pass{.few = few ? &*few : nullptr,
                          .targets = targets_(device_, few ? targets_of_few : targets),
                          .gradients = gradients,
                          .scale = counted > 0 ? 1.0F / static_cast<float>(counted) : 0.0F};
  // Events of a graph have no times, and what is told or asked of the host between launches is not part of one.
  if (few || observer || input.part != nullptr || WorkTimes::running()) {
    forward_and_backward(pass, observer);
  } else {
    training_graph(pass).replay();
  }
  return sum_of_values(device_, plan_->losses_of(0, static_cast<std::int64_t>(pass.targets.size())), workspace_) *
         pass.scale;
}

CapturedGraph& ModelRunner::training_graph(const TrainingPass& pass) {
  auto& graph = plan_->training_graph;
  if (!graph || !graph->pass.is_same_work(pass)) {
    const auto work = [this, pass] { forward_and_backward(pass, {}); };
    graph = ActivationPlan::TrainingGraph{.pass = pass, .captured = CapturedGraph(device_, work)};
  }
  return graph->captured;
}

void ModelRunner::forward_and_backward(const TrainingPass& pass, const GradientObserver& observer) {
  const ProductTuning tuning;
  run_planned(device_ids_, {});
  rms_norm_forward(device_, final_norm(weights_->get()));
  // The gradient of a few rows takes their place; that of all is kept apart, as the norm's backward needs its result.
  const TensorView rows = pass.few != nullptr ? gathered(*pass.few) : plan_->normed;
  head_gradients(pass, rows, pass.few != nullptr ? rows : plan_->scratch.d_normed);
  if (pass.few != nullptr) spread_gradients(*pass.few);
  backward(pass.gradients, observer);
}

// A block of rows at a time, so that the logits of all tokens never exist at once.
void ModelRunner::head_gradients(const TrainingPass& pass, const TensorView& rows, const TensorView& d_rows) {
  const ProductTuning tuning(pass.few == nullptr);  // how many rows are a few differs from batch to batch
  const ConstTensorView head = model_.layout().head.matrix_in(weights_->get());
  const TensorView d_head = model_.layout().head.in(pass.gradients);
  for (std::int64_t begin = 0; begin < rows.extent(0); begin += plan_->head_rows) {
    const std::int64_t size = std::min(plan_->head_rows, rows.extent(0) - begin);
    const TensorView block = rows_of(plan_->head, 0, size);
    const TensorView normed = rows_of(rows, begin, size);
    linear_forward(device_, {normed, head, block, {}});
    CrossEntropy args;
    args.logits = block;
    args.targets = pass.targets.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    args.loss = plan_->losses_of(begin, size);
    args.gradient = true;
    args.scale = pass.scale;
    cross_entropy(device_, args);
    linear_backward(device_, {normed, head, block, {}, d_head, false});
    linear_backward(device_, {normed, head, block, rows_of(d_rows, begin, size), {}, false});
  }
}

// Back to where they came from; all others have no gradient, which is the row after them.
void ModelRunner::spread_gradients(std::span<const std::int32_t> rows) {
  const auto none = static_cast<std::int64_t>(rows.size());
  const TensorView zeros = rows_of(plan_->picked, none, 1);
  clear(device_, zeros.data, static_cast<std::size_t>(zeros.extent(1)) * size_of(zeros.dtype));
  std::vector<std::int32_t> origin(static_cast<std::size_t>(plan_->rows), static_cast<std::int32_t>(none));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    origin[static_cast<std::size_t>(rows[i])] = static_cast<std::int32_t>(i);
  }
  embedding_forward(device_,
                    {picked_rows_(device_, origin), rows_of(plan_->picked, 0, none + 1), plan_->scratch.d_normed});
}

// Through the final norm, the blocks and the embedding.
void ModelRunner::backward(std::span<float> gradients, const GradientObserver& observer) {
  const ParameterLayout& layout = model_.layout();
  const Weights weights = weights_->get();
  const TensorView& dx = plan_->d_stream;
  clear(device_, dx.data, static_cast<std::size_t>(dx.shape.elements()) * sizeof(float));
  rms_norm_backward(device_,
                    {plan_->normed, layout.final_norm.in(weights), plan_->inverse_rms, plan_->scratch.d_normed, dx,
                     layout.final_norm.in(gradients), plan_->scratch.d_stream},
                    workspace_);
  // The head lies behind the final norm, or in front of everything, where it is the embedding.
  if (observer) observer(layout.final_norm.offset);
  for (std::size_t i = model_.blocks().size(); i-- > 0;) {
    BlockActivations& a = plan_->blocks[i];
    if (recompute_ == Recompute::all) {
      // The forward again; its output goes where the later blocks' input was.
      model_.blocks()[i].forward(context(weights), a, plan_->scratch, *plan_->mixer_scratch[i], plan_->stream_at(i),
                                 plan_->stream_at(i + 1), {});
    }
    model_.blocks()[i].backward(context(weights), gradients, a, plan_->scratch, *plan_->mixer_scratch[i], dx);
    if (observer) observer(layout.block_begins[i]);
  }
  embedding_backward(device_, {device_ids_, dx, layout.embeddings.in(gradients)}, workspace_);
  if (observer) observer(0);
}

}  // namespace qdelta
