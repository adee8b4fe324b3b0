// The flags of a training run, which `train` and `compare` share: its data, its model, its recipe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/device_flags.h"
#include "cli/model_flags.h"
#include "data/batches.h"
#include "train/training_run.h"

namespace CLI {
class App;
}

namespace qdelta {

struct TrainingData;

struct TrainingFlags {
  ModelFlags model;
  DeviceFlags device;
  TrainingOptions run;
  std::string config, text, tokenizer, mqar, text_key = "text";
  std::vector<std::string> data, validation;
  std::int64_t rows = 8, seq_len = 512, context_len = 0, validation_rows = 32;
  bool reset_at_documents = false;
  std::uint64_t seed = 1;
  double lr = 1e-3, min_lr_ratio = 0.1;
  std::int64_t steps = 1000, warmup = 100;

  void add_to(CLI::App& command);
  // The model to train on this data: it has all of its tokens, and its config names those that start, end and fill up a
  // text as the tokenizer does.
  [[nodiscard]] ModelConfig config_for(const TrainingData& training_data) const;
  [[nodiscard]] LearningRateSchedule schedule() const { return {lr, warmup, steps, min_lr_ratio}; }
  // Everything that shapes the numbers, so that a resumed run can tell whether it is still the same run.
  [[nodiscard]] std::string recipe(const BatchSource& source) const;
};

// A source of batches, what to validate on, and the tokenizer the ids come from ("" for synthetic tokens).
struct TrainingData {
  std::unique_ptr<BatchSource> source;
  std::vector<TokenBatch> validation;
  std::string tokenizer;
  std::optional<std::int64_t> bos, eos, pad;  // of the tokenizer
};
// A text becomes shards in `data_folder`; where `keep_shards` is set, those that are there already are taken. Shards
// that were not made just now are read through, to see that they are whole.
[[nodiscard]] TrainingData open_data(const TrainingFlags& flags, const std::string& data_folder, bool keep_shards);

}  // namespace qdelta
