// The tokens that tokenizer.json adds to the model's: found in the text as they stand, before anything else is done to
// it. Special ones (the start and the end of a text, a speaker's turn) are left out of decoded text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_trie.h"

namespace qdelta {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalized text, in its own normalized form
  bool special = false;
};

// Finds the longest of some texts at every place.
class TextFinder {
 public:
  void add(std::string_view text, std::size_t value);
  [[nodiscard]] bool empty() const { return empty_; }

  struct Found {
    std::size_t begin;
    std::size_t end;
    std::size_t value;
  };
  // The leftmost match at or after `start`, the longest there.
  bool find(std::string_view text, std::size_t start, Found& found) const;

 private:
  ByteTrie trie_;
  bool empty_ = true;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `forms` are the contents as they are to be looked for, after the normalizer where the token says so.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& forms);

  [[nodiscard]] const std::vector<AddedToken>& all() const { return tokens_; }
  [[nodiscard]] bool none(bool normalized) const { return finder(normalized).empty(); }

  // Calls segment(begin, end, token) over the text in order, token being null where there is none. Of the tokens, only
  // those with this `normalized` are looked for.
  template <class Segment>
  void for_each_segment(std::string_view text, bool normalized, Segment&& segment) const {
    std::size_t done = 0;
    TextFinder::Found found{};
    for (std::size_t search = 0; finder(normalized).find(text, search, found); search = found.end) {
      const AddedToken& token = tokens_[found.value];
      Extent extent{found.begin, found.end};
      if (!fit(token, text, done, extent)) continue;
      if (done < extent.begin) segment(done, extent.begin, static_cast<const AddedToken*>(nullptr));
      segment(extent.begin, extent.end, &token);
      done = extent.end;
    }
    if (done < text.size()) segment(done, text.size(), static_cast<const AddedToken*>(nullptr));
  }

 private:
  struct Extent {
    std::size_t begin;
    std::size_t end;
  };
  [[nodiscard]] const TextFinder& finder(bool normalized) const { return normalized ? normalized_ : plain_; }
  // Whether the token may stand there, and the white space it takes along.
  static bool fit(const AddedToken& token, std::string_view text, std::size_t done, Extent& extent);

  std::vector<AddedToken> tokens_;
  TextFinder plain_;
  TextFinder normalized_;
};

}  // namespace qdelta
