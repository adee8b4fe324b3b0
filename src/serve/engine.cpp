#include "serve/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "kernels/device_thread.h"

namespace qdelta::serve {
namespace {

// Tokens of prompts that are read between two steps: enough for matrix products to run well, so few that nobody waits
// long for the next token.
constexpr std::size_t kReadTokens = 512;

constexpr const char* kNoNumber = "the model gives something that is not a number";

}  // namespace

Engine::Engine(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
               const EngineOptions& options, Metrics& metrics)
    : model_(model),
      tokenizer_(tokenizer),
      metrics_(metrics),
      max_queue_(static_cast<std::size_t>(options.max_queue)),
      weights_(std::make_shared<DeviceWeights>(model, device)),
      runner_(model, weights_, device, false),
      states_(model.config(), options.max_batch, device),
      steps_(model, weights_, device, states_, options.max_batch),
      rows_(static_cast<std::size_t>(options.max_batch)) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Engine::Admission Engine::submit(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Admission::stopping;
    if (queue_.size() >= max_queue_) return Admission::full;
    queue_.push_back(job);
    metrics_.queued = static_cast<std::int64_t>(queue_.size());
  }
  changed_.notify_all();
  return Admission::accepted;
}

void Engine::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool Engine::drained(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return queue_.empty() && !busy_; });
}

bool Engine::idle() const {
  return std::all_of(rows_.begin(), rows_.end(), [](const auto& row) { return row == nullptr; });
}

void Engine::run() {
  use_in_this_thread(states_.device());
  while (true) {
    for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
      if (rows_[slot] == nullptr || (!rows_[slot]->done() && !rows_[slot]->job().abandoned())) continue;
      if (!rows_[slot]->done()) ++metrics_.abandoned;
      leave(slot);
    }
    {
      std::unique_lock lock(mutex_);
      if (queue_.empty() && idle() && busy_) {
        busy_ = false;
        changed_.notify_all();
      }
      changed_.wait(lock, [this] { return ending_ || !queue_.empty() || !idle(); });
      if (ending_) break;
      busy_ = true;
    }
    try {
      admit();
      read_prompts();
      step();
    } catch (const std::exception& error) {
      // What broke is not known to be any one sequence's fault, and its states may be half written. A request that has
      // not begun is not touched, except the one that could not even begin.
      if (idle()) fail_waiting(error.what());
      fail_running(error.what());
    }
  }
  fail_running("the server is stopping");
  fail_waiting("the server is stopping");
}

void Engine::admit() {
  const std::lock_guard lock(mutex_);
  if (!queue_.empty() && queue_.front()->abandoned()) started_ = 0;
  std::erase_if(queue_, [](const auto& job) { return job->abandoned(); });
  for (std::size_t slot = 0; slot < rows_.size() && !queue_.empty(); ++slot) {
    if (rows_[slot] != nullptr) continue;
    const std::shared_ptr<Job> job = queue_.front();
    states_.clear(static_cast<std::int64_t>(slot));
    rows_[slot] = std::make_unique<Row>(job, started_, arrivals_++, tokenizer_);
    ++metrics_.running;
    metrics_.prompt_tokens += rows_[slot]->plan().prompt.size();
    if (++started_ == job->plans().size()) {
      queue_.pop_front();
      started_ = 0;
    }
  }
  metrics_.queued = static_cast<std::int64_t>(queue_.size());
}

void Engine::leave(std::size_t slot) {
  rows_[slot].reset();
  --metrics_.running;
}

// The sequence that came first and has something to read, with those in the places after it: the model takes several
// that lie side by side.
void Engine::read_prompts() {
  const auto reads = [&](std::size_t slot) {
    return slot < rows_.size() && rows_[slot] != nullptr && !rows_[slot]->unread(kReadTokens).empty();
  };
  std::size_t first = rows_.size();
  for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
    if (reads(slot) && (first == rows_.size() || rows_[slot]->arrival() < rows_[first]->arrival())) first = slot;
  }
  if (first == rows_.size()) return;

  std::vector<std::int32_t> ids, scored_rows, targets;
  std::vector<std::int64_t> slots, offsets{0};
  std::int64_t top = 1;
  for (std::size_t slot = first; reads(slot); ++slot) {
    const Row& row = *rows_[slot];
    const std::span<const std::int32_t> part = row.unread(kReadTokens);
    if (slot > first && ids.size() + part.size() > kReadTokens) break;
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (row.plan().score_prompt) {
        scored_rows.push_back(static_cast<std::int32_t>(ids.size()));
        targets.push_back(row.after_unread(i));
      }
      ids.push_back(part[i]);
    }
    if (row.plan().score_prompt) top = std::max(top, row.plan().logprobs);
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
    slots.push_back(static_cast<std::int64_t>(slot));
  }

  const auto width = static_cast<std::size_t>(std::min(top, model_.config().vocab_size));
  std::vector<float> log_probability(targets.size()), top_log_probability(targets.size() * width);
  std::vector<std::int32_t> top_tokens(targets.size() * width);
  runner_.next_tokens(
      {ids, offsets},
      {scored_rows, targets, static_cast<std::int64_t>(width), log_probability, top_tokens, top_log_probability},
      {&states_, slots});

  std::size_t at = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    Row& row = *rows_[first + n];
    std::vector<ScoredToken> scores;
    for (; at < targets.size() && scored_rows[at] < offsets[n + 1]; ++at) {
      ScoredToken score{targets[at], log_probability[at], {}};
      if (!std::isfinite(log_probability[at])) row.job().fail(kNoNumber);
      const auto wanted = std::min(static_cast<std::size_t>(row.plan().logprobs), width);
      for (std::size_t k = 0; k < wanted; ++k) {
        score.top.push_back({top_tokens[at * width + k], top_log_probability[at * width + k]});
      }
      scores.push_back(std::move(score));
    }
    row.read(static_cast<std::size_t>(offsets[n + 1] - offsets[n]), std::move(scores));
  }
}

// One token of every sequence that has read its prompt.
void Engine::step() {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> slots;
  for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
    const Row* row = rows_[slot].get();
    if (row == nullptr || row->done() || !row->unread(1).empty()) continue;
    ids.push_back(row->last());
    slots.push_back(static_cast<std::int64_t>(slot));
  }
  if (ids.empty()) return;
  const auto width = static_cast<std::size_t>(model_.config().vocab_size);
  logits_.resize(ids.size() * width);
  steps_.next(ids, slots, logits_);
  ++metrics_.decode_steps;
  metrics_.generated_tokens += ids.size();
  for (std::size_t n = 0; n < slots.size(); ++n) {
    Row& row = *rows_[static_cast<std::size_t>(slots[n])];
    const std::span<const float> logits = std::span(logits_).subspan(n * width, width);
    if (std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
      row.advance(logits);
    } else {
      row.job().fail(kNoNumber);
    }
  }
}

void Engine::fail_running(const std::string& why) {
  for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
    if (rows_[slot] == nullptr) continue;
    if (!rows_[slot]->done()) rows_[slot]->job().fail(why);
    leave(slot);
  }
}

void Engine::fail_waiting(const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Job>& job : std::exchange(queue_, {})) job->fail(why);
  started_ = 0;
  metrics_.queued = 0;
}

}  // namespace qdelta::serve
