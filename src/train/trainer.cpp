#include "train/trainer.h"

#include <algorithm>
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
  require(clip >= 0, "the largest gradient norm is {}, expected 0 (no limit) or more", clip);
}

OptimizerState::OptimizerState(std::int64_t parameters) : memory(bytes_of(2 * parameters)), size(parameters) {}

std::span<float> OptimizerState::m() { return floats_in(memory, 0, size); }
std::span<float> OptimizerState::v() { return floats_in(memory, size, size); }

Trainer::Trainer(LanguageModel& model, const OptimizerOptions& options, const Device& device, bool recompute)
    : model_(model),
      options_(options),
      device_(device),
      weights_(std::make_shared<DeviceWeights>(model, device)),
      runner_(model, weights_, device, recompute),
      evaluation_runner_(model, weights_, device, false),
      state_(model.layout().size),
      gradients_(device, bytes_of(model.layout().size)),
      workspace_(device) {
  if (device.gpu != nullptr) moments_ = DeviceBuffer(device, state_.memory.size());
}

void Trainer::download() {
  weights_->download(model_);
  qdelta::download(device_, state_.memory.data(), moments_.data(), moments_.size());
}

void Trainer::upload() {
  weights_->upload();
  qdelta::upload(device_, moments_.data(), state_.memory.data(), moments_.size());
}

StepResult Trainer::step(std::span<const TokenBatch> micro_batches, float learning_rate) {
  const std::int64_t size = model_.layout().size;
  const std::span<float> gradients = floats_in(gradients_, 0, size);
  clear(device_, gradients_.data(), gradients_.size());
  std::int64_t loss_tokens = 0;
  for (const TokenBatch& micro_batch : micro_batches) loss_tokens += micro_batch.loss_tokens;

  StepResult result;
  for (const TokenBatch& micro_batch : micro_batches) {
    result.loss +=
        runner_.loss_and_gradients({micro_batch.ids, micro_batch.offsets}, micro_batch.targets, gradients, loss_tokens);
    result.tokens += static_cast<std::int64_t>(micro_batch.ids.size());
    result.loss_tokens += micro_batch.loss_tokens;
  }
  AdamW args;
  const bool on_gpu = device_.gpu != nullptr;
  args.parameters = on_gpu ? weights_->values() : model_.parameters();
  args.rounded = weights_->rounded();
  args.gradients = gradients;
  args.m = on_gpu ? floats_in(moments_, 0, size) : state_.m();
  args.v = on_gpu ? floats_in(moments_, size, size) : state_.v();
  args.learning_rate = learning_rate;
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.epsilon = options_.epsilon;
  args.weight_decay = options_.weight_decay;
  args.step = state_.updates + 1;
  result.gradient_norm = clipped_adamw(device_, args, options_.clip, workspace_);
  result.skipped = !std::isfinite(result.gradient_norm);
  if (!result.skipped) ++state_.updates;
  return result;
}

EvaluationResult Trainer::evaluate(std::span<const TokenBatch> batches) {
  EvaluationResult result;
  double loss = 0;
  std::int64_t right = 0;
  std::vector<float> losses;
  std::vector<std::int32_t> best;
  for (const TokenBatch& batch : batches) {
    losses.resize(batch.ids.size());
    best.resize(batch.ids.size());
    evaluation_runner_.losses({batch.ids, batch.offsets}, batch.targets, losses, best);
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
      loss += losses[i];
      right += batch.targets[i] >= 0 && best[i] == batch.targets[i] ? 1 : 0;
    }
    result.loss_tokens += batch.loss_tokens;
  }
  if (result.loss_tokens > 0) {
    result.loss = loss / static_cast<double>(result.loss_tokens);
    result.accuracy = static_cast<double>(right) / static_cast<double>(result.loss_tokens);
  }
  return result;
}

}  // namespace qdelta
