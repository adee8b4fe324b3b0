#include <algorithm>
#include <iterator>
#include <span>

#include "data/unicode.h"
#include "template/letter_case_table.h"
#include "template/strings.h"

namespace qdelta::jinja {
namespace {

constexpr char32_t kSigma = 0x3a3;
constexpr std::string_view kFinalSigma = "\xcf\x82";
constexpr char32_t kDottedI = 0x130;
constexpr std::string_view kLowerDottedI = "i\xcc\x87";

char32_t in_runs(std::span<const CaseRun> runs, char32_t code) {
  const auto run =
      std::lower_bound(runs.begin(), runs.end(), code, [](const CaseRun& row, char32_t c) { return row.last < c; });
  if (run == runs.end() || code < run->first || (code - run->first) % run->stride != 0) return code;
  return static_cast<char32_t>(static_cast<std::int64_t>(code) + run->distance);
}

std::string_view exception(std::span<const CaseException> rows, char32_t code) {
  const auto row = std::lower_bound(rows.begin(), rows.end(), code,
                                    [](const CaseException& one, char32_t c) { return one.code < c; });
  return row == rows.end() || row->code != code ? std::string_view() : row->becomes;
}

void append_upper(std::string& text, char32_t code) {
  const std::string_view several = exception(kUpperExceptions, code);
  text += several;
  if (several.empty()) unicode::append(text, in_runs(kUpperRuns, code));
}

void append_title(std::string& text, char32_t code) {
  const std::string_view other = exception(kTitleExceptions, code);
  text += other;
  if (other.empty()) append_upper(text, code);
}

bool is_upper(char32_t code) { return code == kDottedI || in_runs(kLowerRuns, code) != code; }
bool is_lower(char32_t code) {
  return !is_upper(code) && (in_runs(kUpperRuns, code) != code || !exception(kUpperExceptions, code).empty());
}
bool is_cased(char32_t code) { return is_upper(code) || is_lower(code); }

// Marks and the like between letters, for the rule of the final sigma.
bool is_case_ignorable(char32_t c) {
  return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xa8 || c == 0xad || c == 0xaf ||
         c == 0xb4 || c == 0xb7 || c == 0xb8 || (c >= 0x300 && c <= 0x36f) || c == 0x2019 || c == 0x2018 ||
         c == 0x200d || (c >= 0x2b0 && c <= 0x2ff);
}

// Whether the sigma at this place ends a word.
bool is_final(std::string_view text, std::size_t at) {
  std::size_t before = at;
  bool letter = false;
  while (before > 0) {
    before = unicode::character_before(text, before);
    const char32_t code = unicode::character_at(text.data() + before).code;
    if (is_case_ignorable(code)) continue;
    letter = is_cased(code);
    break;
  }
  if (!letter) return false;
  for (std::size_t after = at + 2; after < text.size();) {
    const unicode::Character next = unicode::character_at(text.data() + after);
    if (!is_case_ignorable(next.code)) return !is_cased(next.code);
    after += next.length;
  }
  return true;
}

void append_lower(std::string& result, std::string_view text, std::size_t at) {
  const char32_t code = unicode::character_at(text.data() + at).code;
  if (code == kDottedI) {
    result += kLowerDottedI;
  } else if (code == kSigma && is_final(text, at)) {
    result += kFinalSigma;
  } else {
    unicode::append(result, in_runs(kLowerRuns, code));
  }
}

template <class Append>
std::string each(std::string_view text, const Append& append) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Character next = unicode::character_at(text.data() + at);
    append(result, next.code, at);
    at += next.length;
  }
  return result;
}

template <class Right, class Wrong>
bool all_cased(std::string_view text, const Right& right, const Wrong& wrong) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Character next = unicode::character_at(text.data() + at);
    if (wrong(next.code)) return false;
    found = found || right(next.code);
    at += next.length;
  }
  return found;
}

}  // namespace

std::string upper(std::string_view text) {
  return each(text, [](std::string& result, char32_t code, std::size_t) { append_upper(result, code); });
}

std::string lower(std::string_view text) {
  return each(text, [text](std::string& result, char32_t, std::size_t at) { append_lower(result, text, at); });
}

std::string capitalized(std::string_view text) {
  return each(text, [text](std::string& result, char32_t code, std::size_t at) {
    at == 0 ? append_title(result, code) : append_lower(result, text, at);
  });
}

std::string titled(std::string_view text) {
  bool inside = false;
  return each(text, [&](std::string& result, char32_t code, std::size_t at) {
    inside ? append_lower(result, text, at) : append_title(result, code);
    inside = is_cased(code);
  });
}

std::string titled_words(std::string_view text) {
  const auto separates = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_python_space(c);
  };
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const bool between = separates(unicode::character_at(text.data() + at).code);
    const std::size_t start = at;
    while (at < text.size()) {
      const unicode::Character next = unicode::character_at(text.data() + at);
      if (separates(next.code) != between) break;
      at += next.length;
    }
    const std::string_view word = text.substr(start, at - start);
    const std::size_t first = unicode::character_at(word.data()).length;
    result += upper(word.substr(0, first));
    result += lower(word.substr(first));
  }
  return result;
}

bool is_all_upper(std::string_view text) { return all_cased(text, is_upper, is_lower); }
bool is_all_lower(std::string_view text) { return all_cased(text, is_lower, is_upper); }

}  // namespace qdelta::jinja
