#include "block.h"

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
namespace {

namespace context = boost::context;

constexpr int kLanes = 32;
constexpr std::size_t kStackBytes = std::size_t{256} << 10U;
constexpr std::size_t kExchangeBytes = 64;  // of a lane

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "emulator: block (%u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, threadIdx.x, why.c_str());
  std::abort();
}

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

struct Thread {
  context::fiber fiber;
  dim3 index;
  bool done = false;
  std::uint64_t exchanges = 0, barriers = 0;  // that this thread has come to
  std::deque<std::vector<Copy>> groups;       // committed
  std::vector<Copy> copies;                   // not yet
};

// A lane may be one exchange ahead of another at most, so two buffers are enough.
struct Exchange {
  unsigned char data[kLanes][kExchangeBytes];
  const char* name = nullptr;
  std::size_t bytes = 0;
};
struct Warp {
  Exchange exchange[2];
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<int> sums[2];  // of block_sum, by thread
};

Block block;
Thread* running = nullptr;
context::fiber scheduler;
std::vector<unsigned char> shared_memory;
std::mutex one_grid;  // kernels of other host threads wait: what is __shared__ exists once

int number_of(const Thread& thread) { return static_cast<int>(&thread - block.threads.data()); }

void yield() {
  Thread* self = running;
  scheduler = std::move(scheduler).resume();
  running = self;
  threadIdx = self->index;
}

// Lets others run until all living threads of [begin, end) have come as far as `count` says.
template <class Count>
void wait_for_others(int begin, int end, std::uint64_t target, const Count& count) {
  const auto all_there = [&] {
    for (int i = begin; i < end; ++i) {
      const Thread& thread = block.threads[static_cast<std::size_t>(i)];
      if (!thread.done && count(thread) < target) return false;
    }
    return true;
  };
  while (!all_there()) yield();
}

// Runs all threads until they have ended. A round in which nobody moved is a deadlock.
void run_block(const std::function<void()>& body) {
  const bool reverse = [] {
    const char* order = std::getenv("QDELTA_EMULATOR_ORDER");
    return order != nullptr && std::strcmp(order, "reverse") == 0;
  }();
  static context::pooled_fixedsize_stack stacks(kStackBytes);
  for (Thread& thread : block.threads) {
    thread.done = false;
    thread.exchanges = thread.barriers = 0;
    thread.groups.clear();
    thread.copies.clear();
    thread.fiber = context::fiber(std::allocator_arg, context::pooled_fixedsize_stack(stacks),
                                  [&body, &thread](context::fiber&& from) {
                                    scheduler = std::move(from);
                                    body();
                                    thread.done = true;
                                    return std::move(scheduler);
                                  });
  }
  const auto count = static_cast<int>(block.threads.size());
  int alive = count;
  while (alive > 0) {
    std::uint64_t progress = 0;
    for (int i = 0; i < count; ++i) {
      Thread& thread = block.threads[static_cast<std::size_t>(reverse ? count - 1 - i : i)];
      if (thread.done) continue;
      const std::uint64_t before = thread.exchanges + thread.barriers;
      running = &thread;
      threadIdx = thread.index;
      context::fiber returned = std::move(thread.fiber).resume();
      if (!thread.done) thread.fiber = std::move(returned);
      if (thread.done) --alive;
      progress += thread.exchanges + thread.barriers - before + (thread.done ? 1 : 0);
    }
    // A thread that was waiting may find its condition true only in the next round.
    static int idle = 0;
    idle = progress == 0 ? idle + 1 : 0;
    if (alive > 0 && idle > 2) give_up("threads wait for each other: a barrier that some never reach");
  }
}

}  // namespace

void run_grid(dim3 grid, dim3 block_size, std::size_t shared_bytes, const std::function<void()>& body) {
  const std::lock_guard lock(one_grid);
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  block.threads = std::vector<Thread>(threads);
  block.warps = std::vector<Warp>((threads + kLanes - 1) / kLanes);
  for (auto& sums : block.sums) sums.assign(threads, 0);
  for (unsigned i = 0; i < threads; ++i) {
    block.threads[i].index = dim3(i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y);
  }
  shared_memory.assign(shared_bytes + 2048, 0xff);  // NaN
  gridDim = grid;
  blockDim = block_size;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        std::memset(shared_memory.data(), 0xff, shared_memory.size());
        run_block(body);
      }
    }
  }
}

unsigned char* dynamic_shared() {
  const auto address = reinterpret_cast<std::uintptr_t>(shared_memory.data());
  return shared_memory.data() + ((address + 1023) / 1024 * 1024 - address);
}

void block_barrier() { (void)block_sum(0); }

int block_sum(int value) {
  Thread& self = *running;
  std::vector<int>& sums = block.sums[self.barriers % 2];
  sums[static_cast<std::size_t>(number_of(self))] = value;
  const std::uint64_t target = ++self.barriers;
  const auto count = static_cast<int>(block.threads.size());
  wait_for_others(0, count, target, [](const Thread& thread) { return thread.barriers; });
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    if (!block.threads[static_cast<std::size_t>(i)].done) sum += sums[static_cast<std::size_t>(i)];
  }
  return sum;
}

int lane() { return number_of(*running) % kLanes; }

const unsigned char* warp_exchange(const char* name, const void* data, std::size_t bytes) {
  Thread& self = *running;
  const int first = number_of(self) / kLanes * kLanes;
  const int end = std::min(first + kLanes, static_cast<int>(block.threads.size()));
  Exchange& exchange = block.warps[static_cast<std::size_t>(first / kLanes)].exchange[self.exchanges % 2];
  const std::uint64_t target = ++self.exchanges;
  bool is_first = true;
  for (int i = first; i < end; ++i) {
    const Thread& other = block.threads[static_cast<std::size_t>(i)];
    if (&other != &self && !other.done && other.exchanges >= target) is_first = false;
  }
  if (bytes > kExchangeBytes) give_up(std::string(name) + ": too much data");
  if (is_first) {
    std::memset(exchange.data, 0, sizeof(exchange.data));
    exchange.name = name;
    exchange.bytes = bytes;
  } else if (std::strcmp(exchange.name, name) != 0 || exchange.bytes != bytes) {
    give_up(std::string("lanes of a warp meet in ") + exchange.name + " and " + name);
  }
  unsigned char* all = &exchange.data[0][0];
  std::memcpy(all + static_cast<std::size_t>(lane()) * bytes, data, bytes);
  wait_for_others(first, end, target, [](const Thread& thread) { return thread.exchanges; });
  return all;
}

void copy_later(void* to, const void* from, bool valid) { running->copies.push_back({to, from, valid}); }

void commit_copies() { running->groups.push_back(std::exchange(running->copies, {})); }

void wait_for_copies(int newest) {
  auto& groups = running->groups;
  for (; groups.size() > static_cast<std::size_t>(newest); groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      if (copy.valid) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
  }
}

}  // namespace emulator
