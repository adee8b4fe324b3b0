#include "core/threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask is not in <csignal>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

namespace qdelta {
namespace {

constexpr std::size_t kLine = 64;  // of the cache: what different threads write is not on one
constexpr int kMostShares = 64;
constexpr int kMostHelpers = 1023;
constexpr int kNotices = 16;  // loops at a time; others are run by their callers alone

using Clock = std::chrono::steady_clock;

// How long a thread without work waits awake for more: a step of a model is some hundred loops, with little between
// them, and to wake a thread takes as long as many of them.
constexpr std::chrono::microseconds kAwake{1000};
// A thread that waits awake is in the way of others, and what it waits for may be one of them: after this time, longer
// than most loops, it lets them by. Not before: who has the core then may keep it for milliseconds.
constexpr std::chrono::microseconds kEager{100};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits awake until something is so, at most for `patience`; false where it is not.
template <class Condition>
bool wait_awake(const Condition& condition, std::chrono::microseconds patience) {
  constexpr int kMoments = 32;  // to ask for the time takes as long as some of them
  for (const auto start = Clock::now();;) {
    for (int moment = 0; moment < kMoments; ++moment, pause()) {
      if (condition()) return true;
    }
    const auto waited = Clock::now() - start;
    if (waited >= patience) return condition();
    if (waited >= kEager) sched_yield();
  }
}

// Indices that are taken from the front.
struct alignas(kLine) Range {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
};

// A loop while it runs, in its caller's memory.
struct Running {
  ParallelLoop loop;
  int ranges = 1;
  std::array<Range, kMostShares> range;

  Running(const ParallelLoop& of, int threads) : loop(of), ranges(of.shares ? std::min(threads, kMostShares) : 1) {
    const std::int64_t each = loop.count / ranges;
    const std::int64_t more = loop.count % ranges;  // the first ones have one more
    std::int64_t begin = 0;
    for (int i = 0; i < ranges; ++i) {
      Range& own = range[static_cast<std::size_t>(i)];
      own.next.store(begin, std::memory_order_relaxed);
      begin += each + (i < more ? 1 : 0);
      own.end = begin;
    }
  }

  // Until nothing is left to take: of the worker's own share first, then of the others'.
  void work(int worker) {
    for (int i = 0; i < ranges; ++i) {
      Range& of = range[static_cast<std::size_t>((worker + i) % ranges)];
      while (of.next.load(std::memory_order_relaxed) < of.end) {
        const std::int64_t index = of.next.fetch_add(1, std::memory_order_relaxed);
        if (index < of.end) loop.call(loop.body, index, worker);
      }
    }
  }
};

// Where a caller says that there is a loop to help with. Notices are never destroyed, the loops that they speak of are:
// who has come in through the gate may use the loop until he leaves, and its caller waits for that.
class alignas(kLine) Notice {
 public:
  // False where another caller has it.
  bool take() { return !taken_.load(std::memory_order_relaxed) && !taken_.exchange(true, std::memory_order_acquire); }
  void open(Running& running, int helpers) {
    running_ = &running;
    gate_.store(kOpen | (static_cast<std::uint32_t>(helpers) << kHelpersAt), std::memory_order_release);
  }
  void close() { gate_.fetch_and(~kOpen, std::memory_order_relaxed); }
  void wait_and_give_back() {
    close();
    const auto empty = [this] { return (gate_.load(std::memory_order_acquire) & kInside) == 0; };
    while (!empty() && !wait_awake(empty, std::chrono::seconds(1))) continue;
    taken_.store(false, std::memory_order_release);
  }
  // A helper does what there is to do. Helpers have numbers, and a loop with `helpers` takes those below that.
  void help(int helper) {
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    do {
      if ((gate & kOpen) == 0 || helper >= static_cast<int>((gate & ~kOpen) >> kHelpersAt)) return;
    } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed));
    running_->work(helper + 1);
    close();  // nobody else need come
    gate_.fetch_sub(1, std::memory_order_release);
  }

 private:
  static constexpr std::uint32_t kOpen = 1U << 31U;
  static constexpr int kHelpersAt = 16;
  static constexpr std::uint32_t kInside = (1U << 16U) - 1;  // how many are inside

  std::atomic<std::uint32_t> gate_{0};
  std::atomic<bool> taken_{false};
  Running* running_ = nullptr;
};

thread_local bool in_loop = false;

// Threads are started when a loop first wants so many, and live as long as the process: there is no moment at which
// nobody could be in a loop. In a child after a fork there are none, and loops are run by their callers.
class Pool {
 public:
  void run(const ParallelLoop& loop, int threads) {
    const int helpers = static_cast<int>(std::min<std::int64_t>({threads - 1, loop.count - 1, kMostHelpers}));
    Running running(loop, helpers + 1);
    Notice* const notice = free_notice();
    in_loop = true;
    if (notice == nullptr) {
      running.work(0);
    } else {
      hire(helpers);
      notice->open(running, helpers);
      posted_.fetch_add(1, std::memory_order_seq_cst);
      if (sleeping_.load(std::memory_order_seq_cst) > 0) wake(helpers);
      running.work(0);
      notice->wait_and_give_back();
    }
    in_loop = false;
  }

 private:
  Notice* free_notice() {
    for (int i = 0; i < kNotices; ++i) {
      Notice& notice = notices_[static_cast<std::size_t>(i)];
      if (!notice.take()) continue;
      if (int used = used_.load(std::memory_order_relaxed); used <= i) {
        while (used <= i && !used_.compare_exchange_weak(used, i + 1)) continue;
      }
      return &notice;
    }
    return nullptr;
  }

  // Where the system has no more threads, fewer do it. Waits until they have come: a thread that OpenMP's runtime hears
  // of for the first time while the process ends makes LLVM's abort.
  void hire(int helpers) {
    if (helpers <= hired_.load(std::memory_order_relaxed)) return;
    const std::unique_lock lock(hiring_, std::try_to_lock);
    if (!lock) return;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    try {
      for (int helper = hired_; helper < helpers; ++helper) {
        std::thread([this, helper] { serve(helper); }).detach();
        hired_ = helper + 1;
      }
    } catch (const std::system_error&) {
      static_cast<void>(0);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    for (int ready = ready_; ready < hired_; ready = ready_) ready_.wait(ready);
  }

  [[noreturn]] void serve(int helper) {
    omp_set_num_threads(1);
    in_loop = true;
    ++ready_;
    ready_.notify_all();
    while (true) {
      const std::uint32_t seen = posted_.load(std::memory_order_acquire);
      const int used = used_.load(std::memory_order_relaxed);
      for (int i = 0; i < used; ++i) notices_[static_cast<std::size_t>(i)].help(helper);
      wait_for_news(seen, helper);
    }
  }

  void wait_for_news(std::uint32_t seen, int helper) {
    if (wait_awake([&] { return posted_.load(std::memory_order_acquire) != seen; }, kAwake)) return;
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &posted_, FUTEX_WAIT_BITSET_PRIVATE, seen, nullptr, nullptr, bit_of(helper));
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Those with the lowest numbers; a few others may wake with them.
  void wake(int helpers) {
    const std::uint32_t bits = helpers >= 32 ? ~0U : (1U << static_cast<unsigned>(helpers)) - 1;
    syscall(SYS_futex, &posted_, FUTEX_WAKE_BITSET_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, bits);
  }
  static std::uint32_t bit_of(int helper) { return 1U << (static_cast<unsigned>(helper) % 32); }

  alignas(kLine) std::atomic<std::uint32_t> posted_{0};
  alignas(kLine) std::atomic<int> sleeping_{0};
  std::atomic<int> used_{0};  // the notices that ever were
  std::atomic<int> hired_{0};
  std::atomic<int> ready_{0};  // of the hired ones
  std::mutex hiring_;
  std::array<Notice, kNotices> notices_;
};

}  // namespace

void run_parallel(const ParallelLoop& loop, int threads) {
  static Pool* const pool = new Pool;  // NOLINT(cppcoreguidelines-owning-memory): its threads outlive every destructor
  if (in_loop) {
    for (std::int64_t index = 0; index < loop.count; ++index) loop.call(loop.body, index, 0);
    return;
  }
  const SingleThreaded libraries;
  pool->run(loop, threads);
}

}  // namespace qdelta
