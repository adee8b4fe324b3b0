// The models that know whole words.
//
//   WordLevel   a word is a token, or the unknown one
//   WordPiece   the longest token that the word starts with, then the longest of those with the prefix ## for what is
//               left, and so on; where there is none, the whole word is the unknown token
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/byte_trie.h"
#include "data/token_model.h"

namespace qdelta {

class WordLevelModel final : public TokenModel {
 public:
  WordLevelModel(std::vector<std::pair<std::string, std::int32_t>> vocabulary, std::string unknown);
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;

 private:
  std::string unknown_;
};

struct WordPieceConfig {
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;
  std::string unknown = "[UNK]";
  std::string continuing_prefix = "##";
  std::uint64_t longest_word = 100;  // in characters; a longer one is unknown
};

class WordPieceModel final : public TokenModel {
 public:
  explicit WordPieceModel(WordPieceConfig config);
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;

 private:
  // Appends the pieces; false, and some of them, where the word has none.
  bool pieces(std::string_view word, std::vector<std::int32_t>& ids) const;

  std::string unknown_;
  std::uint64_t longest_word_;
  ByteTrie trie_;
  std::int32_t continuing_;  // where the prefix leads in it
};

}  // namespace qdelta
