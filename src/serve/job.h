// A request on its way through the engine: what is to be generated, and what has been. The thread that answers the
// client waits on it; the engine's thread fills it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "infer/sequence.h"

namespace qdelta::serve {

// What one sequence of a request is to do.
struct SequenceRequest {
  std::vector<std::int32_t> prompt;  // not empty
  GenerationOptions options;
};

// What is new of one of them.
struct Update : SequenceUpdate {
  std::size_t sequence = 0;
};

class Job {
 public:
  explicit Job(std::vector<SequenceRequest> sequences)
      : sequences_(std::move(sequences)), unfinished_(sequences_.size()) {}

  [[nodiscard]] const std::vector<SequenceRequest>& sequences() const { return sequences_; }

  // For the client's side. An update, if one comes in time; none either once `ended`.
  [[nodiscard]] std::optional<Update> next(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return !updates_.empty() || over(); });
    if (updates_.empty()) return std::nullopt;
    Update update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }
  // Whether all updates have been taken and no more will come.
  [[nodiscard]] bool ended() const {
    const std::lock_guard lock(mutex_);
    return updates_.empty() && over();
  }
  // Why it ended before its time; empty where it did not.
  [[nodiscard]] std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // The client has gone.
  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }

  // For the engine's side.
  [[nodiscard]] bool abandoned() const {
    const std::lock_guard lock(mutex_);
    return cancelled_ || !failure_.empty();
  }
  void push(Update update) {
    const std::lock_guard lock(mutex_);
    if (update.end != EndReason::none) --unfinished_;
    updates_.push_back(std::move(update));
    changed_.notify_all();
  }
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    changed_.notify_all();
  }

 private:
  [[nodiscard]] bool over() const { return unfinished_ == 0 || !failure_.empty(); }

  const std::vector<SequenceRequest> sequences_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Update> updates_;
  std::size_t unfinished_;
  std::string failure_;
  bool cancelled_ = false;
};

}  // namespace qdelta::serve
