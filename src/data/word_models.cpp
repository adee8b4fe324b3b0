#include "data/word_models.h"

#include <algorithm>

#include "core/error.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

// The reference library too finds that out only when it comes to a word that needs it.
std::int32_t unknown_id(const Vocabulary& vocabulary, const std::string& unknown, std::string_view word) {
  const auto id = vocabulary.id_of(unknown);
  if (!id) {
    fail(Status::unsupported, "the word {} has no token, and the unknown token {} is not in the vocabulary either",
         shown(word), shown(unknown));
  }
  return *id;
}

std::uint64_t characters_in(std::string_view text) {
  const auto starts_one = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; };
  return static_cast<std::uint64_t>(std::count_if(text.begin(), text.end(), starts_one));
}

}  // namespace

WordLevelModel::WordLevelModel(std::vector<std::pair<std::string, std::int32_t>> vocabulary, std::string unknown)
    : TokenModel(std::move(vocabulary)), unknown_(std::move(unknown)) {}

void WordLevelModel::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  const auto id = vocabulary().id_of(word);
  ids.push_back(id ? *id : unknown_id(vocabulary(), unknown_, word));
}

WordPieceModel::WordPieceModel(WordPieceConfig config)
    : TokenModel(std::move(config.vocabulary)),
      unknown_(std::move(config.unknown)),
      longest_word_(config.longest_word) {
  for (const auto& [token, id] : vocabulary().index()) trie_.add(token, id);
  continuing_ = trie_.follow(ByteTrie::kRoot, config.continuing_prefix);
}

void WordPieceModel::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  if (characters_in(word) <= longest_word_ && pieces(word, ids)) return;
  ids.resize(before);
  ids.push_back(unknown_id(vocabulary(), unknown_, word));
}

bool WordPieceModel::pieces(std::string_view word, std::vector<std::int32_t>& ids) const {
  for (std::size_t begin = 0; begin < word.size();) {
    std::int32_t node = begin == 0 ? ByteTrie::kRoot : continuing_;
    std::int32_t longest = ByteTrie::kNone;
    std::size_t end = begin;
    for (std::size_t at = begin; at < word.size() && node != ByteTrie::kNone; ++at) {
      node = trie_.child(node, static_cast<unsigned char>(word[at]));
      if (node == ByteTrie::kNone || trie_.value(node) == ByteTrie::kNone) continue;
      longest = trie_.value(node);
      end = at + 1;
    }
    if (longest == ByteTrie::kNone) return false;
    ids.push_back(longest);
    begin = end;
  }
  return true;
}

}  // namespace qdelta
