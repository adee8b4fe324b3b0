// The one thread that runs the model, for all clients at once.
//
// It goes round: sequences whose clients have gone leave; waiting ones take the free places; some of the prompts are
// read on; then every sequence that has read its prompt takes one step, all of them as one batch. A place is a slot in
// a pool of recurrent states, so memory does not depend on how long anything is.
//
// A prompt is read up to its last token, in pieces of its own (so that the cuts do not depend on the company), and
// scored on the way if asked for. The last token is the first step's: from there on a prompt and what was generated are
// the same thing. Sampling is the host's, each sequence with random numbers of its own.
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
#include "infer/recorded_steps.h"
#include "model/language_model.h"
#include "serve/job.h"
#include "serve/metrics.h"
#include "serve/row.h"

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
  void run();
  void admit();
  void leave(std::size_t slot);
  void read_prompts();
  void step();
  // Whatever is in the batch, or waits, ends here.
  void fail_running(const std::string& why);
  void fail_waiting(const std::string& why);
  [[nodiscard]] bool idle() const;

  const LanguageModel& model_;
  const Tokenizer& tokenizer_;
  Metrics& metrics_;
  const std::size_t max_queue_;

  // The engine's thread's own.
  std::shared_ptr<const DeviceWeights> weights_;
  ModelRunner runner_;  // reads prompts
  ModelStates states_;
  RecordedSteps steps_;
  std::vector<std::unique_ptr<Row>> rows_;  // by slot; null where it is free
  std::size_t started_ = 0;                 // sequences of the first request in the queue that are in the batch
  std::uint64_t arrivals_ = 0;
  std::vector<float> logits_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool closed_ = false, ending_ = false, busy_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace qdelta::serve
