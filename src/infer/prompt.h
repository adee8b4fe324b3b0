// A text as a model is given it, and where the text that follows begins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace qdelta {

// Begins with the begin-of-text token, where there is one, `bos` asks for it, and it does not stand there already.
inline std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text, bool bos) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (bos && tokenizer.bos() && (ids.empty() || ids.front() != *tokenizer.bos())) {
    ids.insert(ids.begin(), *tokenizer.bos());
  }
  return ids;
}

// A stream that goes on behind a prompt: what follows reads as it does there (its space is kept, a character that the
// prompt began is completed).
inline TokenStream stream_behind(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt) {
  constexpr std::size_t kEnough = 8;  // tokens; a character has four bytes, and special tokens may stand between
  TokenStream stream(tokenizer);
  for (const std::int32_t id : prompt.last(std::min(kEnough, prompt.size()))) static_cast<void>(stream.push(id));
  return stream;
}

}  // namespace qdelta
