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

#include "infer/sampler.h"
#include "infer/scoring.h"

namespace qdelta::serve {

// One sequence.
struct SequencePlan {
  std::vector<std::int32_t> prompt;  // not empty
  SamplingOptions sampling;
  std::uint64_t stream = 0;     // tells apart the samples of one prompt with the same seed
  std::int64_t max_tokens = 0;  // 0: only the prompt's scores
  std::int64_t logprobs = -1;   // so many of the most likely tokens with each token; -1: no scores
  bool score_prompt = false;    // scores for the prompt's tokens too
  std::vector<std::string> stop;
  bool stop_at_eos = true;
};

// A token with its scores, where they were asked for and there are any: the first of all has none.
struct ScoredToken {
  std::int32_t token = 0;
  std::optional<float> log_probability;
  std::vector<TokenChance> top;  // the most likely first
};

enum class Finish { none, stop, length };

// What has become of a sequence since the last one.
struct Update {
  std::size_t sequence = 0;
  std::vector<ScoredToken> prompt;     // once, where asked for, before all else
  std::vector<ScoredToken> generated;  // tokens, whether or not their text is certain yet
  std::string text;
  Finish finish = Finish::none;
};

class Job {
 public:
  explicit Job(std::vector<SequencePlan> plans) : plans_(std::move(plans)), unfinished_(plans_.size()) {}

  [[nodiscard]] const std::vector<SequencePlan>& plans() const { return plans_; }

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
    if (update.finish != Finish::none) --unfinished_;
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

  const std::vector<SequencePlan> plans_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Update> updates_;
  std::size_t unfinished_;
  std::string failure_;
  bool cancelled_ = false;
};

}  // namespace qdelta::serve
