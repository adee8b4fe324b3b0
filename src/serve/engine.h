// The one thread that runs the model, for all clients at once.
//
// Each round a step's tokens come in, sequences that are done or whose clients have gone leave, waiting ones take the
// free slots, and the next step is launched: one more token for every sequence that has read its prompt, all of them as
// one batch (infer/decoder.h). While a GPU works on it the tokens are passed on, and prompts are read further: a
// bounded number of tokens, of several prompts in turn, so that neither a stream nor a short prompt waits for a long
// one. The token behind a prompt, for which somebody waits, is passed on as soon as it is there. A slot is one of a
// pool of recurrent states, so memory does not depend on how long anything is.
//
// What was read is not read again: a prompt goes on from the longest state that the cache has of it, samples of one
// prompt and prompts of one request that begin alike read that once and fork, and while nothing else is to be done
// answers are read into the cache, where the next prompt of a conversation finds them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/tokenizer.h"
#include "infer/decoder.h"
#include "infer/sequence_text.h"
#include "model/language_model.h"
#include "serve/job.h"
#include "serve/metrics.h"
#include "serve/outbox.h"
#include "serve/state_cache.h"

namespace qdelta::serve {

struct EngineOptions {
  std::int64_t max_batch = 16;  // sequences at a time
  std::int64_t max_queue = 64;  // requests that may wait
  CacheLimits cache = {};       // for states of prompts
  // Steps that a few tokens to read wait for more of them while streams go on; negative: as is good for the device.
  std::int64_t gather_steps = -1;
  std::size_t segment = 0;  // of prompts (infer/prompt_cuts.h), a multiple of their grid; 0: as the device has it
};

class Engine {
 public:
  enum class Admission { accepted, full, stopping };

  Engine(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device, const EngineOptions& options,
         Metrics& metrics);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The prompts must have tokens, all below the model's vocabulary, and the options must hold (SamplingOptions::check).
  [[nodiscard]] Admission submit(const std::shared_ptr<Job>& job);
  // No more is accepted.
  void close();
  // Waits until all that was accepted is done; false where that takes longer.
  [[nodiscard]] bool drained(std::chrono::milliseconds patience);
  // All that is not done fails, now.
  void abort();

 private:
  // A sequence while it is in the batch.
  struct Running {
    std::shared_ptr<Job> job;
    std::size_t index = 0;  // of the job's sequences
    Sequence sequence;
    std::set<std::size_t> keep_at = {};  // tokens of the prompt after which the state is kept
    // The slot of another sequence of the job that reads for this one, until it has read so many tokens.
    std::optional<std::size_t> leader = std::nullopt;
    std::size_t fork_at = 0;
    // Of a sequence whose state is kept: where a stop string ends it, not what was generated until somebody saw that.
    std::unique_ptr<SequenceText> text = nullptr;

    [[nodiscard]] const SequenceRequest& request() const { return job->sequences()[index]; }
  };
  // A text that has ended, to be read as far as the cache's grid goes.
  struct Ended {
    std::vector<std::int32_t> tokens;
    std::size_t prompt_cut = 0;  // where the last snapshot of its prompt is from which it can be read on
  };

  void run();
  // One round; false at the end.
  bool wait_for_work();
  void work();
  void admit();
  void leave(std::size_t slot);
  // Takes what is new of the sequences; those that have ended leave.
  void collect();
  [[nodiscard]] std::vector<Update> take_news(Running& running);
  void read_prompts();
  // First tokens, at once: neither states that are to be kept nor the next step are waited for.
  void pass_on_first(std::span<const std::int64_t> slots);
  // Whether it is worth waiting for more prompts before any is read.
  [[nodiscard]] bool gather_prompts();
  // Where a sequence begins: at nothing, at a state that came with it, or at what of its prompt the cache has; and
  // where it is to be cut.
  void restore(std::size_t slot);
  void plan_cuts(Running& running, const StateCache::Found& found) const;
  void keep(std::span<const std::int64_t> slots);
  // Whether another sequence of the job reads all that this one has to read, or its beginning: then it waits for that.
  bool follow(std::size_t slot);
  // Those whose leaders have come to where they part go on by themselves.
  void fork();
  // The state that a sequence leaves, for the client that wants to keep it.
  void hand_over(std::size_t slot);
  void note_answer(const Running& running);
  // A piece of an answer that has ended, into the cache. When nothing else is to be done.
  void read_ahead();
  void count_cache();
  // Whatever is in the batch, or waits, ends here.
  void fail_running(const std::string& why, int status);
  void fail_waiting(const std::string& why, int status);

  const Tokenizer& tokenizer_;
  Metrics& metrics_;
  const std::size_t max_queue_;
  const std::int64_t gather_steps_;

  // The engine's thread's own.
  ModelStates states_;
  const PromptCuts cuts_;
  StateCache cache_;
  Decoder decoder_;
  std::vector<std::unique_ptr<Running>> running_;  // by slot; null where it is free
  std::size_t in_batch_ = 0;                       // how many are not
  std::deque<std::size_t> reading_;                // slots with something to read, whose turn it is first
  std::size_t stepping_ = 0;                       // sequences in the step that was launched last
  std::int64_t gathered_ = 0;                      // steps since a prompt could have been read further
  std::size_t started_ = 0;                        // sequences of the first request in the queue that are in the batch
  std::deque<Ended> ended_;                        // answers that are not in the cache, the latest first
  std::size_t read_ahead_ = 0;                     // tokens of the first of them that are in slot 0
  std::vector<Outbox::Letter> letters_;
  Outbox outbox_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool closed_ = false, ending_ = false, aborting_ = false, busy_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace qdelta::serve
