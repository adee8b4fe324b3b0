// From texts to the tokens that are scored, as lm-evaluation-harness's model on Hugging Face tokenizers does it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace qdelta::eval {

using Tokens = std::vector<std::int32_t>;

// Whether a begin-of-text token goes before a text.
enum class Bos {
  automatic,  // as the tokenizer's own files say
  on,
  off
};
[[nodiscard]] Bos bos_of(const std::string& name);  // auto, on, off

// What is scored: the continuation's tokens after the context's. Neither is empty.
struct TokenPair {
  Tokens context, continuation;
};

class RequestEncoder {
 public:
  // `max_length`: the most tokens that a likelihood is taken over; a longer context loses its beginning.
  RequestEncoder(const Tokenizer& tokenizer, Bos bos, std::int64_t max_length);

  // The tokens of a text, the begin-of-text token among them where it is wanted.
  [[nodiscard]] Tokens encode(std::string_view text) const;
  // White space at the end of the context goes to the continuation; the continuation is what the tokens of both
  // together have after as many as the context alone has. An empty context is one begin-of-text token.
  [[nodiscard]] TokenPair pair(std::string_view context, std::string_view continuation) const;
  // Windows of at most max_length tokens that together score every token of a text once. The first predicts from the
  // begin-of-text token; the others keep one token of the window before as context, the last one more, as many as fit.
  [[nodiscard]] std::vector<TokenPair> rolling(std::string_view text) const;

  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] bool adds_bos() const { return adds_bos_; }

 private:
  // The begin-of-text token; where there is none the end-of-text token.
  [[nodiscard]] std::int32_t first_token() const;

  const Tokenizer& tokenizer_;
  bool adds_bos_;
  std::int64_t max_length_;
};

}  // namespace qdelta::eval
