// Ctrl-C, the polite way: the first one asks for a stop at the next good moment, a second one ends the program at once.
#pragma once

#include <atomic>
#include <csignal>

namespace qdelta {

class StopSignal {
 public:
  StopSignal() {
    flag() = false;
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, &StopSignal::raise);
  }
  ~StopSignal() {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  [[nodiscard]] const std::atomic<bool>& raised() const { return raised_; }

 private:
  static std::atomic<bool>& flag() {
    static std::atomic<bool> value{false};
    static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free flags");
    return value;
  }
  static void raise(int signal) {
    flag() = true;
    std::signal(signal, SIG_DFL);
  }

  const std::atomic<bool>& raised_ = flag();
};

}  // namespace qdelta
