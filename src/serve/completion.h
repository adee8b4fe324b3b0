// A completion on its way out: the updates of a job become the answer to a client.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "serve/http.h"
#include "serve/job.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/response.h"

namespace qdelta::serve {

// `note`: members for the log's line of the request.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(std::shared_ptr<Exchange> exchange, std::shared_ptr<Job> job, Answer answer,
             std::unique_ptr<MemoryBudget::Share> memory, Metrics& metrics, bool streamed, std::string note);

  // Before the job is submitted.
  void follow();
  // After it has been accepted.
  void begin();

 private:
  using Clock = std::chrono::steady_clock;

  // In the connection's turn.
  [[nodiscard]] Exchange::Piece next_events();
  void collect();
  void answer_whole();
  void note_first_token();
  void finished();

  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Job> job_;
  Answer answer_;
  std::unique_ptr<MemoryBudget::Share> memory_;
  Metrics& metrics_;
  const bool streamed_;
  const std::string note_;  // more for the log
  bool answered_ = false;
  const Clock::time_point begin_ = Clock::now();
  double first_token_ = -1;  // seconds
};

}  // namespace qdelta::serve
