// Multi-query associative recall (Zoology, Arora et al. 2023): key-value pairs, then the keys again, each to be
// answered with its value.
//
//   ids      k1 v1 k2 v2 ...   x  x  k2 x  x  x  k1 x  ...
//   targets  -  -  -  -        -  -  v2 -  -  -  v1 -
//
// Keys are 1 to V/2 - 1, values V/2 to V - 1, each once in an example. After the pairs the rest is cut into places of
// two tokens; the keys go to the first token of places drawn one after the other without replacement, place i (from 1)
// with probability proportional to i^(a - 1). All other tokens are drawn from the whole vocabulary.
//
// With R rewrites the P pairs are followed by R more, which give keys that were written before a new value. Only the
// last value of a key counts: it is the answer. A memory that adds up what it is told has them all and cannot say which
// came last; one that erases has the last alone.
//
//   ids      k1 v1 k2 v2   k2 v3 k1 v4 k2 v5   k2 0  0  0  k1 0        P = 2, R = 3
//   targets  -  -  -  -    -  -  -  -  -  -    v5 -  -  -  v4 -
//
// Writes come in rounds: the pairs are the first, rewrites go over the keys again, each round in a new random order;
// the last may end early. So every key is written 1 + R/P times (rounded down), R mod P of them once more, and R of the
// P + R values are out of date in the end. The values of a round are different ones, drawn anew. Every key is asked
// once, in places behind the last write that are drawn as above. All other tokens are 0, which is neither key nor
// value: random ones could be read as further rewrites.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/batches.h"

namespace qdelta {

struct MqarTask {
  std::int64_t length = 64;
  std::int64_t pairs = 4;
  std::int64_t examples = 1000;
  std::int64_t rewrites = 0;  // R above

  // Tokens before the first place of a query.
  [[nodiscard]] std::int64_t written() const { return 2 * (pairs + rewrites); }
};

struct MqarOptions {
  std::int32_t vocab_size = 8192;
  double power = 0.01;  // a above; 1 would be uniform
  std::uint64_t seed = 0;
  std::vector<MqarTask> tasks;
  std::int64_t batch_size = 256;  // examples
  bool shuffle = true;            // the order of the batches, anew in every epoch
};

// What the paper trains and tests on.
[[nodiscard]] std::vector<MqarTask> mqar_training_tasks();
[[nodiscard]] std::vector<MqarTask> mqar_test_tasks();
// What --mqar and --rewrites ask for: the task LENGTH:PAIRS:EXAMPLES, or for 'paper' the published ones. Throws
// Error(invalid_argument) for other words, and for rewrites of the published tasks.
[[nodiscard]] std::vector<MqarTask> mqar_tasks_of(const std::string& text, std::int64_t rewrites,
                                                  std::vector<MqarTask> (*published)());

// A fixed set of examples, each made when it is asked for out of (seed, task, index). A batch has examples of one task
// only; the last of a task may have fewer. Seeds of training and test must differ.
class MqarSource final : public BatchSource {
 public:
  // Throws Error(invalid_argument) for tasks that do not fit: pairs, rewrites and queries take 4 * pairs + 2 * rewrites
  // of an even length.
  explicit MqarSource(MqarOptions options);

  [[nodiscard]] std::int64_t next_rows() const override;
  [[nodiscard]] TokenBatch read(std::int64_t begin, std::int64_t end) const override;
  void advance() override { ++position_; }
  // In batches.
  [[nodiscard]] std::uint64_t position() const override { return position_; }
  void seek(std::uint64_t position) override { position_ = position; }
  [[nodiscard]] std::int32_t vocab_size() const override { return options_.vocab_size; }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::vector<Epochs> epochs() const override;

  [[nodiscard]] const std::vector<MqarTask>& tasks() const { return options_.tasks; }
  [[nodiscard]] std::int64_t batches_per_epoch() const { return first_batch_.back(); }
  // Batch `index` of task `task`, for tests that score each task on its own.
  [[nodiscard]] std::int64_t batches_of(std::size_t task) const { return first_batch_[task + 1] - first_batch_[task]; }
  [[nodiscard]] TokenBatch batch_of(std::size_t task, std::int64_t index) const;

 private:
  // Consecutive examples of a task.
  struct Examples {
    std::size_t task;
    std::int64_t first, count;
  };
  [[nodiscard]] Examples examples_of(std::size_t task, std::int64_t index) const;  // of batch `index`
  [[nodiscard]] Examples next_examples() const;
  [[nodiscard]] TokenBatch make(const Examples& examples) const;
  // Writes one example; both spans have the task's length.
  void make_example(std::size_t task, std::int64_t index, std::span<std::int32_t> ids,
                    std::span<std::int32_t> targets) const;

  MqarOptions options_;
  std::vector<std::int64_t> first_batch_;          // of each task in an epoch that is not shuffled, and their number
  std::vector<std::vector<double>> place_weight_;  // by task
  std::uint64_t position_ = 0;
};

}  // namespace qdelta
