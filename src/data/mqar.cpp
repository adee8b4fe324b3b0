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

void check(const MqarOptions& options) {
  require(!options.tasks.empty(), "no recall task was named");
  require(options.batch_size > 0, "a batch must have at least one example, not {}", options.batch_size);
  require(options.vocab_size >= 4, "a vocabulary of {} is too small for keys and values", options.vocab_size);
  require(std::isfinite(options.power), "the power of the distances must be a number");
  for (const MqarTask& task : options.tasks) {
    require(task.length > 0 && task.length % 2 == 0, "the length of a recall task must be even, not {}", task.length);
    require(task.pairs > 0 && task.pairs <= task.length / 4,
            "{} pairs and their queries take {} tokens, but the length is {}", task.pairs, 4 * task.pairs, task.length);
    require(task.pairs <= options.vocab_size / 2 - 1, "a vocabulary of {} has {} keys, too few for {} pairs",
            options.vocab_size, options.vocab_size / 2 - 1, task.pairs);
    require(task.examples > 0, "a recall task must have at least one example, not {}", task.examples);
  }
}

}  // namespace

MqarTask mqar_task_of(const std::string& flag, const std::string& text) {
  MqarTask task;
  char first = 0;
  char second = 0;
  std::istringstream in(text);
  const bool read = static_cast<bool>(in >> task.length >> first >> task.pairs >> second >> task.examples);
  require(read && first == ':' && second == ':' && in.peek() == EOF,
          "{} is '{}', expected LENGTH:PAIRS:EXAMPLES such as 64:4:100000, or 'paper'", flag, text);
  return task;
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
    for (std::int64_t place = 1; place <= task.length / 2 - task.pairs; ++place) {
      weights.push_back(std::pow(static_cast<double>(place), options_.power - 1.0));
    }
    place_weight_.push_back(std::move(weights));
  }
}

void MqarSource::make_example(std::size_t task, std::int64_t index, std::span<std::int32_t> ids,
                              std::span<std::int32_t> targets) const {
  const std::int64_t pairs = options_.tasks[task].pairs;
  const std::int32_t half = options_.vocab_size / 2;
  Random random(mixed_seed(mixed_seed(options_.seed, kExamples), task, static_cast<std::uint64_t>(index)));
  const std::vector<std::int32_t> keys = choose(random, 1, half - 1, pairs);
  const std::vector<std::int32_t> values = choose(random, half, options_.vocab_size - 1, pairs);
  const std::vector<std::int64_t> places = draw(random, place_weight_[task], pairs);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.integer(0, options_.vocab_size - 1));
  std::fill(targets.begin(), targets.end(), -1);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const auto at = static_cast<std::size_t>(pair);
    ids[2 * at] = keys[at];
    ids[2 * at + 1] = values[at];
    const auto query = static_cast<std::size_t>(2 * pairs + 2 * places[at]);
    ids[query] = keys[at];
    targets[query] = values[at];
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
  }
  return fmt::format("recall examples, vocabulary {}, seed {}: {}", options_.vocab_size, options_.seed,
                     fmt::join(tasks, "; "));
}

}  // namespace qdelta
