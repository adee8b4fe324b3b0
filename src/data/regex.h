// A compiled regular expression of a tokenizer.json file, to be found again and again in a text: Oniguruma's, in its
// own syntax, as in the Hugging Face tokenizers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace qdelta {

class Regex {
 public:
  // Throws Error(corrupt) for what is no expression, Error(unsupported) for one that asks too much (regex_unicode.h).
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Match {
    std::size_t begin;
    std::size_t end;
  };
  // The first match at or after `start` in valid UTF-8; false if there is none. Throws Error(unsupported) where it
  // would take an unreasonable number of steps. May be called from several threads at once.
  bool find(std::string_view text, std::size_t start, Match& match) const;

  // Calls segment(begin, end, is_match) for the matches and what lies between them, in order, so that together they
  // are the text. An empty match is a segment too, unless it stands where the last match ended.
  template <class Segment>
  void for_each_segment(std::string_view text, Segment&& segment) const {
    std::size_t done = 0;    // end of the last segment
    std::size_t search = 0;  // where to look on
    bool any = false;
    Match match{};
    while (search <= text.size() && find(text, search, match)) {
      if (match.begin == match.end && any && match.end == done) {
        search += search < text.size() ? character_length(text, search) : 1;
        continue;
      }
      if (done != match.begin) segment(done, match.begin, false);
      segment(match.begin, match.end, true);
      done = search = match.end;
      any = true;
    }
    if (done != text.size()) segment(done, text.size(), false);
  }

 private:
  struct Code;

  static std::size_t character_length(std::string_view text, std::size_t at);

  std::unique_ptr<Code> code_;
};

}  // namespace qdelta
