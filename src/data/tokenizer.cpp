#include "data/tokenizer.h"

#include <utility>

#include "core/fnv1a.h"
#include "core/hash.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {

Tokenizer::Fingerprint::Fingerprint(std::initializer_list<std::string_view> contents)
    : present(hash_texts(contents)), version1(fnv1a::of_texts(contents)) {}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  if (takes_any_bytes() || !first_invalid_utf8(text)) {
    encode_text(text, ids);
  } else {
    encode_text(unicode::with_replacements(text), ids);
  }
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_with_special(std::string_view text) const {
  std::vector<std::int32_t> ids = encode(text);
  ids.insert(ids.begin(), traits_.prefix.begin(), traits_.prefix.end());
  ids.insert(ids.end(), traits_.suffix.begin(), traits_.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, Special special) const {
  return decode_text(ids, special);
}

std::string Tokenizer::decode_bytes(std::span<const std::int32_t> ids, Special special) const {
  return decode_raw(ids, special);
}

std::string TokenStream::push(std::int32_t id) {
  context_.push_back(id);
  std::string text = tokenizer_.decode_bytes(context_, special_);
  // What a token reads like depends on whether one stands before it (the first space may be dropped), so each is
  // decoded behind the last one that gave text.
  held_.append(text, std::min(context_text_.size(), text.size()));
  context_text_ = std::move(text);
  const std::int32_t last[] = {id};
  std::string alone = tokenizer_.decode_bytes(last, special_);
  if (!alone.empty()) {
    context_.assign(1, id);
    context_text_ = std::move(alone);
  }

  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const unicode::Step next = unicode::step(rest);
    if (next.kind == unicode::Step::Kind::incomplete) break;
    out += next.kind == unicode::Step::Kind::character ? rest.substr(0, next.length) : unicode::kReplacement;
    rest.remove_prefix(next.length);
  }
  held_ = std::string(rest);
  return out;
}

std::string TokenStream::finish() {
  std::string out = unicode::with_replacements(held_);
  held_.clear();
  context_.clear();
  context_text_.clear();
  return out;
}

}  // namespace qdelta
