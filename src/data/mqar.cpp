#include "data/mqar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "core/random.h"
#include "data/permutation.h"

namespace qdelta {
namespace {

constexpr std::uint64_t kOrderOfExamples =
    1;  // what the seed is mixed with, so that its uses do not share their numbers
constexpr std::uint64_t kExamples = 2;

// `count` different numbers of [low, high], in random order.
std::vector<std::int32_t> choose(Random& random, std::int64_t low, std::int64_t high, std::int64_t count) {
  const std::int64_t range = high - low + 1;
  std::vector<std::int32_t> chosen;
  chosen.reserve(static_cast<std::size_t>(count));
  if (2 * count <= range) {
    std::vector<bool> taken(static_cast<std::size_t>(range));
    while (static_cast<std::int64_t>(chosen.size()) < count) {
      const std::int64_t offset = random.integer(0, range - 1);
      if (taken[static_cast<std::size_t>(offset)]) continue;
      taken[static_cast<std::size_t>(offset)] = true;
      chosen.push_back(static_cast<std::int32_t>(low + offset));
    }
    return chosen;
  }
  chosen.resize(static_cast<std::size_t>(range));
  std::iota(chosen.begin(), chosen.end(), static_cast<std::int32_t>(low));
  for (std::int64_t i = 0; i < count; ++i) {
    std::swap(chosen[static_cast<std::size_t>(i)], chosen[static_cast<std::size_t>(random.integer(i, range - 1))]);
  }
  chosen.resize(static_cast<std::size_t>(count));
  return chosen;
}

// `count` indices drawn one after the other without replacement, with these weights. Waiting times that are exponential
// with the weights as rates end in just such an order.
std::vector<std::int64_t> draw(Random& random, const std::vector<double>& weights, std::int64_t count) {
  std::vector<std::pair<double, std::int64_t>> waiting;
  waiting.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    waiting.emplace_back(-std::log(1.0 - random.uniform()) / weights[i], static_cast<std::int64_t>(i));
  }
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count), waiting.end());
  std::vector<std::int64_t> drawn;
  drawn.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) drawn.push_back(waiting[static_cast<std::size_t>(i)].second);
  return drawn;
}

// The writes of an example, in their order.
struct Writes {
  std::vector<std::int32_t> keys;    // all there are, in the order of the pairs
  std::vector<std::size_t> key;      // of each write: which of them
  std::vector<std::int32_t> values;  // of each write
};

Writes draw_writes(const MqarTask& task, std::int32_t vocab_size, Random& random) {
  const std::int32_t half = vocab_size / 2;
  Writes writes;
  writes.keys = choose(random, 1, half - 1, task.pairs);
  writes.values = choose(random, half, vocab_size - 1, task.pairs);
  writes.key.resize(writes.keys.size());
  std::iota(writes.key.begin(), writes.key.end(), 0);
  for (std::int64_t left = task.rewrites; left > 0; left -= task.pairs) {
    const std::int64_t count = std::min(left, task.pairs);
    const std::vector<std::int32_t> order = choose(random, 0, task.pairs - 1, task.pairs);
    const std::vector<std::int32_t> values = choose(random, half, vocab_size - 1, count);
    writes.key.insert(writes.key.end(), order.begin(), order.begin() + count);
    writes.values.insert(writes.values.end(), values.begin(), values.end());
  }
  return writes;
}

void check(const MqarTask& task, std::int32_t vocab_size) {
  const std::string what = task.rewrites == 0 ? fmt::format("{} pairs", task.pairs)
                                              : fmt::format("{} pairs, {} rewrites", task.pairs, task.rewrites);
  require(task.length > 0 && task.length % 2 == 0, "the length of a recall task must be even, not {}", task.length);
  require(task.rewrites >= 0, "the rewrites of a recall task are {}, expected 0 or more", task.rewrites);
  require(task.pairs > 0 && task.pairs <= task.length / 4 && task.rewrites <= task.length / 2 - 2 * task.pairs,
          "{} and their queries take {:.0f} tokens, but the length is {}", what,
          4.0 * static_cast<double>(task.pairs) + 2.0 * static_cast<double>(task.rewrites), task.length);
  require(task.pairs <= vocab_size / 2 - 1, "a vocabulary of {} has {} keys, too few for {} pairs", vocab_size,
          vocab_size / 2 - 1, task.pairs);
  require(task.examples > 0, "a recall task must have at least one example, not {}", task.examples);
}

void check(const MqarOptions& options) {
  require(!options.tasks.empty(), "no recall task was named");
  require(options.batch_size > 0, "a batch must have at least one example, not {}", options.batch_size);
  require(options.vocab_size >= 4, "a vocabulary of {} is too small for keys and values", options.vocab_size);
  require(std::isfinite(options.power), "the power of the distances must be a number");
  for (const MqarTask& task : options.tasks) check(task, options.vocab_size);
}

// Out of LENGTH:PAIRS:EXAMPLES.
MqarTask task_of(const std::string& text) {
  MqarTask task;
  char first = 0;
  char second = 0;
  std::istringstream in(text);
  const bool read = static_cast<bool>(in >> task.length >> first >> task.pairs >> second >> task.examples);
  require(read && first == ':' && second == ':' && in.peek() == EOF,
          "--mqar is '{}', expected LENGTH:PAIRS:EXAMPLES such as 64:4:100000, or 'paper'", text);
  return task;
}

}  // namespace

std::vector<MqarTask> mqar_tasks_of(const std::string& text, std::int64_t rewrites,
                                    std::vector<MqarTask> (*published)()) {
  if (text == "paper") {
    require(rewrites == 0, "--rewrites {} has no meaning with --mqar paper: give LENGTH:PAIRS:EXAMPLES", rewrites);
    return published();
  }
  MqarTask task = task_of(text);
  task.rewrites = rewrites;
  return {task};
}

std::vector<MqarTask> mqar_training_tasks() {
  return {{64, 4, 100000}, {128, 8, 20000}, {256, 16, 20000}, {256, 32, 20000}, {256, 64, 20000}};
}

std::vector<MqarTask> mqar_test_tasks() {
  return {{64, 4, 1000},   {64, 8, 1000},    {64, 16, 1000},   {128, 32, 1000},
          {256, 64, 1000}, {512, 128, 1000}, {1024, 256, 1000}};
}

MqarSource::MqarSource(MqarOptions options) : options_(std::move(options)), first_batch_{0} {
  check(options_);
  for (const MqarTask& task : options_.tasks) {
    first_batch_.push_back(first_batch_.back() + ceil_div(task.examples, options_.batch_size));
    std::vector<double> weights;
    for (std::int64_t place = 1; place <= (task.length - task.written()) / 2; ++place) {
      weights.push_back(std::pow(static_cast<double>(place), options_.power - 1.0));
    }
    place_weight_.push_back(std::move(weights));
  }
}

void MqarSource::make_example(std::size_t task, std::int64_t index, std::span<std::int32_t> ids,
                              std::span<std::int32_t> targets) const {
  const MqarTask& shape = options_.tasks[task];
  Random random(mixed_seed(mixed_seed(options_.seed, kExamples), task, static_cast<std::uint64_t>(index)));
  const Writes writes = draw_writes(shape, options_.vocab_size, random);
  const std::vector<std::int64_t> places = draw(random, place_weight_[task], shape.pairs);
  for (std::int32_t& id : ids) {
    id = shape.rewrites > 0 ? 0 : static_cast<std::int32_t>(random.integer(0, options_.vocab_size - 1));
  }
  std::fill(targets.begin(), targets.end(), -1);
  for (std::size_t i = 0; i < writes.key.size(); ++i) {  // later ones replace the answers of earlier ones
    const std::size_t key = writes.key[i];
    ids[2 * i] = writes.keys[key];
    ids[2 * i + 1] = writes.values[i];
    const auto query = static_cast<std::size_t>(shape.written() + 2 * places[key]);
    ids[query] = writes.keys[key];
    targets[query] = writes.values[i];
  }
}

MqarSource::Examples MqarSource::examples_of(std::size_t task, std::int64_t index) const {
  const std::int64_t first = index * options_.batch_size;
  return {task, first, std::min(options_.batch_size, options_.tasks[task].examples - first)};
}

TokenBatch MqarSource::batch_of(std::size_t task, std::int64_t index) const {
  require(task < options_.tasks.size() && index >= 0 && index < batches_of(task), "there is no batch {} of task {}",
          index, task);
  return make(examples_of(task, index));
}

TokenBatch MqarSource::make(const Examples& examples) const {
  const MqarTask& shape = options_.tasks[examples.task];
  const auto length = static_cast<std::size_t>(shape.length);
  TokenBatch batch;
  batch.ids.resize(static_cast<std::size_t>(examples.count) * length);
  batch.targets.resize(batch.ids.size());
  batch.offsets.push_back(0);
  for (std::int64_t i = 0; i < examples.count; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * length;
    make_example(examples.task, examples.first + i, std::span(batch.ids).subspan(at, length),
                 std::span(batch.targets).subspan(at, length));
    batch.offsets.push_back((i + 1) * shape.length);
  }
  batch.loss_tokens = examples.count * shape.pairs;
  return batch;
}

MqarSource::Examples MqarSource::next_examples() const {
  const auto count = static_cast<std::uint64_t>(batches_per_epoch());
  const std::uint64_t epoch = position_ / count;
  std::uint64_t index = position_ % count;
  if (options_.shuffle) index = Permutation(count, mixed_seed(options_.seed, kOrderOfExamples, epoch))(index);
  const auto batch = static_cast<std::int64_t>(index);
  const auto task = std::upper_bound(first_batch_.begin(), first_batch_.end(), batch) - first_batch_.begin() - 1;
  return examples_of(static_cast<std::size_t>(task), batch - first_batch_[static_cast<std::size_t>(task)]);
}

std::int64_t MqarSource::next_rows() const { return next_examples().count; }

TokenBatch MqarSource::read(std::int64_t begin, std::int64_t end) const {
  check_rows(*this, begin, end);
  Examples examples = next_examples();
  examples.first += begin;
  examples.count = end - begin;
  return make(examples);
}

std::vector<Epochs> MqarSource::epochs() const {
  return {{"", static_cast<double>(position_) / static_cast<double>(batches_per_epoch())}};
}

std::string MqarSource::describe() const {
  std::vector<std::string> tasks;
  for (const MqarTask& task : options_.tasks) {
    tasks.push_back(fmt::format("{} of length {} with {} pairs", task.examples, task.length, task.pairs));
    if (task.rewrites > 0) tasks.back() += fmt::format(" and {} rewrites", task.rewrites);
  }
  return fmt::format("recall examples, vocabulary {}, seed {}: {}", options_.vocab_size, options_.seed,
                     fmt::join(tasks, "; "));
}

}  // namespace qdelta
