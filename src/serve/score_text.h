// The log-probabilities of tokens as JSON: four lists of equal length for completions, one list of objects for chats.
// Written a part at a time.
#pragma once

#include <span>
#include <string>

#include "data/tokenizer.h"
#include "infer/sequence.h"
#include "serve/token_text.h"

namespace qdelta::serve {

class ScoreText {
 public:
  // `stream` is where the tokens' text begins, for the places of tokens in it.
  ScoreText(const TokenText& token_text, TokenStream stream, bool chat)
      : token_text_(token_text), stream_(std::move(stream)), chat_(chat) {}

  // Which list is being written, and which token of it.
  struct Position {
    int list = 0;
    std::size_t token = 0;
  };
  // Appends the JSON of the tokens' scores from a position on, until `out` is long enough; true at the end.
  bool put(std::span<const ScoredToken> tokens, Position& at, std::string& out);

 private:
  void put_completion_value(int list, const ScoredToken& token, std::string& out);
  void put_top(const ScoredToken& token, std::string& out) const;
  void put_chat_token(const ScoredToken& token, std::string& out) const;

  const TokenText& token_text_;
  TokenStream stream_;
  bool chat_;
  std::size_t offset_ = 0;  // characters before the next token
};

}  // namespace qdelta::serve
