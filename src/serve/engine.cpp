#include "serve/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/device_thread.h"

namespace qdelta::serve {
namespace {

constexpr const char* kNoNumber = "the model gives something that is not a number";
constexpr const char* kStopping = "the server is stopping";

}  // namespace

Engine::Engine(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
               const EngineOptions& options, Metrics& metrics)
    : tokenizer_(tokenizer),
      metrics_(metrics),
      max_queue_(static_cast<std::size_t>(options.max_queue)),
      states_(model.config(), options.max_batch, device),
      cache_(model.config(), device, options.cache_bytes, prompt_piece(device)),
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

void Engine::abort() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = aborting_ = true;
  }
  changed_.notify_all();
}

bool Engine::drained(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return queue_.empty() && !busy_; });
}

void Engine::run() {
  use_in_this_thread(states_.device());
  while (wait_for_work()) {
    try {
      work();
    } catch (const std::exception& error) {
      // What broke is not known to be any one sequence's fault, and its states may be half written. A request that has
      // not begun is not touched, except the one that could not even begin.
      if (in_batch_ == 0) fail_waiting(error.what());
      fail_running(error.what());
    }
  }
  fail_running(kStopping);
  fail_waiting(kStopping);
}

bool Engine::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (queue_.empty() && in_batch_ == 0 && busy_) {
    lock.unlock();
    outbox_.flush();  // who waits for the engine to be drained waits for the last words too
    lock.lock();
    if (queue_.empty()) busy_ = false;
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return ending_ || aborting_ || !queue_.empty() || in_batch_ > 0; });
  if (ending_) return false;
  busy_ = true;
  if (std::exchange(aborting_, false)) {
    lock.unlock();
    fail_running(kStopping);
    fail_waiting(kStopping);
  }
  return true;
}

void Engine::work() {
  decoder_.finish_step();
  collect();
  admit();
  if (decoder_.launch_step() > 0) ++metrics_.decode_steps;
  outbox_.send(letters_);
  read_prompts();
}

void Engine::admit() {
  const std::lock_guard lock(mutex_);
  if (!queue_.empty() && queue_.front()->abandoned()) started_ = 0;
  std::erase_if(queue_, [](const auto& job) { return job->abandoned(); });
  for (std::size_t slot = 0; slot < running_.size() && !queue_.empty(); ++slot) {
    if (running_[slot] != nullptr) continue;
    const std::shared_ptr<Job> job = queue_.front();
    const SequenceRequest& request = job->sequences()[started_];
    running_[slot] = std::make_unique<Running>(
        Running{.job = job, .index = started_, .sequence = {tokenizer_, request.prompt, request.options}});
    restore(slot);
    ++in_batch_;
    ++metrics_.running;
    decoder_.add(static_cast<std::int64_t>(slot), running_[slot]->sequence);
    reading_.push_back(slot);
    if (++started_ == job->sequences().size()) {
      queue_.pop_front();
      started_ = 0;
    }
  }
  metrics_.queued = static_cast<std::int64_t>(queue_.size());
}

void Engine::leave(std::size_t slot) {
  decoder_.remove(static_cast<std::int64_t>(slot));
  std::erase(reading_, slot);
  running_[slot].reset();
  --in_batch_;
  --metrics_.running;
}

void Engine::collect() {
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr) continue;
    Running& running = *running_[slot];
    for (SequenceUpdate& update : running.sequence.take_updates()) {
      metrics_.generated_tokens += update.generated.size();
      if (update.end == EndReason::not_finite) {
        running.job->fail(kNoNumber);
      } else {
        letters_.push_back({running.job, {std::move(update), running.index}});
      }
    }
    const bool wanted = !running.job->abandoned();
    if (!running.sequence.done() && wanted && !running.job->stopped(running.index)) continue;
    if (!running.sequence.done() && !wanted) ++metrics_.abandoned;
    leave(slot);
  }
}

// A piece of one prompt after the other, up to as many tokens as the device reads at once; who has more to read goes to
// the end of the line.
void Engine::read_prompts() {
  const std::size_t most = prompt_piece(states_.device());
  std::vector<std::int64_t> slots;
  std::size_t tokens = 0;
  for (std::size_t i = reading_.size(); i > 0; --i) {
    const std::size_t slot = reading_.front();
    const Sequence& sequence = running_[slot]->sequence;
    if (sequence.reading()) {
      const PromptPiece piece = sequence.next_piece(static_cast<std::int64_t>(slot), most);
      tokens += piece.end - piece.begin;
      if (!slots.empty() && tokens > most) break;
      slots.push_back(static_cast<std::int64_t>(slot));
      reading_.push_back(slot);
    }
    reading_.pop_front();
  }
  decoder_.read(slots);
  keep(slots);
}

// The scores of a prompt's tokens come of reading them.
void Engine::restore(std::size_t slot) {
  Running& running = *running_[slot];
  const auto index = static_cast<std::int64_t>(slot);
  states_.clear(index);
  const std::size_t size = running.sequence.prompt().size();
  std::size_t cached = 0;
  if (!running.sequence.options().score_prompt && running.sequence.options().max_tokens > 0) {
    ++metrics_.cache_lookups;
    cached = cache_.restore(running.sequence.prompt(), states_, index);
  }
  if (cached > 0) {
    running.sequence.skip(cached);
    running.job->add_cached_tokens(cached);
    ++metrics_.cache_hits;
    metrics_.cached_tokens += cached;
  }
  metrics_.prompt_tokens += size - cached;
}

// The states of sequences that are at a cut of their prompts, before anything else happens to them.
void Engine::keep(std::span<const std::int64_t> slots) {
  for (const std::int64_t slot : slots) {
    const Sequence& sequence = running_[static_cast<std::size_t>(slot)]->sequence;
    if (!sequence.done()) cache_.keep(sequence.prompt().first(sequence.tokens_read()), states_, slot);
  }
  metrics_.cache_snapshots = static_cast<std::int64_t>(cache_.snapshots());
  metrics_.cache_bytes = static_cast<std::int64_t>(cache_.bytes());
  metrics_.cache_evictions = cache_.evicted();
}

void Engine::fail_running(const std::string& why) {
  outbox_.send(letters_);
  outbox_.flush();
  try {
    decoder_.finish_step();
  } catch (const std::exception&) {  // what was launched is lost with the rest
    static_cast<void>(0);
  }
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
