#include "data/added_tokens.h"

#include <algorithm>

#include "data/unicode.h"

namespace qdelta {

void TextFinder::add(std::string_view text, std::size_t value) {
  if (text.empty()) return;
  if (nodes_.empty()) nodes_.emplace_back();
  first_[static_cast<unsigned char>(text[0])] = true;
  std::int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[static_cast<std::size_t>(node)].value = static_cast<std::int64_t>(value);
}

std::int32_t TextFinder::child(std::int32_t node, unsigned char byte) const {
  for (const auto& [label, next] : nodes_[static_cast<std::size_t>(node)].children) {
    if (label == byte) return next;
  }
  return kNone;
}

bool TextFinder::find(std::string_view text, std::size_t start, Found& found) const {
  if (nodes_.empty()) return false;
  for (std::size_t begin = start; begin < text.size(); ++begin) {
    if (!first_[static_cast<unsigned char>(text[begin])]) continue;
    bool any = false;
    std::int32_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      node = child(node, static_cast<unsigned char>(text[at]));
      if (node == kNone) break;
      const std::int64_t value = nodes_[static_cast<std::size_t>(node)].value;
      if (value == kNone) continue;
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
