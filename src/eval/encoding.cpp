#include "eval/encoding.h"

#include <algorithm>

#include "core/error.h"
#include "eval/python_text.h"
#include "io/untrusted_text.h"

namespace qdelta::eval {

Bos bos_of(const std::string& name) {
  if (name == "auto") return Bos::automatic;
  if (name == "on") return Bos::on;
  if (name == "off") return Bos::off;
  fail(Status::invalid_argument, "--bos is '{}', expected auto, on or off", name);
}

RequestEncoder::RequestEncoder(const Tokenizer& tokenizer, Bos bos, std::int64_t max_length)
    : tokenizer_(tokenizer), adds_bos_(bos == Bos::on), max_length_(max_length) {
  require(max_length >= 2, "max-length is {}, expected at least 2", max_length);
  require(bos != Bos::on || tokenizer.bos(), "--bos on, but the tokenizer has no begin-of-text token");
  if (bos == Bos::automatic) {
    const auto prefix = tokenizer.prefix();
    adds_bos_ = tokenizer.bos() && std::find(prefix.begin(), prefix.end(), *tokenizer.bos()) != prefix.end();
  }
}

std::int32_t RequestEncoder::first_token() const {
  require(tokenizer_.bos() || tokenizer_.eos(),
          "the tokenizer has neither a begin-of-text nor an end-of-text token to predict a text's first token from");
  return tokenizer_.bos() ? *tokenizer_.bos() : *tokenizer_.eos();
}

Tokens RequestEncoder::encode(std::string_view text) const {
  Tokens ids = tokenizer_.encode(text);
  if (adds_bos_ && (ids.empty() || ids.front() != *tokenizer_.bos())) ids.insert(ids.begin(), *tokenizer_.bos());
  return ids;
}

TokenPair RequestEncoder::pair(std::string_view context, std::string_view continuation) const {
  TokenPair pair;
  if (context.empty()) {
    pair.continuation = tokenizer_.encode(continuation);
    pair.context = {first_token()};
    if (!pair.continuation.empty() && pair.continuation.front() == pair.context.front()) {
      pair.continuation.erase(pair.continuation.begin());
    }
  } else {
    pair.context = encode(right_stripped(context));
    const Tokens whole = encode(std::string(context) + std::string(continuation));
    const auto kept = static_cast<std::ptrdiff_t>(std::min(pair.context.size(), whole.size()));
    pair.continuation.assign(whole.begin() + kept, whole.end());
    if (pair.context.empty()) pair.context = {first_token()};  // nothing but white space
  }
  require(!pair.continuation.empty(), "the continuation {} adds no token to its context", shown(continuation));
  const auto continued = static_cast<std::int64_t>(pair.continuation.size());
  require(continued <= max_length_, "a continuation of {} tokens does not fit a max-length of {}", continued,
          max_length_);
  // The last token is only predicted, so one more fits.
  const std::int64_t room = max_length_ + 1 - continued;
  const auto extra = static_cast<std::int64_t>(pair.context.size()) - room;
  if (extra > 0) pair.context.erase(pair.context.begin(), pair.context.begin() + extra);
  return pair;
}

std::vector<TokenPair> RequestEncoder::rolling(std::string_view text) const {
  const Tokens tokens = encode(text);
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<TokenPair> windows;
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t end = std::min(begin + max_length_, count);
    TokenPair window;
    if (begin == 0) {
      window.context = {first_token()};
    } else {
      window.context.assign(tokens.begin() + std::max<std::int64_t>(end - max_length_ - 1, 0), tokens.begin() + begin);
    }
    window.continuation.assign(tokens.begin() + begin, tokens.begin() + end);
    windows.push_back(std::move(window));
    begin = end;
  }
  return windows;
}

}  // namespace qdelta::eval
