#include "data/normalizers.h"

#include <vector>

#include "data/byte_alphabet.h"
#include "data/pattern.h"
#include "data/pipeline_limits.h"
#include "data/precompiled_map.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::string_view kAll = "the normalizers";

// Every character for which removed(code) does not hold, as mapped(code).
template <class Removed, class Mapped>
void change_characters(NormalizedText& text, const Removed& removed, const Mapped& mapped) {
  std::string to;
  to.reserve(text.text.size());
  for (std::size_t at = 0; at < text.text.size();) {
    const unicode::Character c = unicode::character_at(text.text.data() + at);
    if (!removed(c.code)) {
      unicode::append(to, mapped(c.code));
    } else if (to.empty()) {
      text.starts_at_start = false;
    }
    at += c.length;
  }
  text.text = std::move(to);
}

template <class Removed>
void remove_characters(NormalizedText& text, const Removed& removed) {
  change_characters(text, removed, [](char32_t c) { return c; });
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(unicode::Form form) : form_(form) {}
  void apply(NormalizedText& text) const override {
    if (!unicode::is_ascii(text.text)) text.text = unicode::normalized(text.text, form_);
  }

 private:
  unicode::Form form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { text.text = unicode::lower_case(text.text); }
};

class ByteLevel final : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { text.text = ByteAlphabet::get().encode(text.text); }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedText& text) const override {
    std::size_t begin = 0;
    std::size_t end = text.text.size();
    while (right_ && end > 0) {
      const std::size_t before = unicode::character_before(text.text, end);
      if (!unicode::is_space(unicode::character_at(text.text.data() + before).code)) break;
      end = before;
    }
    while (left_ && begin < end) {
      const unicode::Character c = unicode::character_at(text.text.data() + begin);
      if (!unicode::is_space(c.code)) break;
      begin += c.length;
    }
    if (begin > 0) text.starts_at_start = false;
    text.text = text.text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string what) : what_(std::move(what)) {}
  void apply(NormalizedText& text) const override {
    if (!text.text.empty()) text.text.insert(0, what_);
  }

 private:
  std::string what_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalizedText& text) const override {
    const std::string_view from = text.text;
    const GrowthLimit limit(from.size(), kAll);
    std::string to;
    to.reserve(from.size());
    bool starts_at_start = text.starts_at_start;
    pattern_.for_each_segment(from, [&](std::size_t begin, std::size_t end, bool is_match) {
      to += is_match ? std::string_view(content_) : from.substr(begin, end - begin);
      limit.check(to.size());
      // What replaces several characters counts as coming from the last of them; so does what follows if nothing does.
      if (is_match && begin == 0 && end > 0) {
        const bool one = unicode::character_at(from.data()).length == end;
        if (content_.empty() || !one) starts_at_start = false;
      }
    });
    text.text = std::move(to);
    text.starts_at_start = starts_at_start;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    const unicode::CharacterSet& marks = unicode::combining_marks();
    remove_characters(text, [&](char32_t c) { return marks.contains(c); });
  }
};

// What SentencePiece does for machine translation: control characters go, unusual spaces become plain ones.
class Nmt final : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    change_characters(
        text,
        [](char32_t c) {
          return (c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f ||
                 c == 0x9f;
        },
        [](char32_t c) {
          const bool space = c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 ||
                             (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff ||
                             c == 0xfffd;
          return space ? U' ' : c;
        });
  }
};

// BERT's: control characters go, every space is a plain one, Chinese characters stand alone, accents go, lower case.
class Bert final : public Normalizer {
 public:
  struct Settings {
    bool clean_text = true;
    bool handle_chinese_chars = true;
    bool strip_accents = true;
    bool lowercase = true;
  };
  explicit Bert(const Settings& settings) : settings_(settings) {}
  void apply(NormalizedText& text) const override {
    if (settings_.clean_text) clean(text);
    if (settings_.handle_chinese_chars) text.text = with_chinese_alone(text.text);
    if (settings_.strip_accents) {
      text.text = unicode::normalized(text.text, unicode::Form::nfd);
      const unicode::CharacterSet& marks = unicode::nonspacing_marks();
      remove_characters(text, [&](char32_t c) { return marks.contains(c); });
    }
    if (settings_.lowercase) text.text = unicode::lower_case(text.text);
  }

 private:
  static void clean(NormalizedText& text) {
    const unicode::CharacterSet& control = unicode::control();
    const auto usual = [](char32_t c) { return c == U'\t' || c == U'\n' || c == U'\r'; };
    change_characters(
        text, [&](char32_t c) { return c == 0xfffd || (control.contains(c) && !usual(c)); },
        [](char32_t c) { return unicode::is_space(c) ? U' ' : c; });
  }
  static bool is_chinese(char32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
  }
  static std::string with_chinese_alone(const std::string& from) {
    std::string to;
    to.reserve(from.size());
    for (std::size_t at = 0; at < from.size();) {
      const unicode::Character c = unicode::character_at(from.data() + at);
      const std::string_view space = is_chinese(c.code) ? " " : "";
      to.append(space).append(from, at, c.length).append(space);
      at += c.length;
    }
    return to;
  }

  Settings settings_;
};

// SentencePiece's rules. A cluster of less than six bytes becomes what stands for the rule that it starts with,
// whatever follows in it: the reference library's way.
class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(PrecompiledMap map) : map_(std::move(map)) {}
  void apply(NormalizedText& text) const override {
    constexpr std::size_t kShortCluster = 6;
    const GrowthLimit limit(text.text.size(), kAll);
    const std::string_view from = text.text;
    std::string to;
    to.reserve(from.size());
    unicode::for_each_cluster(from, [&](std::size_t begin, std::size_t end) {
      const auto found = end - begin < kShortCluster ? map_.find(from.substr(begin, end - begin)) : std::nullopt;
      if (found) to += *found;
      while (!found && begin < end) {
        const std::string_view character = from.substr(begin, unicode::character_at(from.data() + begin).length);
        to += map_.find(character).value_or(character);
        begin += character.size();
      }
      limit.check(to.size());
    });
    text.text = std::move(to);
  }

 private:
  PrecompiledMap map_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(NormalizedText& text) const override {
    const GrowthLimit limit(text.text.size(), kAll);
    for (const auto& step : steps_) {
      step->apply(text);
      limit.check(text.text.size());
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> make_bert(const JsonAt& json) {
  json.only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  Bert::Settings settings;
  settings.clean_text = json.at("clean_text").boolean();
  settings.handle_chinese_chars = json.at("handle_chinese_chars").boolean();
  settings.lowercase = json.at("lowercase").boolean();
  const bool given = json.has("strip_accents") && !json.at("strip_accents").is_null();
  settings.strip_accents = given ? json.at("strip_accents").boolean() : settings.lowercase;
  return std::make_unique<Bert>(settings);
}

// One that is no sequence.
std::unique_ptr<Normalizer> make_step(const JsonAt& json) {
  const std::string type = json.at("type").text();
  const auto plain = [&](auto normalizer) {
    json.only({"type"});
    return std::unique_ptr<Normalizer>(std::move(normalizer));
  };
  if (type == "NFC") return plain(std::make_unique<UnicodeForm>(unicode::Form::nfc));
  if (type == "NFD") return plain(std::make_unique<UnicodeForm>(unicode::Form::nfd));
  if (type == "NFKC") return plain(std::make_unique<UnicodeForm>(unicode::Form::nfkc));
  if (type == "NFKD") return plain(std::make_unique<UnicodeForm>(unicode::Form::nfkd));
  if (type == "Lowercase") return plain(std::make_unique<Lowercase>());
  if (type == "ByteLevel") return plain(std::make_unique<ByteLevel>());
  if (type == "StripAccents") return plain(std::make_unique<StripAccents>());
  if (type == "Nmt") return plain(std::make_unique<Nmt>());
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "Precompiled") {
    json.only({"type", "precompiled_charsmap"});
    const JsonAt map = json.at("precompiled_charsmap");
    return map.within([&] { return std::make_unique<Precompiled>(PrecompiledMap(map.text())); });
  }
  if (type == "Strip") {
    json.only({"type", "strip_left", "strip_right"});
    return std::make_unique<Strip>(json.at("strip_left").boolean(), json.at("strip_right").boolean());
  }
  if (type == "Prepend") {
    json.only({"type", "prepend"});
    return std::make_unique<Prepend>(json.at("prepend").text());
  }
  if (type == "Replace") {
    json.only({"type", "pattern", "content"});
    return std::make_unique<Replace>(Pattern(json.at("pattern")), json.at("content").text());
  }
  json.unsupported(
      "the normalizer {} is not supported; those that are: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "
      "Replace, Prepend, BertNormalizer, Nmt, Precompiled, ByteLevel, Sequence",
      shown(type));
}

// Sequences within sequences become one.
void collect(const JsonAt& json, std::vector<std::unique_ptr<Normalizer>>& steps) {
  if (json.is_null()) json.corrupt("must be a normalizer, not null");
  if (json.at("type").text() != "Sequence") {
    check_steps(json, steps.size() + 1);
    steps.push_back(make_step(json));
    return;
  }
  json.only({"type", "normalizers"});
  for (const JsonAt& step : json.at("normalizers").elements()) collect(step, steps);
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonAt& json) {
  if (json.is_null()) return nullptr;
  std::vector<std::unique_ptr<Normalizer>> steps;
  collect(json, steps);
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace qdelta
