// Mixtures of datasets: their shares, their order, and that every row of each comes once an epoch.
#include "data/mixture.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data_testing.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

class Mixture : public ::testing::Test {
 protected:
  // A dataset whose tokens all are `id`.
  std::shared_ptr<const TokenDataset> dataset(std::int32_t id, std::size_t tokens, std::uint64_t fingerprint = 7) {
    ShardWriter::Options options;
    options.folder = folder_.file("set" + std::to_string(id) + "-" + std::to_string(fingerprint));
    options.vocab_size = 10;
    options.fingerprint = fingerprint;
    options.replace = true;
    ShardWriter writer(options);
    writer.add(std::vector<std::int32_t>(tokens, id));
    writer.finish();
    return std::make_shared<const TokenDataset>(TokenDataset::open(options.folder));
  }
  static TokenSourceOptions options(std::int64_t rows) {
    return {.row = {.seq_len = 4}, .rows = rows, .seed = 5, .shuffle = true};
  }

  TemporaryFolder folder_;
};

TEST_F(Mixture, HasTheSharesThatItWasTold) {
  MixtureSource source({{"a", dataset(1, 100), 3}, {"b", dataset(2, 90), 1}, {"c", dataset(3, 9), 1}}, options(250));
  std::map<std::int32_t, int> rows;
  std::vector<std::int32_t> order;
  for (int batch = 0; batch < 8; ++batch) {
    const TokenBatch tokens = source.next();
    ASSERT_EQ(tokens.ids.size(), 1000U);
    for (std::size_t at = 0; at < 1000; at += 4) {
      ++rows[tokens.ids[at]];
      order.push_back(tokens.ids[at]);
    }
  }
  EXPECT_EQ(rows, (std::map<std::int32_t, int>{{1, 1200}, {2, 400}, {3, 400}}));
  // In no fixed pattern: the second thousand is another.
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 1000, order.begin() + 1000));
  const auto epochs = source.epochs();
  EXPECT_EQ(epochs[0].dataset, "a");
  EXPECT_DOUBLE_EQ(epochs[0].done, 1200.0 / 24);
  EXPECT_DOUBLE_EQ(epochs[2].done, 400.0 / 2);
}

TEST_F(Mixture, EveryRowOfADatasetComesOnceAnEpoch) {
  const MixtureSource source({{"a", dataset(1, 500), 0.7}, {"b", dataset(2, 100), 0.3}}, options(10));
  std::set<std::uint64_t> seen;
  for (std::uint64_t index = 0; index < 3000; ++index) {
    const MixtureSource::Row row = source.row(index);
    if (row.part == 0) {
      EXPECT_TRUE(seen.insert(row.index).second) << index;
    }
  }
  EXPECT_EQ(seen.size(), 2100U);
  EXPECT_EQ(*seen.rbegin(), 2099U);
}

TEST_F(Mixture, GoesOnAnywhere) {
  MixtureSource source({{"a", dataset(1, 100), 0.7}, {"b", dataset(2, 90), 0.3}}, options(7));
  for (int i = 0; i < 300; ++i) static_cast<void>(source.next());
  const std::uint64_t position = source.position();
  const TokenBatch batch = source.next();
  MixtureSource again({{"a", dataset(1, 100, 8), 0.7}, {"b", dataset(2, 90, 8), 0.3}}, options(7));
  again.seek(position);
  EXPECT_EQ(again.read(2, 5).ids, std::vector<std::int32_t>(batch.ids.begin() + 8, batch.ids.begin() + 20));
  EXPECT_EQ(again.next().ids, batch.ids);
}

TEST_F(Mixture, WhatMakesNoSenseIsNamed) {
  const auto make = [&](double weight, std::uint64_t fingerprint) {
    const MixtureSource source({{"a", dataset(1, 100, 9), 1}, {"b", dataset(4, 100, fingerprint), weight}}, options(7));
  };
  expect_error(Status::invalid_argument, {"b", "0"}, [&] { make(0, 9); });
  expect_error(Status::invalid_argument, {"b", "thousandth"}, [&] { make(1e-6, 9); });
  expect_error(Status::invalid_argument, {"a", "b", "different tokenizers"}, [&] { make(1, 10); });
}

}  // namespace
}  // namespace qdelta::testing
