// What clients are told, as OpenAI's completions have it: one JSON object, or a stream of them as server-sent events.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "serve/job.h"
#include "serve/request.h"
#include "serve/token_text.h"

namespace qdelta::serve {

// One for each request: takes the updates of its sequences in turn and gives what a client should see of them.
class Answer {
 public:
  Answer(const Tokenizer& tokenizer, const TokenText& token_text, const CompletionRequest& request,
         std::span<const SequenceRequest> sequences, std::string id, std::int64_t created, std::string model);

  // For an answer in one piece.
  void add(Update update);
  [[nodiscard]] std::string whole() const;

  // For a stream: the events of an update, and those at the end.
  [[nodiscard]] std::string events(Update update);
  [[nodiscard]] std::string last_events() const;

 private:
  // The scores of tokens, as four lists of equal length.
  struct Scores {
    nlohmann::json tokens = nlohmann::json::array(), token_logprobs = nlohmann::json::array(),
                   top_logprobs = nlohmann::json::array(), text_offset = nlohmann::json::array();
  };
  // A sequence so far.
  struct Sequence {
    TokenStream stream;  // of all tokens that are scored, for where each one's text begins
    std::string text;    // at first the prompt's, where it is echoed
    std::size_t offset = 0;
    Scores scores;
    EndReason end = EndReason::none;
  };
  // Takes an update in: its text and scores are appended to the sequence's.
  Sequence& take(Update update);
  void score(Sequence& sequence, const ScoredToken& token) const;
  [[nodiscard]] nlohmann::json choice(std::size_t index, const Sequence& sequence) const;
  [[nodiscard]] nlohmann::json object(nlohmann::json choices) const;
  [[nodiscard]] nlohmann::json usage() const;

  const TokenText& token_text_;
  bool scored_, stream_usage_;
  std::string id_, model_;
  std::int64_t created_, prompt_tokens_ = 0, completion_tokens_ = 0;
  std::vector<Sequence> sequences_;
};

// One server-sent event.
[[nodiscard]] std::string event(const nlohmann::json& data);

}  // namespace qdelta::serve
