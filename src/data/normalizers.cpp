#include "data/normalizers.h"

#include <vector>

#include "data/byte_alphabet.h"
#include "data/pattern.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

// No sensible normalizer makes a text this much longer; a file made to exhaust the memory does.
constexpr std::size_t kMostGrowth = 32;
constexpr std::size_t kAlwaysAllowed = std::size_t{1} << 20U;

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
    const std::size_t most = kAlwaysAllowed + kMostGrowth * from.size();
    std::string to;
    to.reserve(from.size());
    bool starts_at_start = text.starts_at_start;
    pattern_.for_each_segment(from, [&](std::size_t begin, std::size_t end, bool is_match) {
      to += is_match ? std::string_view(content_) : from.substr(begin, end - begin);
      if (to.size() > most)
        fail(Status::unsupported, "a Replace makes the text more than {} times longer", kMostGrowth);
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

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(NormalizedText& text) const override {
    const std::size_t most = kAlwaysAllowed + kMostGrowth * text.text.size();
    for (const auto& step : steps_) {
      step->apply(text);
      if (text.text.size() > most) {
        fail(Status::unsupported, "the normalizers make the text more than {} times longer", kMostGrowth);
      }
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonAt& json) {
  if (json.is_null()) return nullptr;
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
  if (type == "Sequence") {
    json.only({"type", "normalizers"});
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const JsonAt& step : json.at("normalizers").elements()) {
      if (step.is_null()) step.corrupt("must be a normalizer, not null");
      steps.push_back(make_normalizer(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  json.unsupported(
      "the normalizer {} is not supported; those that are: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Replace, Prepend, "
      "ByteLevel, Sequence",
      shown(type));
}

}  // namespace qdelta
