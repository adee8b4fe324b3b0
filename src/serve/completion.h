// A completion on its way out: the updates of a job become the answer to a client.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "serve/api_error.h"
#include "serve/http.h"
#include "serve/job.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/response.h"

namespace qdelta::serve {

// What stands beside an answer.
struct CompletionOptions {
  bool streamed = false;
  // Keeps the state that the job has left, and gives what is to be said of it, as JSON; throws ApiError. On a thread
  // that may take its time, before the answer ends. Null: no state is kept.
  std::function<std::string()> keep_state;
  bool only_state = false;  // which is all that is answered
  std::string note;         // members for the log's line of the request
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(std::shared_ptr<Exchange> exchange, std::shared_ptr<Job> job, Answer answer,
             std::unique_ptr<MemoryBudget::Share> memory, Metrics& metrics, CompletionOptions options);

  // Before the job is submitted.
  void follow();
  // After it has been accepted.
  void begin();

 private:
  using Clock = std::chrono::steady_clock;

  // In the connection's turn.
  // The head of a stream goes with its first event, as it says how much of the prompts was reused.
  void begin_stream();
  [[nodiscard]] Exchange::Piece next_events();
  void collect();
  // Whether all has been generated, and its state kept where that is asked for; begins to keep it.
  [[nodiscard]] bool complete();
  void keep_state();
  void answer_whole();
  [[nodiscard]] std::pair<std::string, std::string> cached_tokens_header() const;
  void note_first_token();
  void finished();

  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Job> job_;
  Answer answer_;
  std::unique_ptr<MemoryBudget::Share> memory_;
  Metrics& metrics_;
  const CompletionOptions options_;
  std::deque<Update> to_send_;  // of a stream: what has come and is no event yet
  bool accepted_ = false, has_news_ = false, answered_ = false, keeping_ = false;
  std::atomic<bool> streaming_{false};  // the head has been sent
  // What came of keeping the state.
  std::string kept_;
  std::optional<ApiError> not_kept_;
  const Clock::time_point begin_ = Clock::now();
  double first_token_ = -1;  // seconds
};

}  // namespace qdelta::serve
