// A training run: steps, evaluations, checkpoints, logs, until it is finished, told to stop, or no longer gets better.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/batches.h"
#include "train/progress.h"
#include "train/schedule.h"
#include "train/trainer.h"
#include "train/training_state.h"

namespace qdelta {

struct TrainingOptions {
  std::string out;                // the folder of the run
  std::string name;               // for the progress line
  std::int64_t accumulate = 1;    // batches per step
  LearningRateSchedule schedule;  // schedule.total steps in all
  OptimizerOptions optimizer;
  std::int64_t eval_every = 100;  // steps; 0: only at the end
  std::int64_t save_every = 0;    // steps; 0: at each evaluation
  int keep = 2;                   // checkpoints
  std::int64_t patience = 0;      // stop after so many evaluations without a better one; 0: never
  double target_accuracy = 0;     // stop when the validation accuracy reaches it; 0: never
  bool recompute = false;
  bool resume = false;
  Device device;
  std::string tokenizer;     // to copy into checkpoints; "": none
  std::string recipe;        // the settings that shape the result, as text
  double machine_limit = 0;  // FLOP/s, for the share that is shown; 0: unknown
};

struct TrainingOutcome {
  enum class End { finished, early, interrupted } end = End::finished;
  TrainingState state;
  EvaluationResult validation;  // the last one
  std::optional<double> loss;   // of the last step; none where there was nothing left to do
  std::string checkpoint;       // the newest; "" where there is none yet
};

// Throws where the folder already holds a run and `resume` is not set, or the run there had another recipe. `stop` is
// looked at after each step: the step is finished and a checkpoint saved.
TrainingOutcome run_training(LanguageModel& model, BatchSource& source, std::span<const TokenBatch> validation,
                             const TrainingOptions& options, const std::atomic<bool>& stop, Progress& progress);

}  // namespace qdelta
