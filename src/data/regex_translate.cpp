#include "data/regex_translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/error.h"
#include "data/unicode.h"
#include "data/unicode_additions.h"
#include "io/utf8.h"

namespace qdelta {
namespace {

constexpr int kDeepestGroups = 50;  // nested groups and classes; the parser calls itself

constexpr std::string_view kAny = "(?s:.)";
// What a bracket holds for the escapes of the same name.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";
constexpr std::array<std::string_view, 38> kCategories = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", ""};
constexpr std::array<std::string_view, 13> kScripts = {"Arabic", "Bengali", "Cyrillic", "Devanagari", "Greek",
                                                       "Han",    "Hangul",  "Hebrew",   "Hiragana",   "Katakana",
                                                       "Latin",  "Tamil",   "Thai"};

std::string code_text(char32_t code) { return fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(code)); }
std::string range_text(char32_t first, char32_t last) {
  return first == last ? code_text(first) : code_text(first) + "-" + code_text(last);
}

// What a bracket holds for a general category, in Unicode 16.0 whatever PCRE2's version.
std::string category_text(std::string_view name) {
  std::string text = fmt::format("\\p{{{}}}", name);
  for (const unicode::Addition& row : unicode::kAdditions) {
    if (std::string_view(row.category).starts_with(name)) text += range_text(row.first, row.last);
  }
  return text;
}

std::string script_text(std::string_view name) {
  std::string text = fmt::format("\\p{{sc:{}}}", name);  // without "sc:" it would be Script_Extensions
  for (const unicode::ScriptAddition& row : unicode::kScriptAdditions) {
    if (row.script == name) text += range_text(row.first, row.last);
  }
  return text;
}

std::string word_text() {
  // Alphabetic, marks, decimal digits, connectors; and in Latin-1 also the superscripts and fractions.
  return category_text("L") + category_text("M") + category_text("Nd") + category_text("Nl") + "\\p{Pc}" +
         "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
         "\\x{1f170}-\\x{1f189}";
}

// A class is a union of what fits into one bracket and of expressions for one character that do not.
struct ClassUnion {
  std::string bracket;
  std::vector<std::string> others;

  [[nodiscard]] bool empty() const { return bracket.empty() && others.empty(); }
  [[nodiscard]] std::string text() const {
    if (others.empty()) return "[" + bracket + "]";
    std::vector<std::string> parts = others;
    if (!bracket.empty()) parts.push_back("[" + bracket + "]");
    return fmt::format("(?:{})", fmt::join(parts, "|"));
  }
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {
    if (first_invalid_utf8(pattern)) corrupt("is not valid UTF-8");
  }

  std::string run() {
    // Elsewhere (?i) binds differently in the two: a(?i)b|c.
    if (accept("(?i)")) {
      case_blind_ = true;
      out_ += "(?i)";
    }
    alternatives(0);
    if (at_ != pattern_.size()) corrupt("has a ')' too many");
    return std::move(out_);
  }

 private:
  [[noreturn]] void corrupt(std::string_view what) const {
    fail(Status::corrupt, "the regular expression {} {}", shown(pattern_), what);
  }
  [[noreturn]] void refuse(std::string_view what, std::size_t at) const {
    fail(Status::unsupported, "the regular expression {} uses {} at byte {}, which is not supported", shown(pattern_),
         what, at);
  }

  [[nodiscard]] bool more() const { return at_ < pattern_.size(); }
  [[nodiscard]] bool ahead(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool accept(std::string_view text) {
    if (!ahead(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t character() {
    if (!more()) corrupt("ends too early");
    const unicode::Character c = unicode::character_at(pattern_.data() + at_);
    at_ += c.length;
    return c.code;
  }

  void alternatives(int depth) {
    if (depth > kDeepestGroups) refuse("groups nested this deep", at_);
    while (more() && !ahead(")")) {
      if (accept("|")) {
        out_ += '|';
        last_literal_ = 0;
      } else {
        atom(depth);
        quantifier();
      }
    }
    last_literal_ = 0;
  }

  void atom(int depth) {
    const std::size_t start = at_;
    quantifiable_ = true;
    if (ahead("(")) return group(depth);
    if (accept("[")) return emit(character_class(depth + 1));
    if (ahead("*") || ahead("+") || ahead("?")) corrupt(fmt::format("has nothing to repeat at byte {}", start));
    if (ahead("{")) refuse("an unescaped '{'", start);
    if (accept(".")) return emit(".");
    if (accept("^") || accept("$")) {
      quantifiable_ = false;
      return emit(pattern_.substr(start, 1));
    }
    if (accept("\\")) return escape_outside(start);
    literal(character(), start);
  }

  void emit(std::string_view text) {
    out_ += text;
    last_literal_ = 0;
  }

  void literal(char32_t code, std::size_t start) {
    if (case_blind_) {
      // Oniguruma lets these pairs match one character (ß, the ligatures), and folds other alphabets in its own way.
      const auto lower = static_cast<char32_t>(code >= 'A' && code <= 'Z' ? code + 32 : code);
      const bool pair = (last_literal_ == 's' && (lower == 's' || lower == 't')) ||
                        (last_literal_ == 'f' && (lower == 'f' || lower == 'i' || lower == 'l'));
      if (code >= 0x80 || pair) refuse("this text regardless of case", start);
      last_literal_ = lower;
    }
    out_ += code_text(code);
  }

  void group(int depth) {
    const std::size_t start = at_;
    const bool outer_case = case_blind_;
    last_literal_ = 0;
    static constexpr std::array<std::string_view, 6> kSame = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const auto* same = std::find_if(kSame.begin(), kSame.end(), [&](std::string_view open) { return ahead(open); });
    if (same != kSame.end()) {
      at_ += same->size();
      out_ += *same;
      quantifiable_ = *same == "(?:" || *same == "(?>";
    } else if (accept("(?i:")) {
      case_blind_ = true;
      out_ += "(?i:";
    } else if (accept("(?-i:")) {
      case_blind_ = false;
      out_ += "(?-i:";
    } else if (ahead("(?") || ahead("(*")) {
      refuse(fmt::format("the group {}", shown(pattern_.substr(at_, 4))), start);
    } else {
      at_ += 1;
      out_ += "(?:";  // nothing refers back to it
    }
    const bool quantifiable = quantifiable_;
    alternatives(depth + 1);
    if (!accept(")")) corrupt(fmt::format("has no ')' for the '(' at byte {}", start));
    out_ += ')';
    case_blind_ = outer_case;
    quantifiable_ = quantifiable;
  }

  std::optional<int> number() {
    std::optional<int> value;
    while (more() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value.value_or(0) * 10 + (pattern_[at_++] - '0');
      if (*value > 1000) refuse("so many repetitions", at_ - 1);
    }
    return value;
  }

  void quantifier() {
    const std::size_t start = at_;
    bool interval = false;
    bool exact = false;
    if (accept("*") || accept("+") || accept("?")) {
      out_ += pattern_[start];
    } else if (accept("{")) {
      interval = true;
      const std::optional<int> low = number();
      std::optional<int> high = low;
      const bool comma = accept(",");
      if (comma) high = number();
      if (!accept("}") || (!low && !high)) refuse("an unescaped '{'", start);
      if (high && low.value_or(0) > *high) corrupt(fmt::format("has an impossible repetition at byte {}", start));
      exact = !comma;
      out_ += exact ? fmt::format("{{{}}}", *low) : fmt::format("{{{},", low.value_or(0));
      if (!exact) out_ += high ? fmt::format("{}}}", *high) : "}";
    } else {
      return;
    }
    if (!quantifiable_) refuse("the repetition of an assertion", start);
    last_literal_ = 0;
    if (ahead("?") || ahead("+")) {
      // There {n}? means {0,n} or so, and {n,m}+ repeats what is repeated.
      if (interval && (exact || ahead("+"))) refuse("a repetition of a repetition", at_);
      out_ += pattern_[at_++];
    }
    if (ahead("*") || ahead("+") || ahead("?") || ahead("{")) refuse("a repetition of a repetition", at_);
  }

  char32_t hexadecimal(std::size_t digits, std::size_t start) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const char c = more() ? pattern_[at_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) corrupt(fmt::format("has a broken escape at byte {}", start));
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  // The character that an escape (its backslash read) stands for; nullopt if it stands for something else.
  std::optional<char32_t> escaped_character(std::size_t start) {
    const char32_t c = character();
    char32_t code = 0;
    switch (c) {
      case 't':
        return U'\t';
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case 'a':
        return U'\a';
      case 'e':
        return U'\x1b';
      case 'u':
        code = hexadecimal(4, start);
        break;
      case 'x':
        if (accept("{")) {
          const std::size_t end = pattern_.find('}', at_);
          if (end == std::string_view::npos || end - at_ > 8 || end == at_) {
            corrupt(fmt::format("has a broken escape at byte {}", start));
          }
          code = hexadecimal(end - at_, start);
          ++at_;
        } else {
          code = hexadecimal(2, start);
          if (code >= 0x80) refuse("a byte", start);
        }
        break;
      default: {
        const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
        if (!word) return c;
        at_ = start + 1;
        return std::nullopt;
      }
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
      corrupt(fmt::format("names no character at byte {}", start));
    return code;
  }

  struct EscapedClass {
    std::string bracket;
    bool negated = false;
  };

  // \s, \p{L} and so on, the backslash read.
  EscapedClass escaped_class(std::size_t start) {
    const char32_t c = character();
    switch (c) {
      case 's':
      case 'S':
        return {std::string(kSpace), c == 'S'};
      case 'd':
      case 'D':
        return {category_text("Nd"), c == 'D'};
      case 'h':
      case 'H':
        return {std::string(kHexDigit), c == 'H'};
      case 'w':
      case 'W':
        return {word_text(), c == 'W'};
      case 'p':
      case 'P':
        return property(c == 'P', start);
      default:
        at_ = start + 1;
        const std::size_t length = unicode::character_at(pattern_.data() + at_).length;
        refuse(fmt::format("\\{}", pattern_.substr(at_, length)), start);
    }
  }

  EscapedClass property(bool negated, std::size_t start) {
    if (!accept("{")) corrupt(fmt::format("has a property without braces at byte {}", start));
    if (accept("^")) negated = !negated;
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) corrupt(fmt::format("has no '}}' for the property at byte {}", start));
    const std::string_view name = pattern_.substr(at_, end - at_);
    at_ = end + 1;
    const auto same = [&](std::string_view other) {
      return !other.empty() && std::equal(name.begin(), name.end(), other.begin(), other.end(), [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
      });
    };
    if (const auto* found = std::find_if(kCategories.begin(), kCategories.end(), same); found != kCategories.end()) {
      // What is in C changes with every version; PCRE2 lets letters of the other case in.
      const bool cased = *found == "Lu" || *found == "Ll" || *found == "Lt";
      if ((*found)[0] != 'C' && !(cased && case_blind_)) return {category_text(*found), negated};
    } else if (const auto* script = std::find_if(kScripts.begin(), kScripts.end(), same); script != kScripts.end()) {
      return {script_text(*script), negated};
    }
    refuse(fmt::format("the property {}", shown(name)), start);
  }

  void escape_outside(std::size_t start) {
    if (accept("A") || accept("z") || accept("Z")) {
      quantifiable_ = false;
      return emit(pattern_.substr(start, 2));
    }
    if (const std::optional<char32_t> code = escaped_character(start)) return literal(*code, start);
    const EscapedClass found = escaped_class(start);
    emit(found.negated ? "[^" + found.bracket + "]" : "[" + found.bracket + "]");
  }

  // One character of a class that could begin or end a range; nullopt for anything else, which is left unread.
  std::optional<char32_t> class_character() {
    const std::size_t start = at_;
    if (accept("\\")) {
      if (accept("b")) return U'\b';
      const std::optional<char32_t> code = escaped_character(start);
      if (!code) at_ = start;
      return code;
    }
    if (ahead("[") || ahead("]") || ahead("&&")) return std::nullopt;
    return character();
  }

  // What follows a '[': the expression for one character.
  std::string character_class(int depth) {
    if (depth > kDeepestGroups) refuse("classes nested this deep", at_);
    const std::size_t start = at_ - 1;
    const bool negated = accept("^");
    if (ahead("]")) refuse("a class that starts with ']'", start);
    if (case_blind_ && negated) refuse("a negated class regardless of case", start);
    std::vector<ClassUnion> terms(1);
    while (!accept("]")) {
      if (!more()) corrupt(fmt::format("has no ']' for the '[' at byte {}", start));
      if (accept("&&")) {
        terms.emplace_back();
      } else {
        class_item(terms.back(), depth);
      }
    }
    for (const ClassUnion& term : terms) {
      if (term.empty()) refuse("an empty class", start);
    }
    if (terms.size() == 1 && terms[0].others.empty()) return (negated ? "[^" : "[") + terms[0].bracket + "]";
    std::string all = terms.back().text();
    for (std::size_t i = terms.size() - 1; i-- > 0;) all = fmt::format("(?={}){}", terms[i].text(), all);
    return negated ? fmt::format("(?:(?!{}){})", all, kAny) : fmt::format("(?:{})", all);
  }

  void class_item(ClassUnion& into, int depth) {
    const std::size_t start = at_;
    if (ahead("[:")) refuse("a POSIX bracket", start);
    if (accept("[")) {
      std::string nested = character_class(depth + 1);
      const bool plain = nested.starts_with('[') && !nested.starts_with("[^");
      if (plain) {
        into.bracket += nested.substr(1, nested.size() - 2);
      } else {
        into.others.push_back(std::move(nested));
      }
      return;
    }
    const std::optional<char32_t> first = class_character();
    if (!first) {
      ++at_;  // the backslash
      EscapedClass found = escaped_class(start);
      if (found.negated) {
        into.others.push_back("[^" + found.bracket + "]");
      } else {
        into.bracket += found.bracket;
      }
      if (ahead("-") && !ahead("-]")) refuse("a range that starts with a class", at_);
      return;
    }
    char32_t last = *first;
    if (ahead("-") && !ahead("-]") && !ahead("-&&")) {
      ++at_;
      const std::optional<char32_t> end = class_character();
      if (!end) refuse("a range that ends with a class", start);
      last = *end;
      if (last < *first) corrupt(fmt::format("has an empty range at byte {}", start));
    }
    if (case_blind_ && last >= 0x80) refuse("this class regardless of case", start);
    into.bracket += range_text(*first, last);
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  bool case_blind_ = false;
  bool quantifiable_ = true;
  char32_t last_literal_ = 0;  // right before, in lower case, where case does not count
};

}  // namespace

std::string translate_regex(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace qdelta
