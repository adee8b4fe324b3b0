// A tokenizer whose every id is a word, for models of random weights with any vocabulary: what they generate has text,
// as much of it as a real model's.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace qdelta::bench {

class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(std::int64_t vocabulary) {
    Traits traits;
    traits.name = "words";
    traits.vocab_size = static_cast<std::int32_t>(vocabulary);
    set_traits(std::move(traits));
  }
  [[nodiscard]] std::string token(std::int32_t id) const override { return fmt::format(" w{}", id); }
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
    std::int32_t id = 0;
    if (!token.starts_with(" w")) return std::nullopt;
    const auto [end, error] = std::from_chars(token.data() + 2, token.data() + token.size(), id);
    if (error != std::errc() || end != token.data() + token.size() || id < 0 || id >= vocab_size()) return std::nullopt;
    return id;
  }

 private:
  // Only its own words; other text is the first of them.
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at + 1), text.size());
      ids.push_back(id_of(text.substr(at, end - at)).value_or(0));
      at = end;
    }
  }
  [[nodiscard]] std::string decode_text(std::span<const std::int32_t> ids, Special /*special*/) const override {
    std::string text;
    for (const std::int32_t id : ids) text += token(id);
    return text;
  }
  [[nodiscard]] std::string decode_raw(std::span<const std::int32_t> ids, Special special) const override {
    return decode_text(ids, special);
  }
};

}  // namespace qdelta::bench
