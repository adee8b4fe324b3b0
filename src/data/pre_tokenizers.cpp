#include "data/pre_tokenizers.h"

#include <optional>
#include <string>

#include "data/byte_alphabet.h"
#include "data/pattern.h"
#include "data/pipeline_limits.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

// GPT-2's own, which ByteLevel brings along; its 's|'t|'re|'ve|'m|'ll|'d in the form that is tried at once.
constexpr std::string_view kGpt2Pattern = R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What becomes of the delimiters that a text is split at.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const JsonAt& json) {
  const std::string name = json.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  json.unsupported("the behavior {} is not supported", shown(name));
}

// Takes segments (begin, end, is a delimiter) in order and hands on the pieces they make. One that later segments may
// still join waits in `held_`.
class Splitter {
 public:
  Splitter(const Piece& piece, Behavior behavior, const PieceSink& sink)
      : piece_(piece), behavior_(behavior), sink_(sink) {}

  void operator()(std::size_t begin, std::size_t end, bool delimiter) {
    switch (behavior_) {
      case Behavior::isolated:
        emit(begin, end);
        return;
      case Behavior::removed:
        if (!delimiter) emit(begin, end);
        return;
      case Behavior::contiguous:
        hold(begin, end, delimiter == last_delimiter_);
        break;
      case Behavior::merged_with_previous:
        hold(begin, end, delimiter && !last_delimiter_);
        break;
      case Behavior::merged_with_next:
        hold(begin, end, last_delimiter_ && !delimiter);
        break;
    }
    last_delimiter_ = delimiter;
  }
  void finish() {
    if (held_) emit(held_begin_, held_end_);
    held_ = false;
  }

 private:
  void hold(std::size_t begin, std::size_t end, bool join) {
    if (held_ && join) {
      held_end_ = end;
      return;
    }
    finish();
    held_ = true;
    held_begin_ = begin;
    held_end_ = end;
  }
  void emit(std::size_t begin, std::size_t end) const {
    if (begin != end) sink_({piece_.text.substr(begin, end - begin), piece_.starts_at_start && begin == 0});
  }

  const Piece& piece_;
  Behavior behavior_;
  const PieceSink& sink_;
  bool held_ = false;
  bool last_delimiter_ = false;
  std::size_t held_begin_ = 0;
  std::size_t held_end_ = 0;
};

// Every character for which is_delimiter(code) holds is a delimiter of its own.
template <class Predicate>
void split_at_characters(const Piece& piece, Behavior behavior, const PieceSink& sink, const Predicate& is_delimiter) {
  Splitter splitter(piece, behavior, sink);
  std::size_t done = 0;
  for (std::size_t at = 0; at < piece.text.size();) {
    const unicode::Character c = unicode::character_at(piece.text.data() + at);
    const std::size_t next = at + c.length;
    if (is_delimiter(c.code)) {
      if (done != at) splitter(done, at, false);
      splitter(at, next, true);
      done = next;
    }
    at = next;
  }
  if (done != piece.text.size()) splitter(done, piece.text.size(), false);
  splitter.finish();
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(const Piece& piece, const PieceSink& sink) const override {
    Splitter splitter(piece, behavior_, sink);
    pattern_.for_each_segment(piece.text, [&](std::size_t begin, std::size_t end, bool is_match) {
      splitter(begin, end, is_match != invert_);
    });
    splitter.finish();
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, bool as_characters)
      : add_prefix_space_(add_prefix_space), as_characters_(as_characters) {
    if (use_regex) regex_.emplace(kGpt2Pattern);
  }
  void split(const Piece& piece, const PieceSink& sink) const override {
    if (!add_prefix_space_ || piece.text.starts_with(' ')) return split_words(piece, sink);
    std::string text = " ";
    text += piece.text;
    split_words({text, piece.starts_at_start}, sink);
  }

 private:
  void split_words(const Piece& piece, const PieceSink& sink) const {
    if (!regex_) return hand_on(piece, sink);
    regex_->for_each_segment(piece.text, [&](std::size_t begin, std::size_t end, bool) {
      hand_on({piece.text.substr(begin, end - begin), piece.starts_at_start && begin == 0}, sink);
    });
  }
  void hand_on(const Piece& piece, const PieceSink& sink) const {
    if (!as_characters_) return sink(piece);
    const std::string characters = ByteAlphabet::get().encode(piece.text);
    sink({characters, piece.starts_at_start});
  }

  bool add_prefix_space_;
  bool as_characters_;
  std::optional<Regex> regex_;
};

class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { always, first, never };

  Metaspace(char32_t replacement, Prepend prepend, bool split) : code_(replacement), prepend_(prepend), split_(split) {
    unicode::append(replacement_, replacement);
  }
  void split(const Piece& piece, const PieceSink& sink) const override {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2);
    const bool wanted = prepend_ == Prepend::always || (prepend_ == Prepend::first && piece.starts_at_start);
    if (wanted && !piece.text.starts_with(' ') && !piece.text.starts_with(replacement_)) text += replacement_;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    const Piece replaced{text, piece.starts_at_start};
    if (!split_) return sink(replaced);
    split_at_characters(replaced, Behavior::merged_with_next, sink, [this](char32_t code) { return code == code_; });
  }

 private:
  char32_t code_;
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

// Digits, Punctuation, WhitespaceSplit and CharDelimiterSplit: characters of a set, and what to do with them.
template <class Predicate>
class AtCharacters final : public PreTokenizer {
 public:
  AtCharacters(Predicate predicate, Behavior behavior) : predicate_(predicate), behavior_(behavior) {}
  void split(const Piece& piece, const PieceSink& sink) const override {
    split_at_characters(piece, behavior_, sink, predicate_);
  }

 private:
  Predicate predicate_;
  Behavior behavior_;
};

template <class Predicate>
std::unique_ptr<PreTokenizer> at_characters(Predicate predicate, Behavior behavior) {
  return std::make_unique<AtCharacters<Predicate>>(predicate, behavior);
}

auto in_set(const unicode::CharacterSet& set) {
  return [&set](char32_t code) { return set.contains(code); };
}

// Runs of word characters, and runs of what is neither a word character nor white space.
class Whitespace final : public PreTokenizer {
 public:
  void split(const Piece& piece, const PieceSink& sink) const override {
    enum class Kind { word, other, space };
    const unicode::CharacterSet& word = unicode::word();
    std::size_t begin = 0;
    Kind kind = Kind::space;
    const auto emit = [&](std::size_t end) {
      if (begin != end && kind != Kind::space) {
        sink({piece.text.substr(begin, end - begin), piece.starts_at_start && begin == 0});
      }
      begin = end;
    };
    for (std::size_t at = 0; at < piece.text.size();) {
      const unicode::Character c = unicode::character_at(piece.text.data() + at);
      const Kind now = word.contains(c.code) ? Kind::word : unicode::is_space(c.code) ? Kind::space : Kind::other;
      if (now != kind) emit(at);
      kind = now;
      at += c.length;
    }
    emit(piece.text.size());
  }
};

Metaspace::Prepend prepend_of(const JsonAt& json) {
  Metaspace::Prepend prepend = Metaspace::Prepend::always;
  if (json.has("prepend_scheme")) {
    const std::string name = json.at("prepend_scheme").text();
    if (name == "first") {
      prepend = Metaspace::Prepend::first;
    } else if (name == "never") {
      prepend = Metaspace::Prepend::never;
    } else if (name != "always") {
      json.unsupported("the prepend_scheme {} is not supported", shown(name));
    }
  }
  if (!json.boolean_or("add_prefix_space", true) && prepend != Metaspace::Prepend::never) {
    json.corrupt("add_prefix_space is false, but prepend_scheme is not \"never\"");
  }
  return prepend;
}

// So many characters each, the last piece what is left.
class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::int64_t length) : length_(length) {}
  void split(const Piece& piece, const PieceSink& sink) const override {
    for (std::size_t begin = 0; begin < piece.text.size();) {
      std::size_t end = begin;
      for (std::int64_t i = 0; i < length_ && end < piece.text.size(); ++i) {
        end += unicode::character_at(piece.text.data() + end).length;
      }
      sink({piece.text.substr(begin, end - begin), piece.starts_at_start && begin == 0});
      begin = end;
    }
  }

 private:
  std::int64_t length_;
};

// A piece ends where the script changes. Characters without one belong to what stands before them; at the start of a
// text, as in the reference library, they are left out.
class UnicodeScripts final : public PreTokenizer {
 public:
  void split(const Piece& piece, const PieceSink& sink) const override {
    int script = unicode::kNoScript;
    std::size_t begin = 0;
    const auto emit = [&](std::size_t end) {
      if (script == unicode::kNoScript) return;
      sink({piece.text.substr(begin, end - begin), piece.starts_at_start && begin == 0});
    };
    for (std::size_t at = 0; at < piece.text.size();) {
      const unicode::Character c = unicode::character_at(piece.text.data() + at);
      const int now = unicode::script_of(c.code);
      if (now != unicode::kNoScript && now != script) {
        emit(at);
        begin = at;
        script = now;
      }
      at += c.length;
    }
    emit(piece.text.size());
  }
};

bool is_space(char32_t code) { return unicode::is_space(code); }

// The steps that `json` stands for; `last` if nothing follows them but a model that may take bytes.
void collect(const JsonAt& json, bool last, PreTokenizers& into) {
  const std::string type = json.at("type").text();
  const auto add = [&](std::unique_ptr<PreTokenizer> step) {
    check_steps(json, into.steps.size() + 1);
    into.steps.push_back(std::move(step));
  };
  if (type == "Sequence") {
    json.only({"type", "pretokenizers"});
    const std::vector<JsonAt> steps = json.at("pretokenizers").elements();
    for (std::size_t i = 0; i < steps.size(); ++i) collect(steps[i], last && i + 1 == steps.size(), into);
  } else if (type == "ByteLevel") {
    json.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    add(std::make_unique<ByteLevel>(json.at("add_prefix_space").boolean(), json.boolean_or("use_regex", true), !last));
    into.model_takes_bytes = last;
  } else if (type == "Split") {
    json.only({"type", "pattern", "behavior", "invert"});
    add(std::make_unique<Split>(Pattern(json.at("pattern")), behavior_of(json.at("behavior")),
                                json.at("invert").boolean()));
  } else if (type == "Metaspace") {
    json.only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    add(std::make_unique<Metaspace>(json.at("replacement").character(), prepend_of(json),
                                    json.boolean_or("split", true)));
  } else if (type == "Digits") {
    json.only({"type", "individual_digits"});
    add(at_characters(in_set(unicode::numbers()),
                      json.at("individual_digits").boolean() ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "Punctuation") {
    json.only({"type", "behavior"});
    add(at_characters(in_set(unicode::punctuation()),
                      json.has("behavior") ? behavior_of(json.at("behavior")) : Behavior::isolated));
  } else if (type == "Whitespace") {
    json.only({"type"});
    add(std::make_unique<Whitespace>());
  } else if (type == "WhitespaceSplit") {
    json.only({"type"});
    add(at_characters(is_space, Behavior::removed));
  } else if (type == "BertPreTokenizer") {
    json.only({"type"});
    add(at_characters(is_space, Behavior::removed));
    add(at_characters(in_set(unicode::punctuation()), Behavior::isolated));
  } else if (type == "UnicodeScripts") {
    json.only({"type"});
    add(std::make_unique<UnicodeScripts>());
  } else if (type == "FixedLength") {
    json.only({"type", "length"});
    add(std::make_unique<FixedLength>(json.has("length") ? json.at("length").integer(1, INT64_MAX) : 5));
  } else if (type == "CharDelimiterSplit") {
    json.only({"type", "delimiter"});
    const char32_t delimiter = json.at("delimiter").character();
    add(at_characters([delimiter](char32_t code) { return code == delimiter; }, Behavior::removed));
  } else {
    json.unsupported(
        "the pre-tokenizer {} is not supported; those that are: ByteLevel, Split, Metaspace, Digits, Punctuation, "
        "Whitespace, WhitespaceSplit, CharDelimiterSplit, BertPreTokenizer, FixedLength, UnicodeScripts, Sequence",
        shown(type));
  }
}

}  // namespace

void PreTokenizers::split(const Piece& piece, const PieceSink& sink) const {
  if (steps.empty()) return sink(piece);
  // One step makes a text four times longer at most, a character for each byte; it is the chain that has no bounds.
  const GrowthLimit limit(piece.text.size(), "the pre-tokenizers");
  std::size_t left = limit.most() * steps.size();
  split_from(0, piece, sink, left);
}

void PreTokenizers::split_from(std::size_t first, const Piece& piece, const PieceSink& sink, std::size_t& left) const {
  if (first + 1 == steps.size()) return steps[first]->split(piece, sink);
  steps[first]->split(piece, [&, this](const Piece& next) {
    if (next.text.size() > left) {
      fail(Status::unsupported, "the pre-tokenizers make the text more than {} times longer", GrowthLimit::kTimes);
    }
    left -= next.text.size();
    split_from(first + 1, next, sink, left);
  });
}

PreTokenizers make_pre_tokenizers(const JsonAt& json, bool model_may_take_bytes) {
  PreTokenizers result;
  if (!json.is_null()) collect(json, model_may_take_bytes, result);
  return result;
}

}  // namespace qdelta
