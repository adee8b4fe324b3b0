#include "serve/engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "kernels/device_thread.h"

namespace qdelta::serve {
namespace {

constexpr const char* kNoNumber = "the model gives something that is not a number";
constexpr const char* kStopping = "the server is stopping";
constexpr int kUnavailable = 503, kFailed = 500;

// Shorter beginnings are read again: a call of the model more costs as much. On a GPU that is so for longer ones.
std::size_t least_kept(const Device& device) { return device.gpu == nullptr ? 128 : 512; }
// Long prompts are kept at such distances too, wherever they lead.
std::size_t kept_distance(const Device& device) { return device.gpu == nullptr ? 1024 : kGpuPromptPiece; }

// To read a few tokens takes a GPU nearly as long as to read a thousand, and streams wait for it: prompts that come one
// by one had better be read some at a time.
constexpr std::size_t kEnoughToRead = 2048;
std::int64_t gather_steps(const Device& device) { return device.gpu == nullptr ? 0 : 6; }

PromptCuts cuts_of(const LanguageModel& model, const Device& device, const EngineOptions& options) {
  PromptCuts cuts = prompt_cuts(model, device);
  if (options.segment > 0) cuts.segment = options.segment;
  return cuts;
}

// To wake so many clients takes the engine some 10 us, and spares them the wait for the thread that does it else.
constexpr std::size_t kFewToTell = 4;

constexpr std::size_t kMostEnded = 32;
constexpr std::chrono::milliseconds kIdle{50};  // before answers are read: who comes now should not wait for it

}  // namespace

Engine::Engine(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
               const EngineOptions& options, Metrics& metrics)
    : tokenizer_(tokenizer),
      metrics_(metrics),
      max_queue_(static_cast<std::size_t>(options.max_queue)),
      gather_steps_(options.gather_steps < 0 ? gather_steps(device) : options.gather_steps),
      states_(model.config(), options.max_batch, device),
      cuts_(cuts_of(model, device, options)),
      cache_(model, device, options.cache, cuts_),
      decoder_(model, std::make_shared<DeviceWeights>(model, device), states_),
      running_(static_cast<std::size_t>(options.max_batch)) {
  count_cache();
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
      if (in_batch_ == 0) fail_waiting(error.what(), kFailed);
      fail_running(error.what(), kFailed);
    }
  }
  fail_running(kStopping, kUnavailable);
  fail_waiting(kStopping, kUnavailable);
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
  const auto something = [this] { return ending_ || aborting_ || !queue_.empty() || in_batch_ > 0; };
  while (!something()) {
    if (ended_.empty() || closed_) {
      changed_.wait(lock, something);
    } else if (!changed_.wait_for(lock, kIdle, something)) {
      lock.unlock();
      read_ahead();
      lock.lock();
    }
  }
  if (ending_) return false;
  busy_ = true;
  if (std::exchange(aborting_, false)) {
    lock.unlock();
    fail_running(kStopping, kUnavailable);
    fail_waiting(kStopping, kUnavailable);
  }
  return true;
}

void Engine::work() {
  decoder_.finish_step();
  collect();
  admit();
  stepping_ = decoder_.launch_step();
  if (stepping_ > 0) ++metrics_.decode_steps;
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
    if (request.end != nullptr && request.stops != nullptr) {
      running_[slot]->text = std::make_unique<SequenceText>(tokenizer_, request.prompt, request.stops);
    }
    read_ahead_ = 0;  // its slot is taken
    ++in_batch_;
    ++metrics_.running;
    decoder_.add(static_cast<std::int64_t>(slot), running_[slot]->sequence);
    if (!follow(slot)) {
      restore(slot);
      reading_.push_back(slot);
    }
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
  for (std::size_t other = 0; other < running_.size(); ++other) {  // who waited for it reads by itself
    if (running_[other] == nullptr || running_[other]->leader != slot) continue;
    running_[other]->leader.reset();
    restore(other);
    reading_.push_back(other);
  }
  --in_batch_;
  --metrics_.running;
}

void Engine::collect() {
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr) continue;
    Running& running = *running_[slot];
    for (Update& update : take_news(running)) letters_.push_back({running.job, std::move(update)});
    if (running.text != nullptr && running.text->stopped()) running.sequence.stop();
    const bool wanted = !running.job->abandoned();
    if (!running.sequence.done() && wanted && !running.job->stopped(running.index)) continue;
    if (!running.sequence.done() && !wanted) ++metrics_.abandoned;
    if (wanted) {
      hand_over(slot);
      note_answer(running);
    }
    leave(slot);
  }
}

std::vector<Update> Engine::take_news(Running& running) {
  std::vector<Update> news;
  for (SequenceUpdate& update : running.sequence.take_updates()) {
    metrics_.generated_tokens += update.generated.size();
    if (update.end == EndReason::not_finite) {
      running.job->fail(kNoNumber);
    } else {
      if (running.text != nullptr) static_cast<void>(running.text->take(update));
      news.push_back({std::move(update), running.index});
    }
  }
  return news;
}

// A piece of one prompt after the other, up to as many tokens as the device reads at once; who has more to read goes to
// the end of the line.
void Engine::read_prompts() {
  if (gather_prompts()) return;
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
  if (!slots.empty()) ++metrics_.prompt_reads;
  decoder_.read(slots);
  pass_on_first(slots);
  keep(slots);
  fork();
}

// Nothing of these sequences is on its way in the outbox, so that they cannot come in the wrong order. Where the state
// at the end is kept it must be handed over before the last update.
void Engine::pass_on_first(std::span<const std::int64_t> slots) {
  for (const std::int64_t slot : slots) {
    Running& running = *running_[static_cast<std::size_t>(slot)];
    if (running.request().end != nullptr) continue;
    for (Update& update : take_news(running)) {
      if (slots.size() <= kFewToTell) {
        running.job->push(std::move(update));
      } else {
        letters_.push_back({running.job, std::move(update)});
      }
    }
  }
  outbox_.send(letters_);
}

bool Engine::gather_prompts() {
  std::size_t tokens = 0;
  for (const std::size_t slot : reading_) {
    const Sequence& sequence = running_[slot]->sequence;
    tokens += sequence.tokens_to_read() - sequence.tokens_read();
  }
  if (tokens > 0 && tokens < kEnoughToRead && stepping_ > 0 && gathered_ < gather_steps_) {
    ++gathered_;
    return true;
  }
  gathered_ = 0;
  return false;
}

// The scores of a prompt's tokens come of reading them.
void Engine::restore(std::size_t slot) {
  Running& running = *running_[slot];
  const auto index = static_cast<std::int64_t>(slot);
  const GenerationOptions& options = running.sequence.options();
  StateCache::Found found;
  const StateCopy* const start = running.request().start.get();
  if (start != nullptr) states_.copy(start->states, 0, index);
  // What was read into a state that came with it, the cache does not know.
  if (!options.score_prompt && start == nullptr && cache_.keeps()) {
    ++metrics_.cache_lookups;
    found = cache_.restore(running.sequence.prompt(), states_, index);
    plan_cuts(running, found);
  }
  if (start == nullptr && found.tokens == 0) states_.clear(index);
  if (found.tokens > 0) {
    running.sequence.skip(found.tokens);
    if (options.stream == 0) running.job->add_cached_tokens(found.tokens);  // as the tokens of a prompt, once for all n
    ++metrics_.cache_hits;
    metrics_.cached_tokens += found.tokens;
  }
  metrics_.prompt_tokens += running.sequence.prompt().size() - found.tokens;
}

// At the prompt's end, where it parts from what was read before, and now and then between, or at the last places before
// these where it may be cut. Also where the segment of its end begins: texts that go on past that segment need it.
void Engine::plan_cuts(Running& running, const StateCache::Found& found) const {
  const std::size_t size = running.sequence.prompt().size();
  const std::size_t end = size - 1;  // a token must be left to read
  const auto cut = [&](std::size_t tokens) {
    const std::size_t at = cuts_.last(std::min(tokens, end), size);
    if (at <= found.tokens || at < least_kept(states_.device())) return;
    running.sequence.cut(at);
    running.keep_at.insert(at);
  };
  cut(end);
  cut(cuts_.segment_of(end));
  cut(found.shared);
  const std::size_t distance = kept_distance(states_.device());
  for (std::size_t at = (found.tokens + distance / 2) / distance * distance + distance; at < end; at += distance)
    cut(at);
}

// The states of sequences that are at a cut of their prompts, before anything else happens to them.
void Engine::keep(std::span<const std::int64_t> slots) {
  for (const std::int64_t slot : slots) {
    const Running& running = *running_[static_cast<std::size_t>(slot)];
    const Sequence& sequence = running.sequence;
    if (sequence.done() || !running.keep_at.contains(sequence.tokens_read())) continue;
    cache_.keep(sequence.prompt().first(sequence.tokens_read()), states_, slot);
  }
  count_cache();
}

void Engine::count_cache() {
  metrics_.cache_snapshots = static_cast<std::int64_t>(cache_.snapshots());
  metrics_.cache_bytes = static_cast<std::int64_t>(cache_.bytes());
  metrics_.cache_evictions = cache_.evicted();
  metrics_.cache_files = static_cast<std::int64_t>(cache_.files());
  metrics_.cache_file_bytes = static_cast<std::int64_t>(cache_.file_bytes());
  metrics_.cache_files_loaded = cache_.loaded();
}

bool Engine::follow(std::size_t slot) {
  Running& running = *running_[slot];
  const SequenceRequest& request = running.job->sequences()[running.index];
  if (request.shared > 0) running.sequence.cut(request.shared);  // also where nobody is there to follow
  for (std::size_t other = 0; other < running_.size(); ++other) {
    if (other == slot || running_[other] == nullptr || running_[other]->job != running.job) continue;
    const Running& leader = *running_[other];
    const SequenceRequest& leading = running.job->sequences()[leader.index];
    if (leader.leader || !leader.sequence.reading()) continue;
    const bool same = std::ranges::equal(leading.prompt, request.prompt);
    const bool begins_alike =
        request.group > 0 && leading.group == request.group && leader.sequence.tokens_read() < request.shared;
    if (!same && !begins_alike) continue;
    running.leader = other;
    running.fork_at = same ? leader.sequence.tokens_to_read() : request.shared;
    if (same) decoder_.follow(static_cast<std::int64_t>(slot), static_cast<std::int64_t>(other));
    ++metrics_.forked_sequences;
    return true;
  }
  return false;
}

void Engine::fork() {
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr || !running_[slot]->leader) continue;
    Running& running = *running_[slot];
    const Sequence& leader = running_[*running.leader]->sequence;
    if (leader.tokens_read() < running.fork_at) continue;
    if (running.sequence.reading()) {  // else the decoder has done it
      states_.copy(states_, static_cast<std::int64_t>(*running.leader), static_cast<std::int64_t>(slot));
      running.sequence.fork(leader);
      reading_.push_back(slot);
    }
    running.leader.reset();
  }
}

void Engine::hand_over(std::size_t slot) {
  const Running& running = *running_[slot];
  const SequenceRequest& request = running.request();
  if (request.end == nullptr || !running.sequence.done()) return;
  const std::span<const std::int32_t> tokens = running.sequence.tokens();
  const std::span<const std::int32_t> read = tokens.first(tokens.size() - 1);
  const SavedState before = request.start != nullptr ? request.start->info : SavedState{};
  decoder_.settle(static_cast<std::int64_t>(slot));
  request.end->states.copy(states_, static_cast<std::int64_t>(slot), 0);
  request.end->info = {.tokens = before.tokens + static_cast<std::int64_t>(read.size()),
                       .token_hash = hash_tokens(before.token_hash, read),
                       .pending = tokens.back()};
}

void Engine::note_answer(const Running& running) {
  const GenerationOptions& options = running.sequence.options();
  if (running.request().start != nullptr) return;
  if (options.score_prompt || options.max_tokens == 0 || !cache_.keeps() || options.stream > 0) return;
  const std::span<const std::int32_t> tokens = running.sequence.tokens();
  const std::size_t end = tokens.size() / cuts_.grid * cuts_.grid;
  const std::size_t prompt_end = running.sequence.prompt().size() - 1;
  if (end <= prompt_end || end < least_kept(states_.device())) return;
  ended_.push_front({{tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)}, cuts_.last(prompt_end, end)});
  if (ended_.size() > kMostEnded) ended_.pop_back();
}

// Tokens of an answer were read one by one, and the state that they left has other bits than their text as a prompt:
// that is what must be read. The state is kept where its last segment begins, too, as for prompts.
void Engine::read_ahead() {
  const Ended& text = ended_.front();
  const auto done = [this] {
    ended_.pop_front();
    read_ahead_ = 0;
    count_cache();
  };
  try {
    if (read_ahead_ == 0) {
      const std::size_t known = cache_.longest(text.tokens);
      if (known == text.tokens.size() || known < text.prompt_cut) return done();  // nothing new, or too much
      states_.clear(0);
      read_ahead_ = cache_.restore(text.tokens, states_, 0).tokens;
    }
    // On a CPU a piece takes long, and somebody may come.
    const std::size_t most = states_.device().gpu == nullptr ? cuts_.grid : prompt_piece(states_.device());
    const std::size_t segment = cuts_.segment_of(text.tokens.size());
    const std::size_t kept = read_ahead_ < segment ? segment : text.tokens.size();
    const std::size_t end = std::min(read_ahead_ + most, kept);
    decoder_.read_piece({.prompt = text.tokens, .begin = read_ahead_, .end = end, .slot = 0});
    metrics_.read_ahead_tokens += end - read_ahead_;
    read_ahead_ = end;
    if (end == kept) cache_.keep(std::span(text.tokens).first(kept), states_, 0);
    if (end == text.tokens.size()) done();
  } catch (const std::exception&) {  // nobody waits for it
    done();
  }
}

void Engine::fail_running(const std::string& why, int status) {
  outbox_.send(letters_);
  outbox_.flush();
  try {
    decoder_.finish_step();
  } catch (const std::exception&) {  // what was launched is lost with the rest
    static_cast<void>(0);
  }
  for (const std::unique_ptr<Running>& running : running_) {
    if (running != nullptr) running->leader.reset();  // or `leave` would have it read on by itself
  }
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr) continue;
    if (!running_[slot]->sequence.done()) running_[slot]->job->fail(why, status);
    leave(slot);
  }
}

void Engine::fail_waiting(const std::string& why, int status) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Job>& job : std::exchange(queue_, {})) job->fail(why, status);
  started_ = 0;
  metrics_.queued = 0;
}

}  // namespace qdelta::serve
