// A request on its way through the engine: what is to be generated, and what has been. The engine's side fills it; the
// client's side is told when there is something new, and takes it when it can.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "infer/sequence.h"
#include "infer/state_file.h"
#include "infer/stop_matcher.h"
#include "model/model_states.h"

namespace qdelta::serve {

// A state outside of the engine's pool, on the CPU, and what has been read into it.
struct StateCopy {
  ModelStates states;
  SavedState info;
};

// What one sequence of a request is to do.
struct SequenceRequest {
  std::vector<std::int32_t> prompt;          // not empty; the pending token of `start` first, where it has one
  GenerationOptions options;                 // without stop strings
  std::shared_ptr<const StopStrings> stops;  // the same for all sequences of a request; null: none
  // Sequences of one group begin with the same `shared` tokens, which are read once for all that are there. They are
  // cut there in any case, so that it does not matter who is. Group 0: none.
  std::size_t group = 0, shared = 0;
  std::shared_ptr<const StateCopy> start;  // what the prompt goes on from; null: nothing
  std::shared_ptr<StateCopy> end;          // where the state goes that the sequence leaves, before its last update

  // Tokens of the prompt that are not the client's, but pending in the state.
  [[nodiscard]] std::size_t pending() const { return start != nullptr && start->info.pending >= 0 ? 1 : 0; }
};

// What is new of one of them.
struct Update : SequenceUpdate {
  std::size_t sequence = 0;
};

class Job {
 public:
  explicit Job(std::vector<SequenceRequest> sequences)
      : sequences_(std::move(sequences)), stopped_(std::make_unique<std::atomic<bool>[]>(sequences_.size())) {}

  [[nodiscard]] const std::vector<SequenceRequest>& sequences() const { return sequences_; }

  // For the client's side. `notify` is called when something is new and all before it has been taken, from threads of
  // the engine; it must not take long. Before the job is submitted.
  void on_news(std::function<void()> notify) { notify_ = std::move(notify); }
  // What has come since the last call; of each sequence in order.
  [[nodiscard]] std::vector<Update> take() {
    const std::lock_guard lock(mutex_);
    told_ = false;
    return std::exchange(updates_, {});
  }
  // Why it ended before its time; empty where it did not.
  [[nodiscard]] std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // With which HTTP status: 503 where the server stopped.
  [[nodiscard]] int failure_status() const {
    const std::lock_guard lock(mutex_);
    return failure_status_;
  }
  // The client has gone.
  void cancel() { cancelled_ = true; }
  // A stop string has been found: no more of this sequence is wanted.
  void stop(std::size_t sequence) { stopped_[sequence] = true; }

  // Tokens of its prompts that were not read again.
  [[nodiscard]] std::int64_t cached_tokens() const { return cached_tokens_; }

  // For the engine's side.
  void add_cached_tokens(std::size_t tokens) { cached_tokens_ += static_cast<std::int64_t>(tokens); }
  [[nodiscard]] bool abandoned() const { return cancelled_ || failed_; }
  [[nodiscard]] bool stopped(std::size_t sequence) const { return stopped_[sequence]; }
  void push(Update update) {
    change([&] { updates_.push_back(std::move(update)); });
  }
  void fail(const std::string& why, int status = 500) {
    failed_ = true;
    change([&] {
      if (!failure_.empty()) return;
      failure_ = why;
      failure_status_ = status;
    });
  }

 private:
  template <class Change>
  void change(const Change& change) {
    bool tell = false;
    {
      const std::lock_guard lock(mutex_);
      change();
      tell = !std::exchange(told_, true);
    }
    if (tell && notify_) notify_();
  }

  const std::vector<SequenceRequest> sequences_;
  std::unique_ptr<std::atomic<bool>[]> stopped_;
  std::atomic<bool> cancelled_{false}, failed_{false};
  std::atomic<std::int64_t> cached_tokens_{0};
  std::function<void()> notify_;
  mutable std::mutex mutex_;
  std::vector<Update> updates_;
  std::string failure_;
  bool told_ = false;
  int failure_status_ = 500;
};

}  // namespace qdelta::serve
