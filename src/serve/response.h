// What clients are told, as OpenAI's completions and chat completions have it: one JSON object, or a stream of them as
// server-sent events. Either is written out in pieces, so that an answer of any size takes little memory as text.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "infer/sequence_text.h"
#include "serve/job.h"
#include "serve/request.h"
#include "serve/score_text.h"
#include "serve/token_text.h"

namespace qdelta::serve {

struct AnswerHead {
  std::string id;
  std::int64_t created = 0;
  std::string model;
};

// One for each request: takes the updates of its sequences in turn and gives what a client should see of them.
class Answer {
 public:
  Answer(const Tokenizer& tokenizer, const TokenText& token_text, const CompletionRequest& request,
         std::span<const SequenceRequest> sequences, AnswerHead head);

  // For an answer in one piece. True where the sequence ends here because of a stop string, which nobody else knows.
  bool add(Update update);
  // For a stream: appends the event of an update, one of `put_in_parts`. Likewise.
  bool add_events(Update update, std::string& out);
  [[nodiscard]] std::string last_events() const;

  // Whether all sequences have ended.
  [[nodiscard]] bool complete() const { return ended_ == sequences_.size(); }
  // Of a complete answer in one piece: the next part of its text, empty at the end.
  [[nodiscard]] std::string next_part();
  // All of it.
  [[nodiscard]] std::string whole();

  void set_cached_tokens(std::int64_t tokens) { cached_tokens_ = tokens; }
  // What is said of the state that has been kept, as JSON.
  void set_state(std::string state) { state_ = std::move(state); }
  [[nodiscard]] std::int64_t prompt_tokens() const { return prompt_tokens_; }
  [[nodiscard]] std::int64_t completion_tokens() const { return completion_tokens_; }

 private:
  // A sequence so far, or since the last event.
  struct Sequence {
    SequenceText reader;
    ScoreText score_text;
    std::string text;     // at first the prompt's, where it is echoed
    std::size_t pending;  // tokens of the prompt that the client has not sent, and whose scores are yet to come
    std::vector<ScoredToken> scored;
    bool begun = false;  // an event has told the role
    EndReason end = EndReason::none;
  };
  // Takes an update in: its text and scores are appended to the sequence's.
  bool take(Update& update, Sequence& sequence);
  void put_event(std::size_t index, Sequence& sequence, EndReason end, std::string& out);
  void open_choice(std::size_t index, const Sequence& sequence, bool whole, std::string& out) const;
  static void close_choice(EndReason end, std::string& out);
  [[nodiscard]] std::string opening(const char* object) const;
  [[nodiscard]] std::string usage() const;
  [[nodiscard]] std::string state() const { return state_.empty() ? "" : ",\"state\":" + state_; }

  const bool chat_, scored_, stream_usage_;
  AnswerHead head_;
  std::string state_;
  std::int64_t prompt_tokens_ = 0, completion_tokens_ = 0, cached_tokens_ = 0;
  std::vector<Sequence> sequences_;
  std::size_t ended_ = 0;
  // How far next_part has come: which sequence, and which of its scores.
  std::size_t part_ = 0;
  std::optional<ScoreText::Position> position_;
};

// Adds an update as parts of it that have few scores of a prompt each: an event has no more, so that those of a long
// prompt need not be text all at once.
inline constexpr std::size_t kScoresInEvent = 256;
void put_in_parts(Update update, std::deque<Update>& out);

// One server-sent event.
[[nodiscard]] std::string event(std::string_view data);

}  // namespace qdelta::serve
