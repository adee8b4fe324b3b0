#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace qdelta {
namespace {

std::size_t bytes_of(std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); }

template <class Buffer>
std::span<float> floats_in(Buffer& buffer, std::int64_t begin, std::int64_t count) {
  return {reinterpret_cast<float*>(buffer.data()) + begin, static_cast<std::size_t>(count)};
}

}  // namespace

void OptimizerOptions::check() const {
  const auto fraction = [](const char* name, float value) {
    require(value >= 0 && value < 1, "{} of AdamW is {}, expected at least 0 and less than 1", name, value);
  };
  fraction("beta1", beta1);
  fraction("beta2", beta2);
  require(std::isfinite(epsilon) && epsilon > 0, "eps of AdamW is {}, expected more than 0", epsilon);
  require(std::isfinite(weight_decay) && weight_decay >= 0, "the weight decay is {}, expected 0 or more", weight_decay);
  require(average_decay >= 0 && average_decay < 1,
          "the decay of the average (ema) is {}, expected at least 0 (none) and less than 1", average_decay);
  require(clip >= 0, "the largest gradient norm is {}, expected 0 (no limit) or more", clip);
}

OptimizerState::OptimizerState(std::int64_t parameters, bool with_average)
    : memory(bytes_of((with_average ? 3 : 2) * parameters)), size(parameters), has_average(with_average) {}

std::span<float> OptimizerState::m() { return floats_in(memory, 0, size); }
std::span<float> OptimizerState::v() { return floats_in(memory, size, size); }
std::span<float> OptimizerState::average() {
  return has_average ? floats_in(memory, 2 * size, size) : std::span<float>();
}

Trainer::Trainer(LanguageModel& model, const OptimizerOptions& options, const Device& device, Recompute recompute,
                 Communicator* communicator, std::int64_t sequence_parallel)
    : model_(model),
      options_(options),
      device_(device),
      weights_(std::make_shared<DeviceWeights>(model, device)),
      runner_(model, weights_, device, recompute),
      evaluation_runner_(model, weights_, device, Recompute::none),
      gradients_(device, bytes_of(model.layout().size)),
      workspace_(device),
      communicator_(communicator),
      ranks_(communicator, sequence_parallel) {
  if (ranks_.parts > 1) sequence_ = std::make_unique<SequenceRanks>(*communicator, ranks_);
  const std::vector<std::uint8_t> decays = decay_groups(model.layout(), options.decayed);
  decays_ = DeviceBuffer(device, decays.size());
  qdelta::upload(device, decays_.data(), decays.data(), decays.size());
  synchronize(device);
  if (communicator != nullptr) {
    sharded_ =
        std::make_unique<ShardedOptimizer>(model.layout().size, device, *communicator, options.average_decay > 0);
    return;
  }
  state_ = OptimizerState(model.layout().size, options.average_decay > 0);
  if (device.gpu != nullptr) moments_ = DeviceBuffer(device, state_.memory.size());
}

void Trainer::hold_state() {
  if (sharded_ == nullptr || !first_rank()) return;
  const std::int64_t updates = state_.updates;
  state_ = OptimizerState(model_.layout().size, options_.average_decay > 0);
  state_.updates = updates;
}

void Trainer::release_state() {
  if (sharded_ == nullptr) return;
  const std::int64_t updates = state_.updates;
  state_ = OptimizerState();
  state_.updates = updates;
}

std::size_t Trainer::optimizer_bytes() const {
  const std::int64_t moments = sharded_ == nullptr ? model_.layout().size : sharded_->shards().own;
  return bytes_of((options_.average_decay > 0 ? 3 : 2) * moments);
}

void Trainer::download() {
  weights_->download(model_);
  if (sharded_ != nullptr) {
    sharded_->gather(state_.m(), state_.v(), state_.average());
    return;
  }
  qdelta::download(device_, state_.memory.data(), moments_.data(), moments_.size());
}

void Trainer::upload() {
  if (sharded_ != nullptr) {
    communicator_->broadcast(Device{}, std::as_writable_bytes(model_.parameters()), 0);
    communicator_->broadcast(Device{}, std::as_writable_bytes(std::span(&state_.updates, 1)), 0);
    sharded_->scatter(state_.m(), state_.v(), state_.average());
  }
  weights_->upload();
  qdelta::upload(device_, moments_.data(), state_.memory.data(), moments_.size());
}

template <class Work>
void Trainer::with_own_part(const TokenBatch& batch, const Work& work) {
  if (sequence_ == nullptr) return work(batch);
  work(sequence_->take(batch));
}

double Trainer::loss_and_gradients(std::span<const TokenBatch> micro_batches, std::int64_t loss_tokens) {
  const std::span<float> gradients = floats_in(gradients_, 0, model_.layout().size);
  clear(device_, gradients_.data(), gradients_.size());
  GradientObserver observer;
  if (sharded_ != nullptr) {
    observer = [&](std::int64_t begin) { sharded_->gradients_complete(gradients, begin); };
  }
  if (micro_batches.empty() && observer) observer(0);
  double loss = 0;
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    const bool last = i + 1 == micro_batches.size();
    with_own_part(micro_batches[i], [&](const TokenBatch& batch) {
      loss += runner_.loss_and_gradients({batch.ids, batch.offsets, sequence_.get()}, batch.targets, gradients,
                                         loss_tokens, last ? observer : GradientObserver());
    });
  }
  return loss;
}

double Trainer::update(float learning_rate) {
  const std::int64_t size = model_.layout().size;
  const bool on_gpu = device_.gpu != nullptr;
  AdamW args;
  args.parameters = on_gpu ? weights_->values() : model_.parameters();
  args.rounded = weights_->rounded();
  args.decays = {reinterpret_cast<const std::uint8_t*>(decays_.data()), decays_.size()};
  args.learning_rate = learning_rate;
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.epsilon = options_.epsilon;
  args.weight_decay = options_.weight_decay;
  args.step = state_.updates + 1;
  const std::span<float> gradients = floats_in(gradients_, 0, size);
  if (sharded_ != nullptr) return sharded_->update(args, gradients, options_.clip, workspace_);
  args.gradients = gradients;
  args.m = on_gpu ? floats_in(moments_, 0, size) : state_.m();
  args.v = on_gpu ? floats_in(moments_, size, size) : state_.v();
  return clipped_adamw(device_, args, options_.clip, workspace_);
}

void Trainer::start_average() {
  const std::span<float> average = state_.average();
  if (!average.empty()) std::copy(model_.parameters().begin(), model_.parameters().end(), average.begin());
}

void Trainer::update_average() {
  const auto updates = static_cast<float>(state_.updates);
  const float decay = std::min(options_.average_decay, (1 + updates) / (10 + updates));
  const std::span<float> parameters = device_.gpu != nullptr ? weights_->values() : model_.parameters();
  if (sharded_ != nullptr) return sharded_->update_average(parameters, decay);
  const std::int64_t size = model_.layout().size;
  clear(device_, gradients_.data(), gradients_.size());
  adamw(device_, averaging(parameters, device_.gpu != nullptr ? floats_in(moments_, 2 * size, size) : state_.average(),
                           floats_in(gradients_, 0, size), decay));
}

// Parameters and their average change places, on all ranks.
void Trainer::exchange_average() {
  const std::span<float> average = state_.average();
  std::swap_ranges(average.begin(), average.end(), model_.parameters().begin());
  if (sharded_ != nullptr) communicator_->broadcast(Device{}, std::as_writable_bytes(model_.parameters()), 0);
  weights_->upload();
}

EvaluationResult Trainer::evaluate_average(std::span<const TokenBatch> batches) {
  require(options_.average_decay > 0, "there is no average to evaluate");
  hold_state();
  download();
  exchange_average();
  const EvaluationResult result = evaluate(batches);
  exchange_average();
  release_state();
  return result;
}

StepResult Trainer::step(std::span<const TokenBatch> micro_batches, float learning_rate) {
  std::array<std::int64_t, 2> counts{};  // tokens, and those with a target
  for (const TokenBatch& micro_batch : micro_batches) {
    if (ranks_.part() > 0) break;  // the first of a group counts for it
    counts[0] += static_cast<std::int64_t>(micro_batch.ids.size());
    counts[1] += micro_batch.loss_tokens;
  }
  if (communicator_ != nullptr) communicator_->all_reduce(Device{}, counts, Reduction::sum);
  StepResult result;
  result.tokens = counts[0];
  result.loss_tokens = counts[1];
  result.loss = loss_and_gradients(micro_batches, result.loss_tokens);
  result.gradient_norm = update(learning_rate);
  if (communicator_ != nullptr) communicator_->all_reduce(Device{}, std::span(&result.loss, 1), Reduction::sum);
  result.skipped = !std::isfinite(result.gradient_norm);
  if (result.skipped) return result;
  ++state_.updates;
  if (options_.average_decay > 0) update_average();
  return result;
}

EvaluationResult Trainer::evaluate(std::span<const TokenBatch> batches) {
  EvaluationResult result;
  double loss = 0;
  std::array<std::int64_t, 2> counts{};  // tokens with a target, and those of them that it would guess
  std::vector<float> losses;
  std::vector<std::int32_t> best;
  const auto groups = static_cast<std::size_t>(ranks_.groups());
  for (auto n = static_cast<std::size_t>(ranks_.group()); n < batches.size(); n += groups) {
    with_own_part(batches[n], [&](const TokenBatch& batch) {
      losses.resize(batch.ids.size());
      best.resize(batch.ids.size());
      evaluation_runner_.losses({batch.ids, batch.offsets, sequence_.get()}, batch.targets, losses, best);
      for (std::size_t i = 0; i < batch.ids.size(); ++i) {
        loss += losses[i];
        counts[1] += batch.targets[i] >= 0 && best[i] == batch.targets[i] ? 1 : 0;
      }
      counts[0] += batch.loss_tokens;
    });
  }
  if (communicator_ != nullptr) {
    communicator_->all_reduce(Device{}, std::span(&loss, 1), Reduction::sum);
    communicator_->all_reduce(Device{}, counts, Reduction::sum);
  }
  result.loss_tokens = counts[0];
  if (result.loss_tokens > 0) {
    result.loss = loss / static_cast<double>(result.loss_tokens);
    result.accuracy = static_cast<double>(counts[1]) / static_cast<double>(result.loss_tokens);
  }
  return result;
}

}  // namespace qdelta
