// Byte-pair encoding: a word becomes its characters, then the adjacent pair whose merge was learnt first is joined, the
// leftmost of them first, until no pair can be.
//
//   ids    of one word do not depend on its neighbours, so words that were seen are looked up (WordCache)
//   pairs  are found in a flat hash table from (left id, right id) to (rank, id of both)
//   a word of up to kShortWord symbols is merged in place, scanning for the lowest rank; a longer one with a queue
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/token_model.h"

namespace qdelta {

struct BpeConfig {
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // in the order they were learnt,
  std::vector<std::int32_t> ranks;                          // or with these ranks, where it is not empty
  std::optional<std::string> unknown;                       // the token for characters that are not in the vocabulary
  bool fuse_unknown = false;                                // one token for a run of them
  bool byte_fallback = false;                               // <0x0A> and so on instead, where there are all of them
  bool ignore_merges = false;                               // a word that is a token is that token
  std::string continuing_prefix;                            // of a character's token, unless it starts the word: ##
  std::string end_suffix;                                   // of that of the last character: </w>
  // Words are bytes, the vocabulary is in GPT-2's alphabet (byte_alphabet.h). Not with a prefix or a suffix.
  bool takes_bytes = false;
};

class BpeModel final : public TokenModel {
 public:
  // Throws Error(corrupt): two tokens with one id, a merge of tokens that are not there.
  explicit BpeModel(BpeConfig config);

  // A character that is neither in the vocabulary nor covered by byte_fallback or `unknown` is left out, as the Hugging
  // Face library does.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;

 private:
  struct Merge {
    std::uint64_t pair;  // left id << 32 | right id; kNoPair: an empty slot
    std::int32_t rank;
    std::int32_t id;
  };

  void read_merges(const BpeConfig& config);
  void find_byte_tokens();
  void put(std::uint64_t pair, std::int32_t rank, std::int32_t id);
  [[nodiscard]] const Merge* merge_of(std::int32_t left, std::int32_t right) const noexcept;
  void encode_cached(std::string_view word, std::vector<std::int32_t>& ids) const;
  void encode_whole(std::string_view word, std::vector<std::int32_t>& ids) const;
  // The ids of the single characters, to be merged.
  void start(std::string_view word, std::vector<std::int32_t>& symbols) const;
  [[nodiscard]] bool has_affixes() const { return !continuing_prefix_.empty() || !end_suffix_.empty(); }
  void merge_short(std::vector<std::int32_t>& symbols) const;
  void merge_long(std::vector<std::int32_t>& symbols) const;

  std::string continuing_prefix_;
  std::string end_suffix_;
  bool takes_bytes_;
  bool byte_fallback_;
  bool fuse_unknown_;
  bool ignore_merges_;
  bool splits_at_metaspace_ = false;  // no token reaches from another character into a U+2581
  std::int32_t unknown_ = -1;
  std::uint64_t cache_owner_;

  std::unordered_map<std::string, std::int32_t> words_;  // as bytes, for ignore_merges with takes_bytes
  std::array<std::int32_t, 256> byte_symbols_{};         // of single bytes, with takes_bytes
  std::array<std::int32_t, 256> byte_tokens_{};          // <0x00> ... for byte_fallback
  std::vector<Merge> merges_;                            // a power of two
  std::uint64_t merge_mask_ = 0;
};

}  // namespace qdelta
