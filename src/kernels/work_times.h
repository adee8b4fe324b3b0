// How long the ops that a thread calls take, by kind of work, for benchmarks: on a GPU by events on its stream, which
// slow the work down a little, on the CPU by a clock.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

#include "kernels/device.h"

namespace qdelta {

namespace cuda {
class EventTimes;
}  // namespace cuda

enum class Work { products, recurrence, norms, convolution, mlp, loss, optimizer, other };
inline constexpr std::size_t kWorkKinds = 8;
// As a report calls them.
inline constexpr std::array<std::string_view, kWorkKinds> kWorkNames{
    "products", "recurrence", "norms", "convolution", "mlp", "loss", "optimizer", "other"};

class WorkTimes {
 public:
  using Seconds = std::array<double, kWorkKinds>;

  explicit WorkTimes(const Device& device);
  ~WorkTimes();
  WorkTimes(const WorkTimes&) = delete;
  WorkTimes& operator=(const WorkTimes&) = delete;

  // From here on the ops of this thread are timed, on the device.
  void start();
  // Whether ops of this thread are timed.
  [[nodiscard]] static bool running() { return running_ != nullptr; }
  // From here on they are not. What they took since start(), once all of them are done.
  [[nodiscard]] Seconds stop();

 private:
  friend class TimedWork;
  static thread_local WorkTimes* running_;  // null: none
  Seconds seconds_{};
  std::unique_ptr<cuda::EventTimes> events_;  // on a GPU
};

// Around the work of an op.
class TimedWork {
 public:
  explicit TimedWork(Work kind);
  ~TimedWork();
  TimedWork(const TimedWork&) = delete;
  TimedWork& operator=(const TimedWork&) = delete;

 private:
  WorkTimes* times_;
  Work kind_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace qdelta
