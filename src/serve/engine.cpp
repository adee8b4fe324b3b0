#include "serve/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/device_thread.h"

namespace qdelta::serve {
namespace {

constexpr const char* kNoNumber = "the model gives something that is not a number";

}  // namespace

Engine::Engine(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
               const EngineOptions& options, Metrics& metrics)
    : tokenizer_(tokenizer),
      metrics_(metrics),
      max_queue_(static_cast<std::size_t>(options.max_queue)),
      states_(model.config(), options.max_batch, device),
      decoder_(model, std::make_shared<DeviceWeights>(model, device), states_),
      running_(static_cast<std::size_t>(options.max_batch)) {
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
  return std::all_of(running_.begin(), running_.end(), [](const auto& running) { return running == nullptr; });
}

void Engine::run() {
  use_in_this_thread(states_.device());
  while (true) {
    for (std::size_t slot = 0; slot < running_.size(); ++slot) {
      if (running_[slot] == nullptr) continue;
      const bool done = running_[slot]->sequence.done();
      if (!done && !running_[slot]->job->abandoned()) continue;
      if (!done) ++metrics_.abandoned;
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
      send_updates();
      step();
      send_updates();
    } catch (const std::exception& error) {
      // What broke is not known to be any one sequence's fault, and its states may be half written. A request that has
      // not begun is not touched, except the one that could not even begin.
      send_updates();
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
  for (std::size_t slot = 0; slot < running_.size() && !queue_.empty(); ++slot) {
    if (running_[slot] != nullptr) continue;
    const std::shared_ptr<Job> job = queue_.front();
    const SequenceRequest& request = job->sequences()[started_];
    states_.clear(static_cast<std::int64_t>(slot));
    running_[slot] = std::make_unique<Running>(Running{.job = job,
                                                       .index = started_,
                                                       .arrival = arrivals_++,
                                                       .sequence = {tokenizer_, request.prompt, request.options}});
    ++metrics_.running;
    decoder_.add(static_cast<std::int64_t>(slot), running_[slot]->sequence);
    metrics_.prompt_tokens += request.prompt.size();
    if (++started_ == job->sequences().size()) {
      queue_.pop_front();
      started_ = 0;
    }
  }
  metrics_.queued = static_cast<std::int64_t>(queue_.size());
}

void Engine::leave(std::size_t slot) {
  decoder_.remove(static_cast<std::int64_t>(slot));
  running_[slot].reset();
  --metrics_.running;
}

// The sequence that came first and has something to read, with those in the slots after it: the model takes several
// that lie side by side.
void Engine::read_prompts() {
  const auto reads = [&](std::size_t slot) {
    return slot < running_.size() && running_[slot] != nullptr && running_[slot]->sequence.reading();
  };
  std::size_t first = running_.size();
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (reads(slot) && (first == running_.size() || running_[slot]->arrival < running_[first]->arrival)) first = slot;
  }
  // A whole piece of one prompt between two steps, so few tokens that nobody waits long for the next one.
  const std::size_t most = prompt_piece(states_.device());
  std::vector<std::int64_t> slots;
  std::size_t tokens = 0;
  for (std::size_t slot = first; reads(slot); ++slot) {
    const auto index = static_cast<std::int64_t>(slot);
    const PromptPiece piece = running_[slot]->sequence.next_piece(index, most);
    tokens += piece.end - piece.begin;
    if (slot > first && tokens > most) break;
    slots.push_back(index);
  }
  decoder_.read(slots);
}

void Engine::step() {
  if (decoder_.step() > 0) ++metrics_.decode_steps;
}

void Engine::send_updates() {
  for (const std::unique_ptr<Running>& running : running_) {
    if (running == nullptr) continue;
    for (SequenceUpdate& update : running->sequence.take_updates()) {
      metrics_.generated_tokens += update.generated.size();
      if (update.end == EndReason::not_finite) {
        running->job->fail(kNoNumber);
      } else {
        running->job->push({std::move(update), running->index});
      }
    }
  }
}

void Engine::fail_running(const std::string& why) {
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr) continue;
    if (!running_[slot]->sequence.done()) running_[slot]->job->fail(why);
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
