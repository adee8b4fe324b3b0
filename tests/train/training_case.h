// What the tests of training share: a small model, shards to train it on, and whole runs to compare bit by bit.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "data/batches.h"
#include "io/file_descriptor.h"
#include "io/io_testing.h"
#include "mixers.h"
#include "model/language_model.h"
#include "rule/rule.h"
#include "run_numbers.h"
#include "train/training_run.h"

namespace qdelta::testing {

inline constexpr std::int32_t kVocabulary = 40;

inline ModelConfig tiny_config(std::string_view mixer = "q_delta") {
  ModelConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.num_hidden_layers = layers_for(mixer);
  config.choose_mixer(mixer);
  config.num_heads = 2;
  config.head_dim = 8;
  config.expand_v = 2;
  config.intermediate_size = 48;
  return config;
}
inline ModelConfig tiny_config(Rule rule) { return tiny_config(traits_of(rule).name); }

// Shards of documents of random lengths, to train and to validate on.
class ShardsOfSteps {
 public:
  explicit ShardsOfSteps(const std::string& folder) {
    Random random(11);
    const auto write = [&](const std::string& name, int documents) {
      ShardWriter::Options options;
      options.folder = folder + "/" + name;
      options.vocab_size = kVocabulary;
      options.fingerprint = 7;
      options.shard_tokens = 400;
      ShardWriter writer(options);
      for (int i = 0; i < documents; ++i) {
        // Each token is a step from the one before it, so that there is something to learn.
        std::vector<std::int32_t> ids(static_cast<std::size_t>(random.integer(5, 60)));
        auto id = static_cast<std::int32_t>(random.integer(0, kVocabulary - 1));
        for (std::int32_t& value : ids) {
          value = id;
          id = static_cast<std::int32_t>((id + random.integer(1, 3)) % kVocabulary);
        }
        writer.add(ids);
      }
      writer.finish();
      return std::make_shared<const TokenDataset>(TokenDataset::open(folder + "/" + name));
    };
    train_ = write("train", 24);
    held_out_ = write("held_out", 8);
  }
  [[nodiscard]] std::unique_ptr<TokenSource> source(const RowOptions& row = kRow) const {
    return std::make_unique<TokenSource>(train_, TokenSourceOptions{.row = row, .rows = 2, .seed = 3});
  }
  [[nodiscard]] std::vector<TokenBatch> validation(const RowOptions& row = kRow) const {
    const ValidationRows rows(held_out_, row, 3, 5);
    std::vector<TokenBatch> batches;
    for (std::int64_t i = 0; i < rows.batches(); ++i) batches.push_back(rows.batch(i));
    return batches;
  }

  static constexpr RowOptions kRow{.seq_len = 24};

 private:
  std::shared_ptr<const TokenDataset> train_, held_out_;
};

// A source that calls `before(n)` ahead of its n-th batch, from 1, of this process: to stop a run at a chosen moment.
class WatchedSource final : public BatchSource {
 public:
  WatchedSource(std::unique_ptr<BatchSource> source, std::function<void(std::int64_t)> before)
      : source_(std::move(source)), before_(std::move(before)) {}

  [[nodiscard]] std::int64_t next_rows() const override { return source_->next_rows(); }
  [[nodiscard]] TokenBatch read(std::int64_t begin, std::int64_t end) const override {
    before_(calls_ + 1);
    return source_->read(begin, end);
  }
  void advance() override {
    ++calls_;
    source_->advance();
  }
  [[nodiscard]] std::uint64_t position() const override { return source_->position(); }
  void seek(std::uint64_t position) override { source_->seek(position); }
  [[nodiscard]] std::int32_t vocab_size() const override { return source_->vocab_size(); }
  [[nodiscard]] std::string describe() const override { return source_->describe(); }
  [[nodiscard]] std::vector<Epochs> epochs() const override { return source_->epochs(); }

 private:
  std::unique_ptr<BatchSource> source_;
  std::function<void(std::int64_t)> before_;
  std::int64_t calls_ = 0;
};

inline TrainingOptions tiny_run(const std::string& out, std::int64_t steps) {
  TrainingOptions options;
  options.out = out;
  options.schedule = {.peak = 3e-3, .warmup = 2, .total = steps, .min_ratio = 0.1};
  options.eval_every = 4;
  options.device.threads = 1;
  options.recipe = "tiny";
  return options;
}

// A run without an audience.
inline TrainingOutcome train_quietly(LanguageModel& model, BatchSource& source, std::span<const TokenBatch> validation,
                                     const TrainingOptions& options, const std::atomic<bool>& stop = false) {
  const FileDescriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Progress progress(nowhere.get());
  return run_training(model, source, validation, options, stop, progress);
}

}  // namespace qdelta::testing
