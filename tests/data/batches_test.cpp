// Packing: every token once an epoch, targets, boundaries, orders, and going on exactly where it was.
#include "data/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/permutation.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;
using testing::write_counting;
using Ids = std::vector<std::int32_t>;
using Offsets = std::vector<std::int64_t>;

// Documents whose tokens tell their place: the id is the position.
class Batches : public ::testing::Test {
 protected:
  Batches() {
    std::vector<std::int64_t> lengths;
    Random random(8);
    for (int i = 0; i < 100; ++i) lengths.push_back(random.integer(1, 60));
    std::int64_t position = 0;
    for (const std::int64_t length : lengths) {
      document_starts_.insert(position);
      position += length;
    }
    write_counting(folder_.path(), lengths, 1000000, 333);
    dataset_ = std::make_shared<TokenDataset>(TokenDataset::open(folder_.path()));
  }
  [[nodiscard]] std::int64_t rows_per_epoch(const TokenSourceOptions& options) const {
    return (dataset_->tokens() - 1) / options.row.seq_len;
  }
  [[nodiscard]] TokenSource source(TokenSourceOptions options) const { return TokenSource(dataset_, options); }
  // What holds for every batch; `rows` of `seq_len`.
  void check(const TokenBatch& batch, std::int64_t rows, const RowOptions& row) const {
    ASSERT_EQ(static_cast<std::int64_t>(batch.ids.size()), rows * row.seq_len);
    ASSERT_EQ(batch.targets.size(), batch.ids.size());
    EXPECT_EQ(batch.loss_tokens, rows * row.seq_len);
    for (std::size_t i = 0; i < batch.ids.size(); ++i) ASSERT_EQ(batch.targets[i], batch.ids[i] + 1);
    ASSERT_EQ(batch.offsets.front(), 0);
    ASSERT_EQ(batch.offsets.back(), rows * row.seq_len);
    // The boundaries, said in another way: token by token.
    Offsets expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int64_t since = 0;
      for (std::int64_t i = 0; i < row.seq_len; ++i) {
        const std::int32_t id = batch.ids[static_cast<std::size_t>(r * row.seq_len + i)];
        const bool document = row.reset_at_documents && document_starts_.contains(id);
        const bool full = row.context_len > 0 && since == row.context_len;
        if (i == 0 || document || full) {
          expected.push_back(r * row.seq_len + i);
          since = 0;
        }
        ++since;
      }
    }
    expected.push_back(rows * row.seq_len);
    ASSERT_EQ(batch.offsets, expected);
  }

  const TemporaryFolder folder_;
  std::shared_ptr<const TokenDataset> dataset_;
  std::set<std::int64_t> document_starts_;
};

TEST_F(Batches, EveryTokenOnceAnEpoch) {
  for (const bool shuffle : {true, false}) {
    TokenSourceOptions options;
    options.row.seq_len = 17;
    options.rows = 1;
    options.shuffle = shuffle;
    TokenSource rows = source(options);
    const std::int64_t per_epoch = rows_per_epoch(options);
    for (int epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(rows.position(), static_cast<std::uint64_t>(epoch * per_epoch));
      std::map<std::int32_t, int> seen;
      for (std::int64_t i = 0; i < per_epoch; ++i) {
        for (const std::int32_t id : rows.next().ids) ++seen[id];
      }
      // One run of tokens without a gap, each once; less than a row is left over.
      ASSERT_EQ(static_cast<std::int64_t>(seen.size()), per_epoch * 17);
      for (const auto& [id, times] : seen) ASSERT_EQ(times, 1) << id;
      EXPECT_EQ(seen.rbegin()->first - seen.begin()->first + 1, per_epoch * 17);
      if (!shuffle) {
        EXPECT_EQ(seen.begin()->first, 0);
      }
    }
  }
}

TEST_F(Batches, WhatIsLeftOverChanges) {
  TokenSourceOptions options;
  options.row.seq_len = 1000;
  options.rows = 1;
  TokenSource rows = source(options);
  ASSERT_GT((dataset_->tokens() - 1) % 1000, 100);
  std::set<std::int32_t> first;
  for (int epoch = 0; epoch < 10; ++epoch) {
    std::int32_t smallest = INT32_MAX;
    for (std::int64_t i = 0; i < rows_per_epoch(options); ++i) smallest = std::min(smallest, rows.next().ids.front());
    first.insert(smallest);
  }
  EXPECT_GT(first.size(), 5U);
}

TEST_F(Batches, TargetsAndBoundaries) {
  for (const std::int64_t seq_len : {1, 7, 64, 500}) {
    for (const bool reset : {false, true}) {
      for (const std::int64_t context : {0, 1, 10, 64, 1000}) {
        TokenSourceOptions options;
        options.row = {seq_len, reset, context};
        options.rows = 3;
        TokenSource rows = source(options);
        for (int i = 0; i < 20; ++i) check(rows.next(), 3, options.row);
      }
    }
  }
}

TEST_F(Batches, ResumesExactly) {
  TokenSourceOptions options;
  options.row = {32, true, 20};
  options.rows = 5;
  options.seed = 7;
  TokenSource whole = source(options);
  std::vector<TokenBatch> batches;
  std::vector<std::uint64_t> positions;
  for (int i = 0; i < 60; ++i) {
    positions.push_back(whole.position());
    batches.push_back(whole.next());
  }
  EXPECT_GT(whole.position(), static_cast<std::uint64_t>(2 * rows_per_epoch(options)));
  for (const std::size_t at : {0U, 1U, 13U, 20U, 59U}) {
    TokenSource again = source(options);
    again.seek(positions[at]);
    for (std::size_t i = at; i < batches.size(); ++i) {
      EXPECT_EQ(again.position(), positions[i]);
      const TokenBatch batch = again.next();
      ASSERT_EQ(batch.ids, batches[i].ids);
      ASSERT_EQ(batch.targets, batches[i].targets);
      ASSERT_EQ(batch.offsets, batches[i].offsets);
    }
  }
}

TEST_F(Batches, SeedsAndEpochsDiffer) {
  const auto order = [&](std::uint64_t seed, int epoch) {
    TokenSourceOptions options;
    options.row.seq_len = 16;
    options.rows = 1;
    options.seed = seed;
    TokenSource rows = source(options);
    rows.seek(static_cast<std::uint64_t>(epoch * rows_per_epoch(options)));
    Ids first;
    for (std::int64_t i = 0; i < rows_per_epoch(options); ++i) first.push_back(rows.next().ids.front() / 16);
    return first;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  Ids sorted = order(1, 0);
  EXPECT_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
}

TEST_F(Batches, ValidationIsTheStart) {
  const RowOptions row{50, true, 0};
  const ValidationRows all(dataset_, row, 4);
  EXPECT_EQ(all.rows(), (dataset_->tokens() - 1) / 50);
  const ValidationRows some(dataset_, row, 4, 10);
  EXPECT_EQ(some.rows(), 10);
  EXPECT_EQ(some.batches(), 3);
  Ids ids;
  for (std::int64_t i = 0; i < some.batches(); ++i) {
    const TokenBatch batch = some.batch(i);
    check(batch, i < 2 ? 4 : 2, row);
    EXPECT_EQ(batch.ids, all.batch(i).ids.size() == batch.ids.size() ? all.batch(i).ids : batch.ids);
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  for (std::size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], static_cast<std::int32_t>(i));
  expect_error(Status::invalid_argument, {"batch 3"}, [&] { return some.batch(3); });
}

TEST_F(Batches, SaysWhatItIs) {
  TokenSourceOptions options;
  options.row = {128, true, 64};
  options.seed = 9;
  const TokenSource rows = source(options);
  for (const char* piece : {"100 documents", "rows of 128", "at most 64", "seed 9"}) {
    EXPECT_NE(rows.describe().find(piece), std::string::npos) << rows.describe();
  }
  EXPECT_EQ(rows.vocab_size(), 1000000);
}

TEST_F(Batches, RefusesWhatCannotBe) {
  const auto refuse = [&](const std::vector<std::string>& pieces, const TokenSourceOptions& options) {
    expect_error(Status::invalid_argument, pieces, [&] { return TokenSource(dataset_, options); });
  };
  TokenSourceOptions options;
  options.row.seq_len = 0;
  refuse({"at least one token"}, options);
  options.row.seq_len = dataset_->tokens();
  refuse({"tokens", "the token after it"}, options);
  options.row.seq_len = dataset_->tokens() - 1;
  EXPECT_NE(source(options).describe().find(" 1 rows of"), std::string::npos) << source(options).describe();
  options.row.seq_len = 8;
  options.row.context_len = -1;
  refuse({"context"}, options);
  options.row.context_len = 0;
  options.rows = 0;
  refuse({"at least one row"}, options);
  options.rows = 1;
  expect_error(Status::invalid_argument, {"at least one row"}, [&] { return ValidationRows(dataset_, {8}, 0); });
}

TEST(Permutation, IsOne) {
  for (const std::uint64_t size : {1U, 2U, 3U, 4U, 5U, 16U, 17U, 100U, 1000U, 4097U}) {
    for (const std::uint64_t seed : {0U, 1U, 99U}) {
      const Permutation order(size, seed);
      std::vector<bool> seen(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t to = order(i);
        ASSERT_LT(to, size);
        ASSERT_FALSE(seen[to]);
        seen[to] = true;
      }
    }
  }
}

TEST(Permutation, HugeRangesTakeNoMemory) {
  const Permutation order(std::uint64_t{1} << 60U, 3);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(order(i));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_LT(*seen.rbegin(), std::uint64_t{1} << 60U);
}

// Each place should get each index about equally often.
TEST(Permutation, IsEven) {
  constexpr std::uint64_t kSize = 10;
  constexpr int kSeeds = 20000;
  std::vector<std::vector<int>> count(kSize, std::vector<int>(kSize));
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Permutation order(kSize, static_cast<std::uint64_t>(seed));
    for (std::uint64_t i = 0; i < kSize; ++i) ++count[i][order(i)];
  }
  for (const auto& row : count) {
    for (const int n : row) EXPECT_NEAR(n, kSeeds / static_cast<int>(kSize), 250);  // more than five deviations
  }
}

}  // namespace
}  // namespace qdelta
