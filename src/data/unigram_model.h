// A unigram model: every token has a score, and of all ways to cut a word the one with the largest sum is taken.
//
// As the Hugging Face library computes it, so that also ties fall the same way: sums in double precision from the left,
// of equal ones the first that is found, characters that no token covers ten below the smallest score. A run of them is
// one unknown token, or its bytes where there is byte fallback.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/byte_trie.h"
#include "data/token_model.h"

namespace qdelta {

struct UnigramConfig {
  std::vector<std::string> tokens;  // by id
  std::vector<double> scores;
  std::optional<std::int32_t> unknown;  // its id
  bool byte_fallback = false;           // <0x0A> and so on for what is unknown, where there are all of them
};

class UnigramModel final : public TokenModel {
 public:
  // Throws Error(corrupt): an unknown id that is not in the vocabulary.
  explicit UnigramModel(UnigramConfig config);
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;

 private:
  // The best way to the place before which the piece ends.
  struct Step {
    double score = 0;
    std::int32_t id = 0;
    std::uint32_t length = 0;  // of the last piece, in bytes; 0: no way was found yet
  };
  void encode_whole(std::string_view word, std::vector<std::int32_t>& ids) const;
  // steps[i] is for the first i bytes.
  void search(std::string_view word, std::vector<Step>& steps) const;
  void append_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;

  std::vector<double> scores_;
  std::optional<std::int32_t> unknown_;
  bool byte_fallback_;
  double unknown_score_;
  ByteTrie trie_;
  std::uint64_t cache_owner_;
};

// A number as the Hugging Face library reads it from a file: its digits as a whole number, then scaled by a power of
// ten, which rounds twice. Of scores with 17 digits, one in seven is not the nearest double.
[[nodiscard]] double twice_rounded(double number);

}  // namespace qdelta
