#include "kernels/work_times.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/event_times.h"
#endif

namespace qdelta {

#ifndef QDELTA_WITH_CUDA
namespace cuda {
class EventTimes {};
}  // namespace cuda
#endif

thread_local WorkTimes* WorkTimes::running_ = nullptr;

WorkTimes::WorkTimes(const Device& device) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) events_ = std::make_unique<cuda::EventTimes>(*device.gpu);
#else
  (void)device;
#endif
}

WorkTimes::~WorkTimes() {
  if (running_ == this) running_ = nullptr;
}

void WorkTimes::start() {
  seconds_ = {};
  running_ = this;
}

WorkTimes::Seconds WorkTimes::stop() {
  running_ = nullptr;
#ifdef QDELTA_WITH_CUDA
  if (events_ != nullptr) {
    for (const cuda::EventTimes::Range& range : events_->take()) {
      seconds_[static_cast<std::size_t>(range.kind)] += range.seconds;
    }
  }
#endif
  return seconds_;
}

TimedWork::TimedWork(Work kind) : times_(WorkTimes::running_), kind_(kind) {
  if (times_ == nullptr) return;
#ifdef QDELTA_WITH_CUDA
  if (times_->events_ != nullptr) {
    times_->events_->begin(static_cast<int>(kind));
    return;
  }
#endif
  begin_ = std::chrono::steady_clock::now();
}

TimedWork::~TimedWork() {
  if (times_ == nullptr) return;
#ifdef QDELTA_WITH_CUDA
  if (times_->events_ != nullptr) {
    times_->events_->end();
    return;
  }
#endif
  times_->seconds_[static_cast<std::size_t>(kind_)] +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

}  // namespace qdelta
