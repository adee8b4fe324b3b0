#include "data/decoders.h"

#include <optional>

#include "data/byte_alphabet.h"
#include "data/pattern.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, all);
}

class Fuse final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override { fuse(tokens); }
};

class ByteLevel final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
    for (std::string& token : tokens) {
      if (auto decoded = ByteAlphabet::get().decode(token)) token = std::move(*decoded);
    }
    fuse(tokens);
    if (bytes == Bytes::replace && first_invalid_utf8(tokens[0])) tokens[0] = unicode::with_replacements(tokens[0]);
  }
  [[nodiscard]] bool is_byte_level() const override { return true; }
};

// <0x0A> and so on. A run of them that is not UTF-8 as a whole becomes one U+FFFD for each.
class ByteFallback final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
    std::vector<std::string> result;
    std::string run;
    const auto finish = [&] {
      if (run.empty()) return;
      if (bytes == Bytes::keep || !first_invalid_utf8(run)) {
        result.push_back(run);
      } else {
        for (std::size_t i = 0; i < run.size(); ++i) result.emplace_back(unicode::kReplacement);
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const std::optional<char> byte = byte_of(token)) {
        run += *byte;
      } else {
        finish();
        result.push_back(std::move(token));
      }
    }
    finish();
    tokens = std::move(result);
  }

 private:
  static std::optional<char> byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (const char c : {token[3], token[4]}) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    return static_cast<char>(static_cast<unsigned char>(value));
  }
};

class Metaspace final : public Decoder {
 public:
  Metaspace(char32_t replacement, bool prepended) : prepended_(prepended) {
    unicode::append(replacement_, replacement);
  }
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view space = i == 0 && prepended_ ? "" : " ";
      std::string text;
      const std::string& token = tokens[i];
      std::size_t done = 0;
      for (std::size_t at = token.find(replacement_); at != std::string::npos; at = token.find(replacement_, done)) {
        text.append(token, done, at - done).append(space);
        done = at + replacement_.size();
      }
      tokens[i] = text.append(token, done);
    }
  }

 private:
  std::string replacement_;
  bool prepended_;
};

class Replace final : public Decoder {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override {
    for (std::string& token : tokens) {
      // Bytes that were kept may be no text for a regular expression.
      if (token.empty() || (pattern_.needs_utf8() && first_invalid_utf8(token))) continue;
      std::string text;
      pattern_.for_each_segment(token, [&](std::size_t begin, std::size_t end, bool is_match) {
        text += is_match ? std::string_view(content_) : std::string_view(token).substr(begin, end - begin);
      });
      token = std::move(text);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Up to `count` of a character, at the start of each token.
class Strip final : public Decoder {
 public:
  Strip(char32_t content, std::int64_t count) : count_(count) { unicode::append(content_, content); }
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override {
    for (std::string& token : tokens) {
      std::size_t begin = 0;
      for (std::int64_t i = 0; i < count_ && std::string_view(token).substr(begin).starts_with(content_); ++i) {
        begin += content_.size();
      }
      token.erase(0, begin);
    }
  }

 private:
  std::string content_;
  std::int64_t count_;
};

class Sequence final : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
    for (const auto& step : steps_) step->apply(tokens, bytes);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const JsonAt& json) {
  if (json.is_null()) return nullptr;
  const std::string type = json.at("type").text();
  if (type == "ByteLevel") {
    json.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return std::make_unique<ByteLevel>();
  }
  if (type == "Fuse" || type == "ByteFallback") {
    json.only({"type"});
    if (type == "Fuse") return std::make_unique<Fuse>();
    return std::make_unique<ByteFallback>();
  }
  if (type == "Metaspace") {
    json.only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    const bool never = json.has("prepend_scheme") && json.at("prepend_scheme").text() == "never";
    if (!json.boolean_or("add_prefix_space", true) && !never) {
      json.corrupt("add_prefix_space is false, but prepend_scheme is not \"never\"");
    }
    return std::make_unique<Metaspace>(json.at("replacement").character(), !never);
  }
  if (type == "Replace") {
    json.only({"type", "pattern", "content"});
    return std::make_unique<Replace>(Pattern(json.at("pattern")), json.at("content").text());
  }
  if (type == "Strip") {
    json.only({"type", "content", "start", "stop"});
    if (json.at("stop").integer(0, INT32_MAX) != 0) {
      json.at("stop").unsupported("stripping at the end is not supported: it would have to take back what was decoded");
    }
    return std::make_unique<Strip>(json.at("content").character(), json.at("start").integer(0, INT32_MAX));
  }
  if (type == "Sequence") {
    json.only({"type", "decoders"});
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const JsonAt& step : json.at("decoders").elements()) {
      if (step.is_null()) step.corrupt("must be a decoder, not null");
      steps.push_back(make_decoder(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  json.unsupported(
      "the decoder {} is not supported; those that are: ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse, "
      "Sequence",
      shown(type));
}

}  // namespace qdelta
