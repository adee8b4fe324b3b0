// A training run: steps, evaluations, checkpoints, logs, until it is finished, told to stop, or no longer gets better.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/batches.h"
#include "train/curriculum.h"
#include "train/progress.h"
#include "train/schedule.h"
#include "train/tensorboard.h"
#include "train/trainer.h"
#include "train/training_state.h"

namespace qdelta {

struct TrainingOptions {
  std::string out;                               // the folder of the run
  std::string name;                              // for the progress line
  std::int64_t accumulate = 1;                   // batches of the source per step
  std::int64_t micro_rows = 0;                   // rows that a rank, or a group, runs at a time; 0: its part of a batch
  LearningRateSchedule schedule;                 // schedule.total steps
  std::vector<LearningRateSchedule> extensions;  // and after them, those of each of these
  std::vector<CurriculumStage> curriculum;
  OptimizerOptions optimizer;
  std::int64_t eval_every = 100;  // steps; 0: only at the end
  std::int64_t save_every = 0;    // steps; 0: at each evaluation
  int keep = 2;                   // checkpoints
  std::int64_t patience = 0;      // stop after so many evaluations without a better one; 0: never
  double target_accuracy = 0;     // stop when the validation accuracy reaches it; 0: never
  Recompute recompute = Recompute::none;
  bool resume = false;
  Device device;
  Communicator* communicator = nullptr;  // of the ranks of the run; null: one process
  std::int64_t sequence_parallel = 1;    // so many ranks share the sequences of their rows (sequence_ranks.h)
  std::string tokenizer;                 // to copy into checkpoints; "": none
  std::string recipe;                    // the settings that shape the result, as text
  double machine_limit = 0;              // FLOP/s, for the share that is shown; 0: unknown
  TensorBoardSettings settings;          // of the run, for TensorBoard's table of them; may be empty
  // A text of the model as it is now, every so many steps (0: none) and at the end; on rank 0.
  std::int64_t sample_every = 0;
  std::function<std::string()> sample;
  // Called once nothing stands in the way of the run any more, before anything is written; on rank 0.
  std::function<void()> on_start;

  [[nodiscard]] std::int64_t total_steps() const;
};

struct TrainingOutcome {
  enum class End { finished, early, interrupted } end = End::finished;
  TrainingState state;
  EvaluationResult validation;  // the last one
  std::optional<double> loss;   // of the last step; none where there was nothing left to do
  std::string checkpoint;       // the newest; "" where there is none yet
};

// With several ranks each calls it, with the same arguments: they share every batch. Rank 0 reads and writes the folder
// and shows the progress.
//
// Throws where the folder already holds a run and `resume` is not set, or the run there had another recipe. `stop` is
// looked at after each step: the step is finished and a checkpoint saved.
TrainingOutcome run_training(LanguageModel& model, BatchSource& source, std::span<const TokenBatch> validation,
                             const TrainingOptions& options, const std::atomic<bool>& stop, Progress& progress);

}  // namespace qdelta
