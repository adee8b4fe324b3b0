// How single tokens read: what stands in `tokens` and `top_logprobs` of an answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace qdelta::serve {

class TokenText {
 public:
  explicit TokenText(const Tokenizer& tokenizer);

  // Its text behind another (so a leading space is there), special tokens as the vocabulary spells them, and what is
  // only part of a character as bytes:\xe2\x80.
  [[nodiscard]] std::string operator()(std::int32_t id) const;
  // The same, told apart from others that read alike: with the id behind it.
  [[nodiscard]] std::string distinct(std::int32_t id) const;
  // The bytes that it adds to a text; those of its spelling where it has none.
  [[nodiscard]] std::string bytes(std::int32_t id) const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> before_;  // the tokens of some text, and that text
  std::string before_text_;
};

}  // namespace qdelta::serve
