// Ways in which a rank can fail while the others wait for it in a collective.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/error.h"
#include "distributed/ranks.h"
#include "distributed/ranks_modes.h"

namespace qdelta::testing {
namespace {

// Collectives without end.
[[noreturn]] void go_on() {
  std::vector<float> data(rank_count() << 16U);
  while (true) communicator().all_reduce(Device{}, data, Reduction::sum);
}

// With a bucket under way that the others have not started: they wait for a message first.
void fail_with_a_bucket_under_way() {
  std::vector<float> data(rank_count() << 20U);
  std::vector<float> shard(std::size_t{1} << 20U);
  const Request request = communicator().reduce_scatter_async(Device{}, data, shard);
  throw std::runtime_error("the disk is full");
}

void fail_rank_1(std::string_view how) {
  if (how == "abort") communicator().abort("the disk is full");
  if (how == "kill") std::raise(SIGKILL);
  if (how == "exit") std::_Exit(3);
  if (how == "throw") throw std::runtime_error("the disk is full");
  if (how == "throw_and_abort") {
    try {
      fail_with_a_bucket_under_way();
    } catch (const std::exception& error) {
      communicator().abort(error.what());
    }
  }
  if (how == "launcher") {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // it passes on what the ranks print
    ::kill(::getppid(), SIGKILL);
  }
}

}  // namespace

int fail_as(std::string_view how) {
  fmt::print("process {}\n", ::getpid());
  std::fflush(stdout);
  std::vector<float> data(1000);
  for (int i = 0; i < 10; ++i) communicator().all_reduce(Device{}, data, Reduction::sum);
  if (how == "leave" && own_rank() == 1) return 0;
  if (own_rank() == 1) fail_rank_1(how);
  if (how == "throw_and_abort") communicator().recv(Device{}, std::as_writable_bytes(std::span(data)), 1);
  go_on();
}

}  // namespace qdelta::testing
