#include "serve/token_text.h"

#include <fmt/format.h>

#include <iterator>

#include "io/untrusted_text.h"

namespace qdelta::serve {

TokenText::TokenText(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), before_(tokenizer.encode("a")), before_text_(tokenizer.decode_bytes(before_)) {}

std::string TokenText::bytes(std::int32_t id) const {
  std::vector<std::int32_t> ids = before_;
  ids.push_back(id);
  std::string text = tokenizer_.decode_bytes(ids);
  if (!text.starts_with(before_text_) || text.size() == before_text_.size()) return tokenizer_.token(id);
  return text.erase(0, before_text_.size());
}

std::string TokenText::operator()(std::int32_t id) const {
  std::string text = bytes(id);
  if (!first_invalid_utf8(text)) return text;
  std::string bytes = "bytes:";
  for (const char c : text) {
    fmt::format_to(std::back_inserter(bytes), "\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return bytes;
}

std::string TokenText::distinct(std::int32_t id) const { return fmt::format("{}<id {}>", (*this)(id), id); }

}  // namespace qdelta::serve
