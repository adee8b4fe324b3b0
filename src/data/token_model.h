// The models of tokenizer.json: from a word, as the pre-tokenizers cut it, to ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/vocabulary.h"

namespace qdelta {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;

  // Appends the ids of a word, which is not empty. Several threads may call this at once. Throws Error(unsupported)
  // where nothing in the vocabulary stands for the word, not even an unknown token, and the model cannot leave it out.
  virtual void encode(std::string_view word, std::vector<std::int32_t>& ids) const = 0;

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  // As Vocabulary takes them: with their ids, or counted.
  explicit TokenModel(std::vector<std::pair<std::string, std::int32_t>> tokens) : vocabulary_(std::move(tokens)) {}
  explicit TokenModel(std::vector<std::string> tokens) : vocabulary_(std::move(tokens)) {}

 private:
  Vocabulary vocabulary_;
};

}  // namespace qdelta
