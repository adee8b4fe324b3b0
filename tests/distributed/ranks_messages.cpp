// Messages between two ranks, and operations that go on while the rank does something else.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "distributed/ranks.h"
#include "files.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Bytes = std::vector<unsigned char>;

int next_rank() { return (communicator().rank() + 1) % communicator().size(); }
int previous_rank() { return (communicator().rank() + communicator().size() - 1) % communicator().size(); }
#define QDELTA_NEEDS_RANKS(n) \
  if (communicator().size() < (n)) GTEST_SKIP() << "takes " << (n) << " ranks"

TEST(Messages, RoundTheRing) {
  QDELTA_NEEDS_RANKS(2);
  for (const std::size_t bytes : {0, 1, 4095, 4097, 1 << 20, 5000003}) {
    SCOPED_TRACE(bytes);
    OnDevice<unsigned char> out(values_of<unsigned char>(own_rank(), bytes));
    OnDevice<unsigned char> in(bytes);
    communicator().send_recv(ranks.device, std::as_bytes(out.span()), next_rank(), std::as_writable_bytes(in.span()),
                             previous_rank());
    EXPECT_TRUE(same_bits(in.values(), values_of<unsigned char>(static_cast<std::size_t>(previous_rank()), bytes)));
  }
}

// As the parts of a sequence do: the first receives nothing, the last sends nothing.
TEST(Messages, DownTheRow) {
  QDELTA_NEEDS_RANKS(2);
  const int rank = communicator().rank();
  const bool last = rank == communicator().size() - 1;
  OnDevice<float> out(values_of<float>(own_rank(), 1000));
  OnDevice<float> in(1000);
  communicator().send_recv(ranks.device, std::as_bytes(out.span()), last ? Communicator::kNone : rank + 1,
                           std::as_writable_bytes(in.span()), rank == 0 ? Communicator::kNone : rank - 1);
  EXPECT_TRUE(same_bits(in.values(), rank == 0 ? std::vector<float>(1000) : values_of<float>(own_rank() - 1, 1000)));

  // A running sum: each waits for the one before it.
  OnDevice<float> carried(std::vector<float>(5000, 0));
  if (rank > 0) communicator().recv(ranks.device, std::as_writable_bytes(carried.span()), rank - 1);
  std::vector<float> sum = carried.values();
  for (float& value : sum) value += static_cast<float>(rank + 1);
  OnDevice<float> passed_on(sum);
  if (!last) communicator().send(ranks.device, std::as_bytes(passed_on.span()), rank + 1);
  EXPECT_EQ(sum[4999], static_cast<float>((rank + 1) * (rank + 2) / 2));
}

TEST(Messages, OfAPairArriveInOrder) {
  QDELTA_NEEDS_RANKS(2);
  std::vector<std::vector<float>> received(20, std::vector<float>(30000));
  std::vector<Request> requests;
  std::vector<std::vector<float>> sent;
  for (std::size_t i = 0; i < received.size(); ++i) sent.push_back(values_of<float>(own_rank(), 30000, i));
  for (std::size_t i = 0; i < received.size(); ++i) {
    requests.push_back(communicator().send_async(Device{}, std::as_bytes(std::span(sent[i])), next_rank()));
    requests.push_back(
        communicator().recv_async(Device{}, std::as_writable_bytes(std::span(received[i])), previous_rank()));
  }
  while (!requests.empty()) requests.pop_back();  // which waits
  for (std::size_t i = 0; i < received.size(); ++i) {
    EXPECT_TRUE(same_bits(received[i], values_of<float>(static_cast<std::size_t>(previous_rank()), 30000, i)));
  }
}

TEST(Messages, Large) {
  QDELTA_NEEDS_RANKS(2);
  const std::size_t bytes = (large_mebibytes(130) << 20U) + 3;
  const Bytes out = values_of<unsigned char>(0, bytes);
  if (own_rank() == 0) communicator().send(Device{}, std::as_bytes(std::span(out)), 1);
  if (own_rank() != 1) return;
  Bytes in(bytes);
  communicator().recv(Device{}, std::as_writable_bytes(std::span(in)), 0);
  EXPECT_TRUE(same_bits(in, out));
}

// A rank that waits for a message before it joins a collective gets it, though the sender is in that collective
// already.
TEST(Messages, DoNotWaitForCollectives) {
  QDELTA_NEEDS_RANKS(2);
  const std::size_t shard_count = 1 << 20;
  std::vector<float> data = values_of<float>(own_rank(), shard_count * rank_count());
  std::vector<float> shard(shard_count);
  std::vector<float> message = values_of<float>(0, 1 << 20);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(message));
  if (own_rank() == 1) communicator().recv(Device{}, bytes, 0);
  Request request = communicator().reduce_scatter_async(Device{}, data, shard);
  if (own_rank() == 0) communicator().send(Device{}, bytes, 1);
  request.wait();
  EXPECT_TRUE(same_bits(message, values_of<float>(0, 1 << 20)));
}

TEST(Requests, AreWaitedForInAnyOrder) {
  const std::size_t shard_count = 30011;
  std::vector<OnDevice<float>> data;
  std::vector<OnDevice<float>> shards;
  for (std::size_t i = 0; i < 12; ++i) {
    data.emplace_back(values_of<float>(own_rank(), shard_count * rank_count(), i));
    shards.emplace_back(shard_count);
  }
  std::vector<Request> requests;
  for (std::size_t i = 0; i < data.size(); ++i) {
    requests.push_back(communicator().reduce_scatter_async(ranks.device, data[i].span(), shards[i].span()));
  }
  for (std::size_t i = requests.size(); i-- > 0;) requests[i].wait();
  std::vector<Request> gathers;
  for (std::size_t i = 0; i < data.size(); ++i) {
    gathers.push_back(communicator().all_gather_async(ranks.device, std::as_bytes(shards[i].span()),
                                                      std::as_writable_bytes(data[i].span())));
  }
  for (Request& request : gathers) request.wait();
  for (std::size_t i = 0; i < data.size(); ++i) {
    OnDevice<float> expected(values_of<float>(own_rank(), shard_count * rank_count(), i));
    communicator().all_reduce(ranks.device, expected.span(), Reduction::sum);
    const std::vector<float> got = data[i].values();
    const std::vector<float> sums = expected.values();
    EXPECT_LT(
        relative_error(std::vector<double>(got.begin(), got.end()), std::vector<double>(sums.begin(), sums.end())),
        1e-6);
  }
}

// Rank 0 starts an operation and then calls nothing of the communicator until the others are through with theirs, which
// it learns from a file. They never would be if data moved only in wait().
TEST(Requests, GoOnWhileTheRankComputes) {
  QDELTA_NEEDS_RANKS(2);
  if (ranks.device.gpu != nullptr) GTEST_SKIP() << "the others' end shows when their streams are asked";
  const std::size_t shard = 8 << 20;
  Bytes name(200);
  std::unique_ptr<TemporaryFolder> folder;
  if (own_rank() == 0) {
    folder = std::make_unique<TemporaryFolder>();
    std::copy(folder->path().begin(), folder->path().end(), name.begin());
  }
  communicator().broadcast(Device{}, std::as_writable_bytes(std::span(name)), 0);
  const std::string path(reinterpret_cast<const char*>(name.data()));
  const Bytes own = values_of<unsigned char>(own_rank(), shard);
  Bytes all(shard * rank_count());
  Request request =
      communicator().all_gather_async(Device{}, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  if (own_rank() == 0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (folder->count() < static_cast<std::ptrdiff_t>(rank_count() - 1) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(folder->count(), static_cast<std::ptrdiff_t>(rank_count() - 1));
    request.wait();
  } else {
    request.wait();
    write_file(path + "/" + std::to_string(own_rank()), "done");
  }
  EXPECT_EQ(all[shard], values_of<unsigned char>(1, shard)[0]);
  communicator().barrier();
}

}  // namespace
}  // namespace qdelta::testing
