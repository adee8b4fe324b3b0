// Associative recall: answers by an independent reading, the distribution of distances, and the order of batches.
#include "data/mqar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;

MqarOptions options_of(std::vector<MqarTask> tasks, std::uint64_t seed = 0) {
  MqarOptions options;
  options.tasks = std::move(tasks);
  options.seed = seed;
  options.batch_size = 16;
  return options;
}

// Reads an example as a person would: remembers the pairs, then looks up each query. Returns the places of the queries.
std::vector<std::int64_t> check_example(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                        std::int64_t pairs, std::int32_t vocab_size) {
  std::map<std::int32_t, std::int32_t> value_of;
  std::set<std::int32_t> values;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int32_t key = ids[static_cast<std::size_t>(2 * i)];
    const std::int32_t value = ids[static_cast<std::size_t>(2 * i + 1)];
    EXPECT_GE(key, 1);
    EXPECT_LT(key, vocab_size / 2);
    EXPECT_GE(value, vocab_size / 2);
    EXPECT_LT(value, vocab_size);
    EXPECT_TRUE(value_of.emplace(key, value).second) << "a key twice";
    EXPECT_TRUE(values.insert(value).second) << "a value twice";
  }
  std::vector<std::int64_t> places;
  std::set<std::int32_t> asked;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_GE(ids[i], 0);
    EXPECT_LT(ids[i], vocab_size);
    if (targets[i] < 0) {
      EXPECT_EQ(targets[i], -1);
      continue;
    }
    EXPECT_GE(static_cast<std::int64_t>(i), 2 * pairs);
    EXPECT_EQ(i % 2, 0U);
    EXPECT_EQ(targets[i], value_of.at(ids[i]));
    EXPECT_TRUE(asked.insert(ids[i]).second) << "asked twice";
    places.push_back((static_cast<std::int64_t>(i) - 2 * pairs) / 2);
  }
  EXPECT_EQ(static_cast<std::int64_t>(asked.size()), pairs);
  return places;
}

TEST(Mqar, AnswersAreRight) {
  std::vector<MqarTask> tasks = mqar_test_tasks();
  for (MqarTask& task : tasks) task.examples = 40;
  tasks.push_back({8, 2, 40});
  const MqarSource source(options_of(tasks, 3));
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    std::int64_t examples = 0;
    for (std::int64_t b = 0; b < source.batches_of(task); ++b) {
      const TokenBatch batch = source.batch_of(task, b);
      ASSERT_EQ(batch.targets.size(), batch.ids.size());
      const auto count = static_cast<std::int64_t>(batch.offsets.size()) - 1;
      EXPECT_EQ(batch.loss_tokens, count * tasks[task].pairs);
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(batch.offsets[static_cast<std::size_t>(i)], i * tasks[task].length);
        const auto at = static_cast<std::size_t>(i * tasks[task].length);
        const auto length = static_cast<std::size_t>(tasks[task].length);
        check_example(std::span(batch.ids).subspan(at, length), std::span(batch.targets).subspan(at, length),
                      tasks[task].pairs, 8192);
      }
      examples += count;
    }
    EXPECT_EQ(examples, 40);
  }
}

TEST(Mqar, SmallVocabularies) {
  MqarOptions options = options_of({{40, 10, 50}});
  options.vocab_size = 22;  // ten keys: all of them
  const MqarSource source(options);
  const TokenBatch batch = source.batch_of(0, 0);
  for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    check_example(std::span(batch.ids).subspan(i * 40, 40), std::span(batch.targets).subspan(i * 40, 40), 10, 22);
  }
}

// The first key of an example is the first to be placed: place i with probability i^(a - 1) / sum.
TEST(Mqar, DistancesFollowThePowerLaw) {
  for (const double power : {0.01, 1.0}) {
    constexpr std::int64_t kExamples = 20000;
    MqarOptions options = options_of({{64, 4, kExamples}});
    options.power = power;
    options.batch_size = kExamples;
    const TokenBatch batch = MqarSource(options).batch_of(0, 0);
    std::vector<double> count(28);
    for (std::size_t e = 0; e < kExamples; ++e) {
      const std::int32_t key = batch.ids[e * 64];
      for (std::size_t i = 8; i < 64; ++i) {
        if (batch.targets[e * 64 + i] >= 0 && batch.ids[e * 64 + i] == key) ++count[(i - 8) / 2];
      }
    }
    double total = 0;
    for (int i = 1; i <= 28; ++i) total += std::pow(i, power - 1);
    for (int i = 1; i <= 28; ++i) {
      const double expected = kExamples * std::pow(i, power - 1) / total;
      EXPECT_NEAR(count[static_cast<std::size_t>(i - 1)], expected, 5 * std::sqrt(expected) + 1) << "place " << i;
    }
  }
}

// And the second with the same weights among the places that are left.
TEST(Mqar, PlacesAreDrawnWithoutReplacement) {
  constexpr std::int64_t kExamples = 30000;
  MqarOptions options = options_of({{16, 2, kExamples}});  // six places
  options.batch_size = kExamples;
  const TokenBatch batch = MqarSource(options).batch_of(0, 0);
  std::map<std::pair<int, int>, double> count;
  for (std::size_t e = 0; e < kExamples; ++e) {
    int place[2] = {-1, -1};
    for (std::size_t i = 4; i < 16; i += 2) {
      if (batch.targets[e * 16 + i] < 0) continue;
      place[batch.ids[e * 16 + i] == batch.ids[e * 16] ? 0 : 1] = static_cast<int>(i - 4) / 2;
    }
    ++count[{place[0], place[1]}];
  }
  const auto weight = [](int place) { return std::pow(place + 1, 0.01 - 1); };
  double total = 0;
  for (int i = 0; i < 6; ++i) total += weight(i);
  for (int first = 0; first < 6; ++first) {
    for (int second = 0; second < 6; ++second) {
      if (first == second) continue;
      const double expected = kExamples * weight(first) / total * weight(second) / (total - weight(first));
      EXPECT_NEAR((count[{first, second}]), expected, 5 * std::sqrt(expected) + 1) << first << ", " << second;
    }
  }
}

TEST(Mqar, FillingIsFromTheWholeVocabulary) {
  MqarOptions options = options_of({{1024, 4, 200}});
  options.batch_size = 200;
  const TokenBatch batch = MqarSource(options).batch_of(0, 0);
  double low = 0;
  double high = 0;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    if (i % 1024 >= 8 && batch.targets[i] < 0) ++(batch.ids[i] < 4096 ? low : high);
  }
  EXPECT_NEAR(low / (low + high), 0.5, 0.01);
}

// What models were trained and tested on before there were rewrites.
TEST(Mqar, WithoutRewritesTheExamplesAreAsEver) {
  MqarOptions options = options_of({{16, 2, 3}}, 2'000'045);
  options.vocab_size = 256;
  const TokenBatch batch = MqarSource(options).batch_of(0, 0);
  const std::vector<std::int32_t> ids{21,  166, 74, 137, 106, 206, 21,  41,  112, 35,  252, 16, 74,  14,  187, 52,
                                      109, 149, 27, 169, 57,  28,  207, 74,  228, 29,  109, 57, 81,  102, 27,  133,
                                      111, 162, 61, 133, 111, 64,  39,  247, 61,  100, 223, 68, 236, 214, 0,   178};
  EXPECT_EQ(batch.ids, ids);
  std::vector<std::int32_t> targets(48, -1);
  targets[6] = 166;
  targets[12] = 137;
  targets[16 + 10] = 149;
  targets[16 + 14] = 169;
  targets[32 + 4] = 162;
  targets[32 + 8] = 133;
  EXPECT_EQ(batch.targets, targets);
}

// Reads the writes one after the other, as a person would, and then looks up each query.
void check_rewrites(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets, const MqarTask& task,
                    std::int32_t vocab_size) {
  std::map<std::int32_t, std::int32_t> value_of;
  std::map<std::int32_t, std::int64_t> writes_of;
  std::set<std::int32_t> values, round;
  const std::int64_t writes = task.pairs + task.rewrites;
  for (std::int64_t i = 0; i < writes; ++i) {
    const std::int32_t key = ids[static_cast<std::size_t>(2 * i)];
    const std::int32_t value = ids[static_cast<std::size_t>(2 * i + 1)];
    ASSERT_TRUE(key >= 1 && key < vocab_size / 2) << key;
    ASSERT_TRUE(value >= vocab_size / 2 && value < vocab_size) << value;
    if (i % task.pairs == 0) {
      round.clear();
      values.clear();
    }
    EXPECT_TRUE(round.insert(key).second) << "a key twice in a round";
    EXPECT_TRUE(i < task.pairs || value_of.contains(key)) << "a new key after the pairs";
    EXPECT_TRUE(values.insert(value).second) << "a value twice in a round";
    value_of[key] = value;
    ++writes_of[key];
  }
  std::int64_t once_more = 0;
  for (const auto& [key, count] : writes_of) once_more += count - (1 + task.rewrites / task.pairs);
  EXPECT_EQ(once_more, task.rewrites % task.pairs);
  std::set<std::int32_t> asked;
  for (auto i = static_cast<std::size_t>(2 * writes); i < ids.size(); ++i) {
    if (targets[i] < 0) {
      EXPECT_EQ(ids[i], 0);
      continue;
    }
    EXPECT_EQ(i % 2, 0U);
    EXPECT_EQ(targets[i], value_of.at(ids[i])) << "not the last value";
    EXPECT_TRUE(asked.insert(ids[i]).second) << "asked twice";
  }
  EXPECT_EQ(static_cast<std::int64_t>(asked.size()), task.pairs);
  EXPECT_TRUE(std::all_of(targets.begin(), targets.begin() + 2 * writes, [](std::int32_t t) { return t == -1; }));
}

TEST(Mqar, WithRewritesTheLastValueCounts) {
  const std::vector<MqarTask> tasks{{64, 8, 40, 1}, {64, 8, 40, 8}, {64, 8, 40, 16}, {96, 8, 40, 27}, {16, 1, 40, 5}};
  const MqarSource source(options_of(tasks, 3));
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const auto length = static_cast<std::size_t>(tasks[task].length);
    for (std::int64_t b = 0; b < source.batches_of(task); ++b) {
      const TokenBatch batch = source.batch_of(task, b);
      const std::size_t count = batch.offsets.size() - 1;
      EXPECT_EQ(batch.loss_tokens, static_cast<std::int64_t>(count) * tasks[task].pairs);
      for (std::size_t i = 0; i < count; ++i) {
        check_rewrites(std::span(batch.ids).subspan(i * length, length),
                       std::span(batch.targets).subspan(i * length, length), tasks[task], 8192);
      }
    }
  }
}

// One rewrite of four keys: each of them as often as the others; two rounds come in different orders.
TEST(Mqar, RewritesGoOverTheKeysInRandomOrder) {
  constexpr std::int64_t kExamples = 20000;
  MqarOptions options = options_of({{32, 4, kExamples, 8}});
  options.batch_size = kExamples;
  const TokenBatch batch = MqarSource(options).batch_of(0, 0);
  std::array<double, 4> first_of_round{};
  double same_order = 0;
  for (std::size_t e = 0; e < kExamples; ++e) {
    const std::span<const std::int32_t> ids = std::span(batch.ids).subspan(e * 32, 32);
    bool same = true;
    for (std::size_t pair = 0; pair < 4; ++pair) {
      if (ids[2 * pair] == ids[8]) ++first_of_round[pair];
      same = same && ids[8 + 2 * pair] == ids[16 + 2 * pair];
    }
    if (same) ++same_order;
  }
  for (const double count : first_of_round) EXPECT_NEAR(count, kExamples / 4.0, 5 * std::sqrt(kExamples / 4.0));
  EXPECT_NEAR(same_order, kExamples / 24.0, 5 * std::sqrt(kExamples / 24.0));
}

TEST(Mqar, RewritesAreDeterministicAndResumable) {
  const std::vector<MqarTask> tasks{{64, 8, 100, 8}, {96, 8, 50, 24}};
  MqarSource a(options_of(tasks, 5));
  MqarSource b(options_of(tasks, 5));
  for (int i = 0; i < 3; ++i) static_cast<void>(a.next());
  b.seek(3);
  EXPECT_EQ(a.next().ids, b.next().ids);
  EXPECT_NE(MqarSource(options_of(tasks, 6)).batch_of(0, 0).ids, a.batch_of(0, 0).ids);
  EXPECT_NE(a.batch_of(0, 0).ids, a.batch_of(0, 1).ids);
  EXPECT_NE(a.describe().find("100 of length 64 with 8 pairs and 8 rewrites"), std::string::npos) << a.describe();
}

TEST(Mqar, DeterministicAndResumable) {
  const std::vector<MqarTask> tasks = {{64, 4, 100}, {128, 8, 50}, {256, 16, 33}};
  MqarSource a(options_of(tasks, 5));
  std::vector<TokenBatch> batches;
  for (int i = 0; i < 40; ++i) batches.push_back(a.next());
  EXPECT_EQ(a.position(), 40U);
  for (const std::size_t at : {0U, 7U, 39U}) {
    MqarSource b(options_of(tasks, 5));
    b.seek(at);
    for (std::size_t i = at; i < batches.size(); ++i) {
      const TokenBatch batch = b.next();
      ASSERT_EQ(batch.ids, batches[i].ids);
      ASSERT_EQ(batch.targets, batches[i].targets);
      ASSERT_EQ(batch.offsets, batches[i].offsets);
    }
  }
  MqarSource other(options_of(tasks, 6));
  EXPECT_NE(other.batch_of(0, 0).ids, a.batch_of(0, 0).ids);
}

TEST(Mqar, EveryBatchOnceAnEpochAndOneLengthEach) {
  const std::vector<MqarTask> tasks = {{64, 4, 100}, {128, 8, 50}, {256, 16, 33}};
  MqarSource source(options_of(tasks));
  EXPECT_EQ(source.batches_per_epoch(), 7 + 4 + 3);
  std::multiset<std::vector<std::int32_t>> expected;
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    for (std::int64_t b = 0; b < source.batches_of(task); ++b) expected.insert(source.batch_of(task, b).ids);
  }
  std::vector<std::vector<std::int32_t>> orders[2];
  for (auto& order : orders) {
    for (std::int64_t i = 0; i < source.batches_per_epoch(); ++i) {
      const TokenBatch batch = source.next();
      const std::int64_t length = batch.offsets[1];
      for (std::size_t n = 0; n < batch.offsets.size(); ++n) {
        ASSERT_EQ(batch.offsets[n], static_cast<std::int64_t>(n) * length);
      }
      order.push_back(batch.ids);
    }
    EXPECT_EQ(std::multiset<std::vector<std::int32_t>>(order.begin(), order.end()), expected);
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST(Mqar, TheMixturesOfThePaper) {
  MqarOptions options = options_of(mqar_training_tasks());
  options.batch_size = 256;
  const MqarSource source(options);
  EXPECT_EQ(source.batches_per_epoch(), 391 + 4 * 79);
  EXPECT_EQ(source.vocab_size(), 8192);
  EXPECT_NE(source.describe().find("100000 of length 64 with 4 pairs"), std::string::npos);
  EXPECT_EQ(MqarSource(options_of(mqar_test_tasks())).tasks().size(), 7U);
}

TEST(Mqar, RefusesWhatCannotBe) {
  const auto refuse = [](const std::vector<std::string>& pieces, MqarOptions options) {
    expect_error(Status::invalid_argument, pieces, [&] { return MqarSource(std::move(options)); });
  };
  refuse({"no recall task"}, options_of({}));
  refuse({"even", "63"}, options_of({{63, 4, 1}}));
  refuse({"17 pairs", "68", "64"}, options_of({{64, 17, 1}}));
  refuse({"0 pairs"}, options_of({{64, 0, 1}}));
  refuse({"at least one example"}, options_of({{64, 4, 0}}));
  MqarOptions small = options_of({{64, 4, 1}});
  small.vocab_size = 8;
  refuse({"3 keys", "4 pairs"}, small);
  refuse({"rewrites", "-1"}, options_of({{64, 4, 1, -1}}));
  refuse({"8 pairs, 17 rewrites", "66", "64"}, options_of({{64, 8, 1, 17}}));
  MqarOptions empty = options_of({{64, 4, 1}});
  empty.batch_size = 0;
  refuse({"at least one example"}, empty);
}

}  // namespace
}  // namespace qdelta
