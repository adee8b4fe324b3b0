// The flags of a training run, which `train` and `compare` share: its data, its model, its recipe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/device_flags.h"
#include "cli/model_flags.h"
#include "cli/training_data.h"
#include "train/training_run.h"

namespace CLI {
class App;
}

namespace qdelta {

struct TrainingFlags {
  ModelFlags model;
  DeviceFlags device;
  TrainingOptions run;
  std::string config, text, tokenizer, mqar, text_key = "text";
  std::vector<std::string> data, validation;
  std::string transport = "auto", decay_on = "matrices", schedule_kind = "cosine";
  std::vector<std::string> curriculum;
  std::int64_t run_rows = 0;  // of a batch over all ranks, where a run that is resumed says so; 0: from what follows
  std::int64_t rewrites = 0, rows = 8, batch_tokens = 0, seq_len = 512, context_len = 0, validation_rows = 32;
  bool text_bytes = false, reset_at_documents = false, decay_embeddings = true;
  std::uint64_t seed = 1;
  double lr = 1e-3, min_lr_ratio = 0.1;
  std::int64_t steps = 1000, warmup = 100, decay_steps = 0;
  bool warmup_shortened = false;

  void add_to(CLI::App& command);
  // The model to train on this data: it has all of its tokens, and its config names those that start, end and fill up a
  // text as the tokenizer does.
  [[nodiscard]] ModelConfig config_for(const TrainingData& training_data) const;
  [[nodiscard]] LearningRateSchedule schedule() const;
  // Where no --warmup is given: no more than a tenth of the steps. As if it were given, so that a run's file has it.
  void choose_warmup(CLI::App& command);
  // What to say about that; "" where there is nothing to say.
  [[nodiscard]] std::string warmup_note() const;
  // Fills in what of `run` follows from other flags, and checks it.
  void resolve();
  // Everything that shapes the numbers, so that a resumed run can tell whether it is still the same run.
  [[nodiscard]] std::string recipe(const BatchSource& source, int groups) const;
  // Rows of a batch of the source, over so many groups of ranks.
  [[nodiscard]] std::int64_t batch_rows(int groups) const;
  // Tokens of a row; of recall tasks of several lengths the longest.
  [[nodiscard]] std::int64_t row_tokens() const;
};

}  // namespace qdelta
