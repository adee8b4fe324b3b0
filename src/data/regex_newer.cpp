#include "data/regex_newer.h"

#include <fmt/format.h>

#include "data/unicode_additions.h"

namespace qdelta {
namespace {

// Characters that nothing joins: Grapheme_Cluster_Break is Control, CR or LF. Unicode 15.0 has added U+13439 to 1343F.
constexpr std::string_view kControls =
    R"(\x{0}-\x{1f}\x{7f}-\x{9f}\x{ad}\x{61c}\x{180e}\x{200b}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2060}-\x{206f}\x{feff})"
    R"(\x{fff0}-\x{fffb}\x{13430}-\x{1343f}\x{1bca0}-\x{1bca3}\x{1d173}-\x{1d17a}\x{e0000}-\x{e001f}\x{e0080}-\x{e00ff})"
    R"(\x{e01f0}-\x{e0fff})";
// Prepended to the character behind them since Unicode 15.0 and 16.0.
constexpr std::string_view kNewPrepended = R"(\x{113d1}\x{11f02})";

// A cluster goes on where the library says so (\Y), at marks that are newer than Unicode 14.0, and after letters that
// are prepended since.
std::string make_cluster() {
  std::string marks;
  for (const unicode::Addition& row : unicode::kAdditions) {
    if (row.category[0] == 'M') marks += fmt::format(R"(\x{{{:x}}}-\x{{{:x}}})", row.first, row.last);
  }
  return fmt::format(R"((?>\r\n|\O(?:(?<![{0}])(?![{0}])(?:\Y|(?=[{1}])|(?<=[{2}]))\O)*))", kControls, marks,
                     kNewPrepended);
}

// How long \p{Word}, \P{Word} or \p{^Word} is at the start of `text`, and whether it means the others; 0: it is none of
// them.
struct WordProperty {
  std::size_t length = 0;
  bool negated = false;
};
WordProperty word_property(std::string_view text) {
  if (!text.starts_with("\\p{") && !text.starts_with("\\P{")) return {};
  const std::size_t end = text.find('}');
  if (end == std::string_view::npos) return {};
  std::string_view inside = text.substr(3, end - 3);
  bool negated = text[1] == 'P';
  if (inside.starts_with('^')) {
    inside.remove_prefix(1);
    negated = !negated;
  }
  std::string name;  // the library does not look at the rest either
  for (const char c : inside) {
    if (c != ' ' && c != '-' && c != '_') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return {name == "word" ? end + 1 : 0, negated};
}

// How long a comment at the start of `text` is, (?#...); 0: there is none.
std::size_t comment_length(std::string_view text) {
  if (!text.starts_with("(?#")) return 0;
  std::size_t at = 3;
  while (at < text.size() && text[at] != ')') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

}  // namespace

std::string for_installed_library(std::string_view pattern) {
  static const std::string cluster = make_cluster();
  const bool words = pattern.find("y{") != std::string_view::npos;  // (?y{w}): \X may be a word
  std::string result;
  int depth = 0;  // of brackets
  const auto keep = [&](std::size_t length) {
    result += pattern.substr(0, length);
    pattern.remove_prefix(std::min(length, pattern.size()));
  };
  while (!pattern.empty()) {
    const WordProperty word = depth == 0 ? word_property(pattern) : WordProperty{};
    const std::size_t comment = depth == 0 ? comment_length(pattern) : 0;
    if (word.length > 0) {
      result += word.negated ? "\\W" : "\\w";
      pattern.remove_prefix(word.length);
    } else if (depth == 0 && !words && pattern.starts_with("\\X")) {
      result += cluster;
      pattern.remove_prefix(2);
    } else if (comment > 0) {
      keep(comment);
    } else if (pattern[0] == '[') {
      ++depth;
      keep(pattern.starts_with("[^") ? 2 : 1);
      if (pattern.starts_with(']')) keep(1);  // a bracket right at the start stands for itself
    } else {
      if (pattern[0] == ']' && depth > 0) --depth;
      keep(pattern[0] == '\\' ? 2 : 1);
    }
  }
  return result;
}

}  // namespace qdelta
