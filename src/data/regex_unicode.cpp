#include "data/regex_unicode.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "data/unicode_additions.h"

namespace qdelta {
namespace {

using unicode::Addition;
using unicode::kAdditions;

// Oniguruma's form of a set of code points: how many ranges, then first and last of each, in order.
using Ranges = std::vector<OnigCodePoint>;

constexpr int kStandardClasses = ONIGENC_MAX_STD_CTYPE + 1;  // ONIGENC_CTYPE_ALPHA and so on: \w, \d, [[:alpha:]]

const OnigEncodingType& library() { return OnigEncodingUTF8; }

std::uint32_t category_mask(const Addition& row) {
  return static_cast<std::uint32_t>(u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, row.category));
}

std::vector<std::uint32_t> additions_of_categories(std::uint32_t mask) {
  std::vector<std::uint32_t> bounds;
  for (const Addition& row : kAdditions) {
    if ((category_mask(row) & mask) != 0) bounds.insert(bounds.end(), {row.first, row.last});
  }
  return bounds;
}

std::vector<std::uint32_t> additions_of_script(int script) {
  std::vector<std::uint32_t> bounds;
  for (const unicode::ScriptAddition& row : unicode::kScriptAdditions) {
    if (row.script == script) bounds.insert(bounds.end(), {row.first, row.last});
  }
  return bounds;
}

std::vector<std::uint32_t> additions_of_standard_class(int type) {
  const auto with = [](std::uint32_t mask, const auto& more) {
    std::vector<std::uint32_t> bounds = additions_of_categories(mask);
    for (const unicode::CodeRange& row : more) bounds.insert(bounds.end(), {row.first, row.last});
    return bounds;
  };
  switch (type) {
    case ONIGENC_CTYPE_ALPHA:
      return with(U_GC_L_MASK | U_GC_NL_MASK, unicode::kAlphabeticAdditions);
    case ONIGENC_CTYPE_ALNUM:
      return with(U_GC_L_MASK | U_GC_NL_MASK | U_GC_ND_MASK, unicode::kAlphabeticAdditions);
    case ONIGENC_CTYPE_LOWER:
      return with(U_GC_LL_MASK, unicode::kLowercaseAdditions);
    case ONIGENC_CTYPE_UPPER:
      return additions_of_categories(U_GC_LU_MASK);
    case ONIGENC_CTYPE_DIGIT:
      return additions_of_categories(U_GC_ND_MASK);
    case ONIGENC_CTYPE_WORD:
      return additions_of_categories(U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_NL_MASK | U_GC_PC_MASK);
    case ONIGENC_CTYPE_GRAPH:
    case ONIGENC_CTYPE_PRINT:
      return additions_of_categories(~std::uint32_t{0});
    default:
      return {};
  }
}

Ranges joined(std::vector<unicode::CodeRange> all) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Ranges ranges{0};
  for (const unicode::CodeRange& range : all) {
    if (ranges.size() > 1 && range.first <= ranges.back() + 1) {
      ranges.back() = std::max(ranges.back(), range.last);
    } else {
      ranges.insert(ranges.end(), {range.first, range.last});
    }
  }
  ranges[0] = static_cast<OnigCodePoint>(ranges.size() / 2);
  return ranges;
}

// The library's ranges of a class, with `added` for what it says of the code points in kAdditions.
Ranges updated(int type, const std::vector<std::uint32_t>& added) {
  OnigCodePoint single_byte_end = 0;
  const OnigCodePoint* known = nullptr;
  library().get_ctype_code_range(static_cast<OnigCtype>(type), &single_byte_end, &known);
  std::vector<unicode::CodeRange> all;
  for (OnigCodePoint i = 0; i < known[0]; ++i) {
    OnigCodePoint first = known[1 + 2 * i];
    const OnigCodePoint last = known[2 + 2 * i];
    for (const Addition& row : kAdditions) {
      if (row.last < first || row.first > last) continue;
      if (first < row.first) all.push_back({first, row.first - 1});
      first = row.last + 1;
    }
    if (first <= last) all.push_back({first, last});
  }
  for (std::size_t i = 0; i < added.size(); i += 2) all.push_back({added[i], added[i + 1]});
  return joined(std::move(all));
}

// The library's number for a property with this name.
int library_class(std::string_view name) {
  std::string copy(name);  // it takes no const
  auto* begin = reinterpret_cast<OnigUChar*>(copy.data());
  return library().property_name_to_ctype(&OnigEncodingUTF8, begin, begin + copy.size());
}

// [[:punct:]]: punctuation and symbols. Versions of the library before 6.9.9 leave the symbols out.
Ranges punctuation_and_symbols() {
  std::vector<unicode::CodeRange> all;
  for (const auto& [name, mask] : {std::pair("P", U_GC_P_MASK), std::pair("S", U_GC_S_MASK)}) {
    const Ranges part = updated(library_class(name), additions_of_categories(mask));
    for (std::size_t i = 1; i < part.size(); i += 2) all.push_back({part[i], part[i + 1]});
  }
  return joined(std::move(all));
}

const Ranges& standard_class(int type) {
  static const auto all = [] {
    std::array<Ranges, kStandardClasses> classes;
    for (int i = 0; i < kStandardClasses; ++i) {
      classes[static_cast<std::size_t>(i)] =
          i == ONIGENC_CTYPE_PUNCT ? punctuation_and_symbols() : updated(i, additions_of_standard_class(i));
    }
    return classes;
  }();
  return all[static_cast<std::size_t>(type)];
}

// Categories and scripts that an expression has named; they stay, as the library keeps no copy.
struct NamedClasses {
  std::mutex mutex;
  std::map<OnigCtype, Ranges> ranges;
};
NamedClasses& named_classes() {
  static NamedClasses all;
  return all;
}

// What the library calls with \p{NAME}.
int class_of_name(OnigEncodingType* encoding, OnigUChar* begin, OnigUChar* end) {
  int type = library().property_name_to_ctype(encoding, begin, end);
  // Unlike [[:punct:]], \p{Punct} is the general category.
  const std::string name = type == ONIGENC_CTYPE_PUNCT ? std::string("P") : std::string(begin, end);
  if (type == ONIGENC_CTYPE_PUNCT) type = library_class(name);
  if (type < kStandardClasses) return type;  // or an error
  const int mask = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, name.c_str());
  const int script = u_getPropertyValueEnum(UCHAR_SCRIPT, name.c_str());
  if (mask == UCHAR_INVALID_CODE && script == UCHAR_INVALID_CODE) return ONIGERR_INVALID_CHAR_PROPERTY_NAME;
  NamedClasses& named = named_classes();
  const std::lock_guard lock(named.mutex);
  auto& ranges = named.ranges[static_cast<OnigCtype>(type)];
  if (ranges.empty()) {
    ranges = updated(type, mask != UCHAR_INVALID_CODE ? additions_of_categories(static_cast<std::uint32_t>(mask))
                                                      : additions_of_script(script));
  }
  return type;
}

int is_in_class(OnigCodePoint code, OnigCtype type) {
  // Below 256 the library has a table of its own, in which superscripts are word characters.
  if (code < 256 || static_cast<int>(type) >= kStandardClasses) return library().is_code_ctype(code, type);
  const Ranges& ranges = standard_class(static_cast<int>(type));
  // An odd number of bounds lies below or at a code point that is in a range: its first, but not its last.
  const auto after_last = std::partition_point(ranges.begin() + 1, ranges.end(), [&](const OnigCodePoint& bound) {
    const bool is_first = (&bound - ranges.data()) % 2 == 1;
    return is_first ? bound <= code : bound < code;
  });
  return (after_last - (ranges.begin() + 1)) % 2 == 1 ? 1 : 0;
}

int ranges_of_class(OnigCtype type, OnigCodePoint* single_byte_end, const OnigCodePoint** ranges) {
  const int result = library().get_ctype_code_range(type, single_byte_end, ranges);
  if (result != 0) return result;
  if (static_cast<int>(type) < kStandardClasses) {
    *ranges = standard_class(static_cast<int>(type)).data();
    return 0;
  }
  NamedClasses& named = named_classes();
  const std::lock_guard lock(named.mutex);
  const auto found = named.ranges.find(type);
  if (found == named.ranges.end()) return ONIGERR_INVALID_CHAR_PROPERTY_NAME;
  *ranges = found->second.data();
  return 0;
}

}  // namespace

OnigEncoding utf8_of_unicode_16() {
  static OnigEncodingType encoding = [] {
    OnigEncodingType changed = library();
    changed.property_name_to_ctype = class_of_name;
    changed.is_code_ctype = is_in_class;
    changed.get_ctype_code_range = ranges_of_class;
    return changed;
  }();
  return &encoding;
}

}  // namespace qdelta
