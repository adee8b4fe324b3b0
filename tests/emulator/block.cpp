#include "block.h"

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>

#include <algorithm>
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
constexpr std::size_t kSharedAlignment = 1024;

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

struct Block;
struct Thread {
  Block* block = nullptr;
  context::fiber fiber;
  dim3 index;
  bool done = false;
  std::uint64_t exchanges = 0, barriers = 0, cluster_barriers = 0;  // that this thread has come to
  std::deque<std::vector<Copy>> groups;                             // committed
  std::vector<Copy> copies;                                         // not yet
  std::vector<std::function<void()>> products, stores;
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

struct NamedBarrier {
  int arrived = 0, threads = 0;
  std::uint64_t times = 0;
};

struct Block {
  dim3 index;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<int> sums[2];  // of block_sum, by thread
  NamedBarrier named[16];
  std::vector<unsigned char> memory;  // dynamic shared memory

  [[nodiscard]] unsigned char* shared() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (kSharedAlignment - address % kSharedAlignment) % kSharedAlignment;
  }
};

// Of the copy engine, not yet done.
struct EngineCopy {
  Mbarrier* barrier;
  int bytes;
  std::function<void()> copy;
};

std::vector<Block> cluster;  // the blocks that run
Thread* running = nullptr;
context::fiber scheduler;
std::vector<EngineCopy> engine_copies;
std::uint64_t events = 0;  // what happened beside barriers that threads are counted at
std::mutex one_grid;       // kernels of other host threads wait: what is __shared__ exists once

bool runs_late() {
  const char* order = std::getenv("QDELTA_EMULATOR_ORDER");
  return order != nullptr && std::strcmp(order, "reverse") == 0;
}

int number_of(const Thread& thread) { return static_cast<int>(&thread - thread.block->threads.data()); }

void resume(Thread& thread) {
  running = &thread;
  threadIdx = thread.index;
  blockIdx = thread.block->index;
  context::fiber returned = std::move(thread.fiber).resume();
  if (!thread.done) thread.fiber = std::move(returned);
}

void yield() {
  Thread* self = running;
  scheduler = std::move(scheduler).resume();
  running = self;
  threadIdx = self->index;
  blockIdx = self->block->index;
}

// Lets others run until all living threads of [begin, end) have come as far as `count` says.
template <class Count>
void wait_for_others(const Block& block, int begin, int end, std::uint64_t target, const Count& count) {
  const auto all_there = [&] {
    for (int i = begin; i < end; ++i) {
      const Thread& thread = block.threads[static_cast<std::size_t>(i)];
      if (!thread.done && count(thread) < target) return false;
    }
    return true;
  };
  while (!all_there()) yield();
}

void start(Thread& thread, const std::function<void()>& body) {
  static context::pooled_fixedsize_stack stacks(kStackBytes);
  thread.done = false;
  thread.exchanges = thread.barriers = thread.cluster_barriers = 0;
  thread.groups.clear();
  thread.copies.clear();
  thread.products.clear();
  thread.stores.clear();
  thread.fiber = context::fiber(std::allocator_arg, context::pooled_fixedsize_stack(stacks),
                                [&body, &thread](context::fiber&& from) {
                                  scheduler = std::move(from);
                                  body();
                                  if (!thread.products.empty()) give_up("products that were never waited for");
                                  if (!thread.stores.empty()) give_up("stores that were never waited for");
                                  thread.done = true;
                                  return std::move(scheduler);
                                });
}

// Runs all threads of a cluster until they have ended. A round in which nobody moved is a deadlock.
void run_cluster(const std::function<void()>& body) {
  std::vector<Thread*> threads;
  for (Block& block : cluster) {
    std::ranges::fill(block.memory, 0xff);  // NaN
    std::ranges::fill(block.named, NamedBarrier{});
    for (Thread& thread : block.threads) {
      start(thread, body);
      threads.push_back(&thread);
    }
  }
  if (runs_late()) std::ranges::reverse(threads);
  std::size_t alive = threads.size();
  for (int idle = 0; alive > 0;) {
    const std::uint64_t events_before = events;
    std::uint64_t progress = 0;
    for (Thread* thread : threads) {
      if (thread->done) continue;
      const auto steps = [&] { return thread->exchanges + thread->barriers + thread->cluster_barriers; };
      const std::uint64_t before = steps();
      resume(*thread);
      if (thread->done) --alive;
      progress += steps() - before + (thread->done ? 1 : 0);
    }
    // A thread that was waiting may find its condition true only in the next round.
    idle = progress + events - events_before == 0 ? idle + 1 : 0;
    if (idle > 2) give_up("threads wait for each other: a barrier that some never reach");
  }
  if (!engine_copies.empty()) give_up("a copy that nobody waited for");
}

}  // namespace

void give_up(const char* why) {
  std::fprintf(stderr, "emulator: block (%u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, threadIdx.x, why);
  std::abort();
}

void run_grid(dim3 grid, dim3 block_size, std::size_t shared_bytes, unsigned blocks,
              const std::function<void()>& body) {
  const std::lock_guard lock(one_grid);
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  if (grid.x % blocks != 0) give_up("a grid that is not a whole number of clusters");
  cluster = std::vector<Block>(blocks);
  for (Block& block : cluster) {
    block.threads = std::vector<Thread>(threads);
    block.warps = std::vector<Warp>((threads + kLanes - 1) / kLanes);
    for (auto& sums : block.sums) sums.assign(threads, 0);
    for (unsigned i = 0; i < threads; ++i) {
      block.threads[i].block = &block;
      block.threads[i].index = dim3(i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y);
    }
    block.memory.resize(shared_bytes + kSharedAlignment);
  }
  gridDim = grid;
  blockDim = block_size;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += blocks) {
        for (unsigned i = 0; i < blocks; ++i) cluster[i].index = dim3(x + i, y, z);
        run_cluster(body);
      }
    }
  }
}

unsigned char* dynamic_shared() { return running->block->shared(); }

const void* in_block(const void* own, int block) {
  const std::ptrdiff_t place = static_cast<const unsigned char*>(own) - running->block->shared();
  Block& other = cluster[static_cast<std::size_t>(block)];
  if (place < 0 || place >= static_cast<std::ptrdiff_t>(other.memory.size())) give_up("not in shared memory");
  return other.shared() + place;
}

void block_barrier() { (void)block_sum(0); }

int block_sum(int value) {
  Thread& self = *running;
  Block& block = *self.block;
  std::vector<int>& sums = block.sums[self.barriers % 2];
  sums[static_cast<std::size_t>(number_of(self))] = value;
  const std::uint64_t target = ++self.barriers;
  const auto count = static_cast<int>(block.threads.size());
  wait_for_others(block, 0, count, target, [](const Thread& thread) { return thread.barriers; });
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    if (!block.threads[static_cast<std::size_t>(i)].done) sum += sums[static_cast<std::size_t>(i)];
  }
  return sum;
}

void cluster_barrier() {
  const std::uint64_t target = ++running->cluster_barriers;
  for (const Block& block : cluster) {
    wait_for_others(block, 0, static_cast<int>(block.threads.size()), target,
                    [](const Thread& thread) { return thread.cluster_barriers; });
  }
}

void named_barrier(int name, int threads) {
  NamedBarrier& barrier = running->block->named[name];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads || threads % kLanes != 0) give_up("a barrier of two numbers of threads");
  ++events;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.times;
    return;
  }
  wait_until([&barrier, before = barrier.times] { return barrier.times != before; });
}

int lane() { return number_of(*running) % kLanes; }

const unsigned char* warp_exchange(const char* name, const void* data, std::size_t bytes) {
  Thread& self = *running;
  Block& block = *self.block;
  const int first = number_of(self) / kLanes * kLanes;
  const int end = std::min(first + kLanes, static_cast<int>(block.threads.size()));
  Exchange& exchange = block.warps[static_cast<std::size_t>(first / kLanes)].exchange[self.exchanges % 2];
  const std::uint64_t target = ++self.exchanges;
  bool is_first = true;
  for (int i = first; i < end; ++i) {
    const Thread& other = block.threads[static_cast<std::size_t>(i)];
    if (&other != &self && !other.done && other.exchanges >= target) is_first = false;
  }
  if (bytes > kExchangeBytes) give_up((std::string(name) + ": too much data").c_str());
  if (is_first) {
    std::memset(exchange.data, 0, sizeof(exchange.data));
    exchange.name = name;
    exchange.bytes = bytes;
  } else if (std::strcmp(exchange.name, name) != 0 || exchange.bytes != bytes) {
    give_up((std::string("lanes of a warp meet in ") + exchange.name + " and " + name).c_str());
  }
  unsigned char* all = &exchange.data[0][0];
  std::memcpy(all + static_cast<std::size_t>(lane()) * bytes, data, bytes);
  wait_for_others(block, first, end, target, [](const Thread& thread) { return thread.exchanges; });
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

namespace {

void do_later(std::vector<std::function<void()>>& list, std::function<void()> work) {
  if (!runs_late()) return work();
  list.push_back(std::move(work));
}
void finish(std::vector<std::function<void()>>& list) {
  for (const auto& work : std::exchange(list, {})) work();
}

}  // namespace

void multiply_later(std::function<void()> product) { do_later(running->products, std::move(product)); }
void finish_products() { finish(running->products); }
void store_later(std::function<void()> store) { do_later(running->stores, std::move(store)); }
void finish_stores() { finish(running->stores); }

void init(Mbarrier& barrier, int arrivals) {
  barrier = {0, static_cast<std::uint16_t>(arrivals), static_cast<std::uint8_t>(arrivals), 0};
}

namespace {

void end_phase_if_done(Mbarrier& barrier) {
  ++events;
  if (barrier.arrivals > 0 || barrier.bytes != 0) return;
  barrier.arrivals = static_cast<std::uint8_t>(barrier.waits_for);
  barrier.parity ^= 1U;
}

// Those that were started so far.
void finish_copies(Mbarrier& barrier) {
  for (std::size_t i = 0; i < engine_copies.size();) {
    if (engine_copies[i].barrier != &barrier) {
      ++i;
      continue;
    }
    const EngineCopy done = std::move(engine_copies[i]);
    engine_copies.erase(engine_copies.begin() + static_cast<std::ptrdiff_t>(i));
    done.copy();
    barrier.bytes -= done.bytes;
    end_phase_if_done(barrier);
  }
}

}  // namespace

void arrive(Mbarrier& barrier, int bytes) {
  if (barrier.arrivals == 0) give_up("more arrive at a barrier than it was made for");
  barrier.bytes += bytes;
  --barrier.arrivals;
  end_phase_if_done(barrier);
}

void start_copy(Mbarrier& barrier, int bytes, std::function<void()> copy) {
  engine_copies.push_back({&barrier, bytes, std::move(copy)});
  if (!runs_late()) finish_copies(barrier);
}

void wait(Mbarrier& barrier, int parity) {
  wait_until([&] {
    if (barrier.parity == parity) finish_copies(barrier);
    return barrier.parity != parity;
  });
}

void wait_until(const std::function<bool()>& ready) {
  while (!ready()) yield();
  ++events;
}

}  // namespace emulator
