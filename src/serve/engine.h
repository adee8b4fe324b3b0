// The one thread that runs the model, for all clients at once.
//
// Each round sequences whose clients have gone leave, waiting ones take the free slots, some of the prompts are read
// further, and every sequence that has read its prompt takes one step, all of them as one batch (infer/decoder.h). A
// slot is one of a pool of recurrent states, so memory does not depend on how long anything is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/tokenizer.h"
#include "infer/decoder.h"
#include "model/language_model.h"
#include "serve/job.h"
#include "serve/metrics.h"

namespace qdelta::serve {

struct EngineOptions {
  std::int64_t max_batch = 16;  // sequences at a time
  std::int64_t max_queue = 64;  // requests that may wait
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

 private:
  // A sequence while it is in the batch.
  struct Running {
    std::shared_ptr<Job> job;
    std::size_t index = 0;  // of the job's sequences
    std::uint64_t arrival = 0;
    Sequence sequence;
  };

  void run();
  void admit();
  void leave(std::size_t slot);
  void read_prompts();
  void step();
  // Passes on what is new of the sequences.
  void send_updates();
  // Whatever is in the batch, or waits, ends here.
  void fail_running(const std::string& why);
  void fail_waiting(const std::string& why);
  [[nodiscard]] bool idle() const;

  const Tokenizer& tokenizer_;
  Metrics& metrics_;
  const std::size_t max_queue_;

  // The engine's thread's own.
  ModelStates states_;
  Decoder decoder_;
  std::vector<std::unique_ptr<Running>> running_;  // by slot; null where it is free
  std::size_t started_ = 0;                        // sequences of the first request in the queue that are in the batch
  std::uint64_t arrivals_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool closed_ = false, ending_ = false, busy_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace qdelta::serve
