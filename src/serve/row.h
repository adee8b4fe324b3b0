// A sequence while it is in the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/held_text.h"
#include "serve/job.h"

namespace qdelta::serve {

// A token's place among the logits: its own log-probability and those of the `top` most likely, the first of equal ones
// first. All from one sum, so that equal tokens have equal numbers.
[[nodiscard]] ScoredToken scored(std::int32_t token, std::span<const float> logits, std::int64_t top);

class Row {
 public:
  Row(std::shared_ptr<Job> job, std::size_t sequence, std::uint64_t arrival, const Tokenizer& tokenizer);

  [[nodiscard]] Job& job() const { return *job_; }
  [[nodiscard]] const SequencePlan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t arrival() const { return arrival_; }
  [[nodiscard]] bool done() const { return done_; }

  // What is to be read of the prompt next, at most so many tokens; empty once only its last token is left.
  [[nodiscard]] std::span<const std::int32_t> unread(std::size_t most) const;
  // The token that follows the i-th of these.
  [[nodiscard]] std::int32_t after_unread(std::size_t i) const;
  // So many of them have been read; with the scores of the tokens that follow each, where they were asked for.
  void read(std::size_t count, std::vector<ScoredToken> scores);

  // The token that the next step reads.
  [[nodiscard]] std::int32_t last() const { return seen_.back(); }
  // Chooses the token that follows.
  void advance(std::span<const float> logits);

 private:
  void send(Update update, Finish finish);

  std::shared_ptr<Job> job_;
  const SequencePlan& plan_;
  std::size_t sequence_;
  std::uint64_t arrival_;
  Sampler sampler_;
  TokenStream stream_;
  HeldText held_;
  std::optional<std::int32_t> eos_;
  std::vector<std::int32_t> seen_;
  std::vector<ScoredToken> prompt_scores_;
  std::size_t read_ = 0;
  std::int64_t generated_ = 0;
  bool done_ = false;
};

}  // namespace qdelta::serve
