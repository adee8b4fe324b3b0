#include "data/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <unicode/uscript.h>
#include <unicode/utext.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <memory>

#include "core/error.h"
#include "data/unicode_additions.h"

namespace qdelta::unicode {
namespace {

// In ICU's order of UCharCategory.
constexpr std::array<std::string_view, U_CHAR_CATEGORY_COUNT> kCategories = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Me", "Mc", "Nd", "Nl", "No", "Zs", "Zl", "Zp",
    "Cc", "Cf", "Co", "Cs", "Pd", "Ps", "Pe", "Pc", "Po", "Sm", "Sc", "Sk", "So", "Pi", "Pf"};
constexpr int kLibraryVersion = 14;  // of Unicode: characters that are newer come from the table

int age_of(char32_t code) {
  UVersionInfo version{};
  u_charAge(static_cast<UChar32>(code), version);
  return version[0];
}

// Whether this version of Unicode, no later than the library's, had the character.
bool known_to(int version, char32_t code) {
  const int age = age_of(code);
  return age > 0 && age <= version;
}

bool is_one_of(char32_t code, std::initializer_list<char32_t> codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// In Unicode 16.0.
std::string_view category_of(char32_t code) {
  const auto* at = std::lower_bound(kAdditions.begin(), kAdditions.end(), code,
                                    [](const Addition& row, char32_t c) { return row.last < c; });
  if (at != kAdditions.end() && at->first <= code) return at->category;
  const int age = age_of(code);
  if (age == 0 || age > kLibraryVersion) return kCategories[0];
  return kCategories[static_cast<std::size_t>(u_charType(static_cast<UChar32>(code)))];
}

const icu::Normalizer2& normalizer(Form form) {
  const auto make = [](const icu::Normalizer2* (*instance)(UErrorCode&)) {
    UErrorCode error = U_ZERO_ERROR;
    auto* known = new icu::UnicodeSet(icu::UnicodeString("[:age=9.0:]"), error);  // lives as long as the program
    known->freeze();
    const icu::Normalizer2* whole = instance(error);
    if (U_FAILURE(error)) fail(Status::internal, "ICU cannot normalize: {}", u_errorName(error));
    return new icu::FilteredNormalizer2(*whole, *known);
  };
  static const icu::Normalizer2* const nfc = make(icu::Normalizer2::getNFCInstance);
  static const icu::Normalizer2* const nfd = make(icu::Normalizer2::getNFDInstance);
  static const icu::Normalizer2* const nfkc = make(icu::Normalizer2::getNFKCInstance);
  static const icu::Normalizer2* const nfkd = make(icu::Normalizer2::getNFKDInstance);
  switch (form) {
    case Form::nfc:
      return *nfc;
    case Form::nfd:
      return *nfd;
    case Form::nfkc:
      return *nfkc;
    case Form::nfkd:
      break;
  }
  return *nfkd;
}

// Lower case that Unicode 16.0 and 17.0 brought: first and last upper-case letter, and how far the lower-case ones are.
struct CaseAddition {
  char32_t first;
  char32_t last;
  int distance;
};
constexpr CaseAddition kCaseAdditions[] = {{0x1c89, 0x1c89, 1},      {0xa7cb, 0xa7cb, 0x264 - 0xa7cb},
                                           {0xa7cc, 0xa7cc, 1},      {0xa7ce, 0xa7ce, 1},
                                           {0xa7d2, 0xa7d2, 1},      {0xa7d4, 0xa7d4, 1},
                                           {0xa7da, 0xa7da, 1},      {0xa7dc, 0xa7dc, 0x19b - 0xa7dc},
                                           {0x10d50, 0x10d65, 0x20}, {0x16ea0, 0x16eb8, 0x1b}};

char32_t lower_case_of(char32_t code) {
  for (const CaseAddition& row : kCaseAdditions) {
    if (code >= row.first && code <= row.last) return code + static_cast<char32_t>(row.distance);
  }
  return age_of(code) > kLibraryVersion ? code : static_cast<char32_t>(u_tolower(static_cast<UChar32>(code)));
}

}  // namespace

bool is_ascii(std::string_view text) noexcept {
  unsigned char seen = 0;
  for (const char c : text) seen |= static_cast<unsigned char>(c);
  return seen < 0x80;
}

std::string with_replacements(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Step next = step(text);
    result += next.kind == Step::Kind::character ? text.substr(0, next.length) : kReplacement;
    text.remove_prefix(next.length);
  }
  return result;
}

const CharacterSet& numbers() {
  static const CharacterSet set([](char32_t c) {
    const bool unicode_17 = (c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6);
    return unicode_17 || category_of(c)[0] == 'N';
  });
  return set;
}

const CharacterSet& punctuation() {
  static const CharacterSet set([](char32_t c) {
    if (c < 0x80) return u_ispunct(static_cast<UChar32>(c)) != 0 || category_of(c)[0] == 'S';
    const bool changed_since = c == 0x166d || c == 0x111c9;  // then punctuation, now a symbol and a mark
    return changed_since || (category_of(c)[0] == 'P' && known_to(8, c));
  });
  return set;
}

const CharacterSet& word() {
  static const CharacterSet set([](char32_t c) {
    const std::string_view category = category_of(c);
    if (category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Nl" || category == "Pc")
      return true;
    if (c == 0x200c || c == 0x200d) return true;  // Join_Control
    // The circled and squared letters: Alphabetic, but symbols.
    return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
  });
  return set;
}

const CharacterSet& control() {
  static const CharacterSet set([](char32_t c) {
    const std::string_view category = category_of(c);
    return category == "Cc" || category == "Co" || (category == "Cf" && known_to(8, c));
  });
  return set;
}

// The characters named below were something else then.
const CharacterSet& nonspacing_marks() {
  static const CharacterSet set([](char32_t c) {
    if (is_one_of(c, {0x1734, 0x1171e})) return true;
    return category_of(c) == "Mn" && known_to(8, c) && !is_one_of(c, {0x1885, 0x1886, 0xa9bd, 0x111c9});
  });
  return set;
}

const CharacterSet& combining_marks() {
  static const CharacterSet set([](char32_t c) {
    if (is_one_of(c, {0x1cf2, 0x1cf3})) return true;
    return category_of(c)[0] == 'M' && known_to(9, c) && c != 0x111c9;
  });
  return set;
}

int script_of(char32_t code) {
  if (code == U' ' || !known_to(9, code)) return kNoScript;
  if (code == 0x30fc) return USCRIPT_HAN;                          // a sign that Hiragana and Katakana share
  if (is_one_of(code, {0x589, 0x61c})) return USCRIPT_COMMON;      // later Armenian and Arabic
  if (is_one_of(code, {0x953, 0x954})) return USCRIPT_DEVANAGARI;  // later Inherited
  UErrorCode error = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(code), &error);
  if (U_FAILURE(error)) fail(Status::internal, "ICU knows no script: {}", u_errorName(error));
  if (script == USCRIPT_UNKNOWN) return kNoScript;  // private use
  return script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA ? USCRIPT_HAN : script;
}

void for_each_cluster(std::string_view text, const std::function<void(std::size_t begin, std::size_t end)>& cluster) {
  require(text.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
          "cannot look for characters in a text of {} bytes; at most 2 GiB at once", text.size());
  UErrorCode error = U_ZERO_ERROR;
  thread_local const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error));
  const icu::LocalUTextPointer opened(
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &error));
  if (breaks != nullptr && U_SUCCESS(error)) breaks->setText(opened.getAlias(), error);
  if (breaks == nullptr || U_FAILURE(error)) fail(Status::internal, "ICU cannot cut a text: {}", u_errorName(error));
  std::size_t begin = 0;
  for (std::int32_t end = breaks->next(); end != icu::BreakIterator::DONE; end = breaks->next()) {
    cluster(begin, static_cast<std::size_t>(end));
    begin = static_cast<std::size_t>(end);
  }
}

std::string normalized(std::string_view text, Form form) {
  if (is_ascii(text)) return std::string(text);
  require(text.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
          "cannot normalize a text of {} bytes; at most 2 GiB at once", text.size());
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<std::int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  normalizer(form).normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink,
                                 nullptr, error);
  if (error == U_MEMORY_ALLOCATION_ERROR) fail(Status::out_of_memory, "no memory to normalize {} bytes", text.size());
  if (U_FAILURE(error)) fail(Status::internal, "ICU cannot normalize: {}", u_errorName(error));
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.data() + at);
    at += c.length;
    if (c.code == 0x130) {  // the only one that becomes two: i and a dot above
      result += "i\xcc\x87";
    } else if (c.code < 0x80) {
      result += static_cast<char>(c.code >= 'A' && c.code <= 'Z' ? c.code + 32 : c.code);
    } else {
      append(result, lower_case_of(c.code));
    }
  }
  return result;
}

}  // namespace qdelta::unicode
