// Every collective against a plain computation of what all ranks contribute.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "distributed/ranks.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

// Empty, fewer than ranks, odd, around the sizes at which another way is taken or another piece begins.
const std::vector<std::size_t> kCounts{0, 1, 2, 3, 5, 7, 64, 1023, 2049, 4096, 4097, 8191, 262144, 1048583};

template <class T>
T plain_max(T a, T b) {
  return std::isnan(static_cast<double>(a)) || std::isnan(static_cast<double>(b)) ? std::numeric_limits<T>::quiet_NaN()
                                                                                  : std::max(a, b);
}

// x0 + x1 + ... in the order of the ranks.
template <class T>
std::vector<T> reduced(std::size_t count, Reduction reduction, std::uint64_t seed = 0) {
  std::vector<T> result = values_of<T>(0, count, seed);
  for (std::size_t rank = 1; rank < rank_count(); ++rank) {
    const std::vector<T> other = values_of<T>(rank, count, seed);
    for (std::size_t i = 0; i < count; ++i) {
      if (reduction == Reduction::max) {
        result[i] = plain_max(result[i], other[i]);
      } else if constexpr (std::is_integral_v<T>) {
        result[i] = static_cast<T>(static_cast<std::uint64_t>(result[i]) + static_cast<std::uint64_t>(other[i]));
      } else {
        result[i] += other[i];
      }
    }
  }
  return result;
}

// The bits of a sum in the order of the ranks; over NCCL, whose order is another, the sum to rounding.
template <class T>
::testing::AssertionResult is_sum(const std::vector<T>& got, const std::vector<T>& expected) {
  if (ranks.in_rank_order || std::is_integral_v<T> || rank_count() <= 2) return same_bits(got, expected);
  const std::vector<double> a(got.begin(), got.end());
  const std::vector<double> b(expected.begin(), expected.end());
  const double error = relative_error(a, b);
  if (error < std::numeric_limits<T>::epsilon()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative error " << error;
}

template <class T>
void check_all_reduce() {
  for (const std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    OnDevice<T> sum(values_of<T>(own_rank(), count));
    communicator().all_reduce(ranks.device, sum.span(), Reduction::sum);
    EXPECT_TRUE(is_sum(sum.values(), reduced<T>(count, Reduction::sum)));
    OnDevice<T> max(values_of<T>(own_rank(), count));
    communicator().all_reduce(ranks.device, max.span(), Reduction::max);
    EXPECT_TRUE(same_bits(max.values(), reduced<T>(count, Reduction::max)));
  }
}

TEST(AllReduce, Float32) { check_all_reduce<float>(); }
TEST(AllReduce, Float64) { check_all_reduce<double>(); }
TEST(AllReduce, Int64) { check_all_reduce<std::int64_t>(); }

TEST(AllReduce, HostMemoryBesideTheDevice) {
  std::vector<double> data = values_of<double>(own_rank(), 5000);
  communicator().all_reduce(Device{}, data, Reduction::sum);
  EXPECT_TRUE(same_bits(data, reduced<double>(5000, Reduction::sum)));
}

TEST(AllReduce, MaximumWithNanIsNan) {
  for (std::size_t rank = 0; rank < rank_count(); ++rank) {
    std::vector<float> data{1.0F, static_cast<float>(own_rank())};
    if (rank == own_rank()) data[0] = std::numeric_limits<float>::quiet_NaN();
    communicator().all_reduce(Device{}, data, Reduction::max);
    EXPECT_TRUE(std::isnan(data[0]));
    EXPECT_EQ(data[1], static_cast<float>(rank_count() - 1));
  }
}

std::vector<float> shard_of(const std::vector<float>& all, std::size_t rank) {
  const std::size_t count = all.size() / rank_count();
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * count);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

TEST(ReduceScatter, GivesEachRankItsShard) {
  for (const std::size_t shard_count : kCounts) {
    SCOPED_TRACE(shard_count);
    const std::size_t count = shard_count * rank_count();
    OnDevice<float> data(values_of<float>(own_rank(), count));
    OnDevice<float> shard(shard_count);
    communicator().reduce_scatter(ranks.device, data.span(), shard.span());
    EXPECT_TRUE(is_sum(shard.values(), shard_of(reduced<float>(count, Reduction::sum), own_rank())));
    EXPECT_TRUE(same_bits(data.values(), values_of<float>(own_rank(), count)));
  }
}

TEST(ReduceScatter, InPlaceWritesItsShardAlone) {
  const std::size_t shard_count = 300001;
  const std::size_t count = shard_count * rank_count();
  OnDevice<float> data(values_of<float>(own_rank(), count));
  communicator().reduce_scatter(ranks.device, data.span(), data.span().subspan(own_rank() * shard_count, shard_count));
  const std::vector<float> sums = reduced<float>(count, Reduction::sum);
  const std::vector<float> before = values_of<float>(own_rank(), count);
  const std::vector<float> after = data.values();
  for (std::size_t rank = 0; rank < rank_count(); ++rank) {
    const std::vector<float> expected = shard_of(rank == own_rank() ? sums : before, rank);
    if (rank == own_rank()) {
      EXPECT_TRUE(is_sum(shard_of(after, rank), expected));
    } else {
      EXPECT_TRUE(same_bits(shard_of(after, rank), expected));
    }
  }
}

TEST(ReduceScatter, Large) {
  const std::size_t count = (large_mebibytes(72) << 18U) / rank_count() * rank_count();
  OnDevice<float> data(values_of<float>(own_rank(), count));
  OnDevice<float> shard(count / rank_count());
  communicator().reduce_scatter(ranks.device, data.span(), shard.span());
  EXPECT_TRUE(is_sum(shard.values(), shard_of(reduced<float>(count, Reduction::sum), own_rank())));
}

// Whoever comes late.
TEST(ReduceScatter, GivesTheSameBitsEachTime) {
  const std::size_t count = 100003 * rank_count();
  OnDevice<float> data(values_of<float>(own_rank(), count));
  OnDevice<float> shard(100003);
  std::vector<float> first;
  Random random(own_rank());
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 3000)));
    communicator().reduce_scatter(ranks.device, data.span(), shard.span());
    if (i == 0) first = shard.values();
    EXPECT_TRUE(same_bits(shard.values(), first));
  }
}

// An element's sum does not depend on where in which buffer it is, nor on the collective.
TEST(ReduceScatter, BucketsDoNotChangeBits) {
  if (!ranks.in_rank_order) GTEST_SKIP() << "NCCL does not promise it";
  const std::size_t shard_count = 50021;
  const std::vector<float> values = values_of<float>(own_rank(), shard_count * rank_count());
  OnDevice<float> whole(values);
  communicator().all_reduce(ranks.device, whole.span(), Reduction::sum);
  const std::size_t bucket = 1000;
  std::vector<float> sums(values.size());
  for (std::size_t at = 0; at < values.size(); at += bucket * rank_count()) {
    const std::size_t length = std::min(bucket, (values.size() - at) / rank_count());
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
    OnDevice<float> data(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(length * rank_count())));
    OnDevice<float> shard(length);
    communicator().reduce_scatter(ranks.device, data.span(), shard.span());
    communicator().all_gather(ranks.device, std::as_bytes(shard.span()), std::as_writable_bytes(data.span()));
    const std::vector<float> gathered = data.values();
    std::copy(gathered.begin(), gathered.end(), sums.begin() + static_cast<std::ptrdiff_t>(at));
  }
  EXPECT_TRUE(same_bits(sums, whole.values()));
}

void check_all_gather(std::size_t bytes) {
  SCOPED_TRACE(bytes);
  std::vector<unsigned char> expected;
  for (std::size_t rank = 0; rank < rank_count(); ++rank) {
    const std::vector<unsigned char> part = values_of<unsigned char>(rank, bytes);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  OnDevice<unsigned char> shard(values_of<unsigned char>(own_rank(), bytes));
  OnDevice<unsigned char> data(bytes * rank_count());
  communicator().all_gather(ranks.device, std::as_bytes(shard.span()), std::as_writable_bytes(data.span()));
  EXPECT_TRUE(same_bits(data.values(), expected));

  std::vector<unsigned char> own(bytes * rank_count());
  const std::vector<unsigned char> part = values_of<unsigned char>(own_rank(), bytes);
  std::copy(part.begin(), part.end(), own.begin() + static_cast<std::ptrdiff_t>(own_rank() * bytes));
  OnDevice<unsigned char> in_place(own);
  const std::span<std::byte> memory = std::as_writable_bytes(in_place.span());
  communicator().all_gather(ranks.device, memory.subspan(own_rank() * bytes, bytes), memory);
  EXPECT_TRUE(same_bits(in_place.values(), expected));
}

TEST(AllGather, PutsShardsSideBySide) {
  for (const std::size_t bytes : kCounts) check_all_gather(bytes);
}

TEST(AllGather, Large) { check_all_gather((large_mebibytes(65) << 20U) + 1); }

TEST(Broadcast, FromEveryRank) {
  for (int root = 0; root < communicator().size(); ++root) {
    for (const std::size_t bytes : kCounts) {
      SCOPED_TRACE(bytes);
      OnDevice<unsigned char> data(values_of<unsigned char>(own_rank(), bytes));
      communicator().broadcast(ranks.device, std::as_writable_bytes(data.span()), root);
      EXPECT_TRUE(same_bits(data.values(), values_of<unsigned char>(static_cast<std::size_t>(root), bytes)));
    }
  }
}

TEST(Broadcast, Large) {
  const std::size_t bytes = (large_mebibytes(130) << 20U) + 1;
  OnDevice<unsigned char> data(values_of<unsigned char>(own_rank(), bytes));
  communicator().broadcast(ranks.device, std::as_writable_bytes(data.span()), communicator().size() - 1);
  EXPECT_TRUE(same_bits(data.values(), values_of<unsigned char>(rank_count() - 1, bytes)));
}

// Nobody leaves before the last has come: all clocks are of one machine.
TEST(Barrier, WaitsForAll) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  for (std::size_t late = 0; late < rank_count(); ++late) {
    if (late == own_rank()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<std::int64_t> came{now()};
    communicator().barrier();
    const std::int64_t left = now();
    communicator().all_reduce(Device{}, came, Reduction::max);
    EXPECT_GE(left, came[0]);
  }
}

TEST(Ranks, AreNumbered) {
  std::vector<int> all(rank_count());
  const std::vector<int> own{communicator().rank()};
  communicator().all_gather(Device{}, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i));
  EXPECT_EQ(communicator().local_rank(), communicator().rank());  // the tests run on one machine
  EXPECT_EQ(communicator().local_size(), communicator().size());
}

TEST(Ranks, SizesThatDoNotFitAreRefused) {
  std::vector<float> data(rank_count() * 3 + 1);
  std::vector<float> shard(3);
  expect_error(Status::invalid_argument, {"reduce_scatter", "shards of 3"}, [&] {
    communicator().reduce_scatter(Device{}, data, shard);
    return 0;
  });
  expect_error(Status::invalid_argument, {"all_gather", "shards of 12"}, [&] {
    communicator().all_gather(Device{}, std::as_bytes(std::span(shard)), std::as_writable_bytes(std::span(data)));
    return 0;
  });
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(data));
  const int size = communicator().size();
  expect_error(Status::invalid_argument, {"broadcast"}, [&] {
    communicator().broadcast(Device{}, bytes, size);
    return 0;
  });
  for (const int peer : {-2, communicator().rank(), size}) {
    expect_error(Status::invalid_argument, {"send"}, [&] {
      communicator().send(Device{}, bytes, peer);
      return 0;
    });
    expect_error(Status::invalid_argument, {"recv"}, [&] {
      communicator().recv(Device{}, bytes, peer);
      return 0;
    });
  }
}

}  // namespace
}  // namespace qdelta::testing
