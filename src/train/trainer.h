// One optimizer step: gradients accumulated over micro-batches, clipping, AdamW.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/memory.h"
#include "data/batches.h"
#include "model/language_model.h"

namespace qdelta {

struct OptimizerOptions {
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-15F;
  float weight_decay = 0.1F;
  float clip = 1.0F;  // largest gradient norm; 0: no clipping

  // Throws Error(invalid_argument) that names the value which makes no sense.
  void check() const;
};

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;  // before clipping
  std::int64_t tokens = 0;
  std::int64_t loss_tokens = 0;  // of them, with a target
  bool skipped = false;          // the norm was not finite, and the parameters were left alone
};

struct EvaluationResult {
  double loss = 0;
  double accuracy = 0;  // share of the loss tokens whose most likely token is the target
  std::int64_t loss_tokens = 0;
};

// What a step changes besides the parameters.
struct OptimizerState {
  AlignedBuffer memory;      // m, then v
  std::int64_t updates = 0;  // of the parameters; a skipped step is none
  std::int64_t size = 0;

  explicit OptimizerState(std::int64_t parameters);
  [[nodiscard]] std::span<float> m();
  [[nodiscard]] std::span<float> v();
};

class Trainer {
 public:
  Trainer(LanguageModel& model, const OptimizerOptions& options, const Device& device, bool recompute);

  // The mean loss over the loss tokens of all micro-batches, and one update.
  StepResult step(std::span<const TokenBatch> micro_batches, float learning_rate);
  EvaluationResult evaluate(std::span<const TokenBatch> batches);

  // What the host has of it. On a GPU parameters and moments live there while training: download() brings them to the
  // model and to the state, to be saved; upload() takes them from there, after loading.
  [[nodiscard]] OptimizerState& state() { return state_; }
  void download();
  void upload();

 private:
  LanguageModel& model_;
  OptimizerOptions options_;
  Device device_;
  std::shared_ptr<DeviceWeights> weights_;
  ModelRunner runner_;
  ModelRunner evaluation_runner_;  // its own memory: the training plan of a step stays as it is
  OptimizerState state_;
  DeviceBuffer gradients_;
  DeviceBuffer moments_;  // m, then v, on a GPU
  Workspace workspace_;
};

}  // namespace qdelta
