// What Split and Replace look for: a literal text or a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "data/checked_json.h"
#include "data/regex.h"

namespace qdelta {

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}
  explicit Pattern(const JsonAt& json) {
    json.only({"String", "Regex"});
    if (json.has("Regex") == json.has("String")) json.corrupt("must have one of String and Regex");
    if (json.has("Regex")) {
      const JsonAt at = json.at("Regex");
      regex_ = at.within([&] { return Regex(at.text()); });
    } else {
      literal_ = json.at("String").text();
      if (literal_.empty()) json.unsupported("an empty text to look for is not supported");
    }
  }

  // A literal text can be looked for in any bytes.
  [[nodiscard]] bool needs_utf8() const { return regex_.has_value(); }
  // Calls segment(begin, end, is_match) for the matches and what lies between, in order.
  template <class Segment>
  void for_each_segment(std::string_view text, Segment&& segment) const {
    if (regex_) return regex_->for_each_segment(text, segment);
    std::size_t done = 0;
    for (std::size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, done)) {
      if (done != at) segment(done, at, false);
      done = at + literal_.size();
      segment(at, done, true);
    }
    if (done != text.size()) segment(done, text.size(), false);
  }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace qdelta
