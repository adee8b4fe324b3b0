// SentencePiece's compiled rules of normalization, as tokenizer.json carries them in the normalizer Precompiled: a
// trie (a double array, as the library Darts-clone lays it out) from pieces of text to what stands for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta {

class PrecompiledMap {
 public:
  // `base64` of: the size of the trie in bytes, the trie, texts that each end with a NUL. Throws Error(corrupt).
  explicit PrecompiledMap(std::string_view base64);

  // What stands for the shortest rule that the text begins with. Throws Error(corrupt) where the map leads nowhere.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const;

 private:
  [[nodiscard]] std::uint32_t unit(std::size_t at) const;

  std::vector<std::uint32_t> trie_;
  std::string texts_;
};

}  // namespace qdelta
