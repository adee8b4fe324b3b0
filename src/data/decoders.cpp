#include "data/decoders.h"

#include <algorithm>
#include <optional>

#include "data/byte_alphabet.h"
#include "data/pattern.h"
#include "data/pipeline_limits.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::string_view kAll = "the decoders";

// In bytes; that there is a token counts too, as steps may put a space before each.
std::size_t size_of(const std::vector<std::string>& tokens) {
  std::size_t size = tokens.size();
  for (const std::string& token : tokens) size += token.size();
  return size;
}

// The text with `to` for each `from`, from the left.
std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return result.append(text, done);
}

// English as it is written: no space before a full stop, contractions.
std::string cleaned_up(std::string text) {
  struct Change {
    std::string_view from;
    std::string_view to;
  };
  static constexpr Change kChanges[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const Change& change : kChanges) {
    if (text.find(change.from) != std::string::npos) text = replaced(text, change.from, change.to);
  }
  return text;
}

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
      tokens[i] = replaced(tokens[i], replacement_, i == 0 && prepended_ ? "" : " ");
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
    const GrowthLimit limit(size_of(tokens), kAll);
    std::size_t before = 0;  // this token
    for (std::string& token : tokens) {
      // Bytes that were kept may be no text for a regular expression.
      if (token.empty() || (pattern_.needs_utf8() && first_invalid_utf8(token))) continue;
      std::string text;
      pattern_.for_each_segment(token, [&](std::size_t begin, std::size_t end, bool is_match) {
        text += is_match ? std::string_view(content_) : std::string_view(token).substr(begin, end - begin);
        limit.check(before + text.size());
      });
      before += text.size();
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

// Tokens that go on a word have the prefix ##; a space comes before the others.
class WordPiece final : public Decoder {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else if (i > 0) {
        token = ' ' + token;
      }
      if (cleanup_) token = cleaned_up(std::move(token));
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// The suffix </w> ends a word: a space, but not at the end of the text.
class BpeSuffix final : public Decoder {
 public:
  explicit BpeSuffix(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replaced(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

// Of a model that gives a token for each moment of speech: repeated ones count once, a padding token parts them.
class Ctc final : public Decoder {
 public:
  struct Settings {
    std::string pad_token;
    std::string word_delimiter;
    bool cleanup = true;
  };
  explicit Ctc(Settings settings) : settings_(std::move(settings)) {}
  void apply(std::vector<std::string>& tokens, Bytes /*bytes*/) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      token = replaced(token, settings_.pad_token, "");
      if (settings_.cleanup) token = replaced(cleaned_up(std::move(token)), settings_.word_delimiter, " ");
    }
    std::erase(tokens, std::string());
  }

 private:
  Settings settings_;
};

class Sequence final : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
    const GrowthLimit limit(size_of(tokens), kAll);
    for (const auto& step : steps_) {
      step->apply(tokens, bytes);
      limit.check(size_of(tokens));
    }
  }
  [[nodiscard]] bool is_byte_level() const override { return steps_.size() == 1 && steps_[0]->is_byte_level(); }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::string text_to_find(const JsonAt& json) {
  std::string text = json.text();
  if (text.empty()) json.unsupported("an empty text to look for is not supported");
  return text;
}

// One that is no sequence.
std::unique_ptr<Decoder> make_step(const JsonAt& json) {
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
  if (type == "WordPiece") {
    json.only({"type", "prefix", "cleanup"});
    return std::make_unique<WordPiece>(json.at("prefix").text(), json.at("cleanup").boolean());
  }
  if (type == "BPEDecoder") {
    json.only({"type", "suffix"});
    return std::make_unique<BpeSuffix>(text_to_find(json.at("suffix")));
  }
  if (type == "CTC") {
    json.only({"type", "pad_token", "word_delimiter_token", "cleanup"});
    return std::make_unique<Ctc>(Ctc::Settings{text_to_find(json.at("pad_token")),
                                               text_to_find(json.at("word_delimiter_token")),
                                               json.at("cleanup").boolean()});
  }
  json.unsupported(
      "the decoder {} is not supported; those that are: ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse, "
      "WordPiece, BPEDecoder, CTC, Sequence",
      shown(type));
}

// Sequences within sequences become one.
void collect(const JsonAt& json, std::vector<std::unique_ptr<Decoder>>& steps) {
  if (json.is_null()) json.corrupt("must be a decoder, not null");
  if (json.at("type").text() != "Sequence") {
    check_steps(json, steps.size() + 1);
    steps.push_back(make_step(json));
    return;
  }
  json.only({"type", "decoders"});
  for (const JsonAt& step : json.at("decoders").elements()) collect(step, steps);
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const JsonAt& json) {
  if (json.is_null()) return nullptr;
  std::vector<std::unique_ptr<Decoder>> steps;
  collect(json, steps);
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace qdelta
