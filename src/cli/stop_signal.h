// Ctrl-C, the polite way: the first one asks for a stop at the next good moment, one that comes a second or more after
// it ends the program at once. One that follows closer does nothing: timeout(1) sends its signal to the program and
// then to the program's group, which is the same wish twice.
//
// The signals are blocked in every thread and taken by one that does nothing else. A handler would run on top of a
// thread that computes, and a step does not survive that where oneDNN (2.6.3) uses AVX-512: a signal a millisecond
// corrupts the heap of most runs, none at all where it is held to AVX2. So this must be made before any thread that
// computes is.
//
// Work that can be stopped like this is not ended by a display that goes away either: SIGPIPE is ignored from then on.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

namespace qdelta {

class StopSignal {
 public:
  StopSignal() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    std::signal(SIGPIPE, SIG_IGN);
    listener_ = std::thread([this] { listen(); });
  }
  ~StopSignal() {
    done_ = true;
    listener_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  [[nodiscard]] const std::atomic<bool>& raised() const { return raised_; }

 private:
  void listen() {
    constexpr timespec kPatience{0, 20'000'000};  // how long the destructor may have to wait
    constexpr std::chrono::seconds kSameWish{1};
    std::chrono::steady_clock::time_point first;
    while (!done_) {
      const int signal = sigtimedwait(&signals_, nullptr, &kPatience);
      if (signal <= 0) continue;
      const auto now = std::chrono::steady_clock::now();
      if (!raised_.exchange(true)) {
        first = now;
      } else if (now - first >= kSameWish) {
        std::signal(signal, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
        std::raise(signal);
      }
    }
  }

  sigset_t signals_{}, before_{};
  std::atomic<bool> raised_{false};
  std::atomic<bool> done_{false};
  std::thread listener_;
};

}  // namespace qdelta
