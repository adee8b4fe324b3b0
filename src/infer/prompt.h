// A text as a model is given it.
#pragma once

#include <cstdint>
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

}  // namespace qdelta
