// One optimizer step: gradients accumulated over micro-batches, clipping, AdamW; on one process, or on the ranks of a
// run, each with micro-batches of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/memory.h"
#include "data/batches.h"
#include "distributed/communicator.h"
#include "model/language_model.h"
#include "train/sequence_ranks.h"
#include "train/sharded_optimizer.h"
#include "train/weight_decay.h"

namespace qdelta {

struct OptimizerOptions {
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-15F;
  float weight_decay = 0.1F;
  DecayedParameters decayed = {};
  float clip = 1.0F;  // largest gradient norm; 0: no clipping
  // Of the exponential moving average of the parameters (Polyak averaging); 0: none is kept. After n updates it is
  //   a <- d a + (1 - d) p,   d = min(average_decay, (1 + n) / (10 + n))
  // so that the random start is soon forgotten.
  float average_decay = 0;

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
  AlignedBuffer memory;      // m, then v, then the average
  std::int64_t updates = 0;  // of the parameters; a skipped step is none
  std::int64_t size = 0;
  bool has_average = false;

  OptimizerState() = default;  // of ranks that see no more than their own part
  explicit OptimizerState(std::int64_t parameters, bool with_average = false);
  [[nodiscard]] std::span<float> m();
  [[nodiscard]] std::span<float> v();
  [[nodiscard]] std::span<float> average();  // empty where there is none
};

class Trainer {
 public:
  // Without a communicator for one process alone. With one, what follows is collective. `sequence_parallel` ranks at a
  // time are a group, which shares the sequences of its batches (sequence_ranks.h).
  Trainer(LanguageModel& model, const OptimizerOptions& options, const Device& device,
          Recompute recompute = Recompute::none, Communicator* communicator = nullptr,
          std::int64_t sequence_parallel = 1);

  // The mean loss over the loss tokens of all micro-batches, of all ranks, and one update. A rank may have none; ranks
  // of a group have the same ones.
  StepResult step(std::span<const TokenBatch> micro_batches, float learning_rate);
  // The groups take turns at the batches.
  EvaluationResult evaluate(std::span<const TokenBatch> batches);
  // The same with the average of the parameters in their place.
  EvaluationResult evaluate_average(std::span<const TokenBatch> batches);

  // What the host has of it. On a GPU parameters and moments live there while training, with several ranks moments are
  // spread over them: download() brings them to the model and to the state (of rank 0), to be saved; upload() takes
  // them from there (rank 0), after loading.
  [[nodiscard]] OptimizerState& state() { return state_; }
  void download();
  void upload();
  // Before loading, and after saving: memory for the whole moments, which with several ranks only rank 0 needs, and
  // only then.
  void hold_state();
  void release_state();
  // Of a run that begins: the average starts at the model's parameters. Before upload(), with the state held.
  void start_average();
  // The model's parameters alone, for those that look at it while it trains.
  void download_weights() { weights_->download(model_); }
  // Of the optimizer, on this rank.
  [[nodiscard]] std::size_t optimizer_bytes() const;

 private:
  [[nodiscard]] bool first_rank() const { return communicator_ == nullptr || communicator_->rank() == 0; }
  // Calls work(this rank's part of a batch of its group).
  template <class Work>
  void with_own_part(const TokenBatch& batch, const Work& work);
  double loss_and_gradients(std::span<const TokenBatch> micro_batches, std::int64_t loss_tokens);
  double update(float learning_rate);
  void update_average();
  void exchange_average();

  LanguageModel& model_;
  OptimizerOptions options_;
  Device device_;
  std::shared_ptr<DeviceWeights> weights_;
  ModelRunner runner_;
  ModelRunner evaluation_runner_;  // its own memory: the training plan of a step stays as it is
  OptimizerState state_;
  DeviceBuffer gradients_;
  DeviceBuffer moments_;  // OptimizerState::memory, on a GPU
  DeviceBuffer decays_;   // AdamW::decays; empty: all do
  Workspace workspace_;
  Communicator* communicator_;
  RankGroups ranks_;
  std::unique_ptr<SequenceRanks> sequence_;    // where a group has several ranks
  std::unique_ptr<ShardedOptimizer> sharded_;  // with a communicator
};

}  // namespace qdelta
