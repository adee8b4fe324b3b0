#include "data/added_tokens.h"

#include <algorithm>

#include "data/unicode.h"

namespace qdelta {

void TextFinder::add(std::string_view text, std::size_t value) {
  if (text.empty()) return;
  trie_.add(text, static_cast<std::int32_t>(value));
  empty_ = false;
}

bool TextFinder::find(std::string_view text, std::size_t start, Found& found) const {
  if (empty_) return false;
  for (std::size_t begin = start; begin < text.size(); ++begin) {
    bool any = false;
    std::int32_t node = ByteTrie::kRoot;
    for (std::size_t at = begin; at < text.size(); ++at) {
      node = trie_.child(node, static_cast<unsigned char>(text[at]));
      if (node == ByteTrie::kNone) break;
      const std::int32_t value = trie_.value(node);
      if (value == ByteTrie::kNone) continue;
      any = true;
      found = {begin, at + 1, static_cast<std::size_t>(value)};
    }
    if (any) return true;
  }
  return false;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& forms)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) (tokens_[i].normalized ? normalized_ : plain_).add(forms[i], i);
}

bool AddedTokens::fit(const AddedToken& token, std::string_view text, std::size_t done, Extent& extent) {
  if (token.single_word) {
    const auto is_word = [&](std::size_t at) {
      return unicode::word().contains(unicode::character_at(text.data() + at).code);
    };
    if (extent.begin > 0 && is_word(unicode::character_before(text, extent.begin))) return false;
    if (extent.end < text.size() && is_word(extent.end)) return false;
  }
  if (token.lstrip) {
    std::size_t begin = extent.begin;
    while (begin > 0) {
      const std::size_t before = unicode::character_before(text, begin);
      if (!unicode::is_space(unicode::character_at(text.data() + before).code)) break;
      begin = before;
    }
    extent.begin = std::max(begin, done);  // the token before may have taken it
  }
  while (token.rstrip && extent.end < text.size()) {
    const unicode::Character c = unicode::character_at(text.data() + extent.end);
    if (!unicode::is_space(c.code)) break;
    extent.end += c.length;
  }
  return true;
}

}  // namespace qdelta
