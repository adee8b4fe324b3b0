// Tokens and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace qdelta {

class Vocabulary {
 public:
  Vocabulary() = default;
  // Throws Error(corrupt): two tokens with one id, an id that is far larger than the number of tokens.
  explicit Vocabulary(std::vector<std::pair<std::string, std::int32_t>> tokens);
  // Ids count up from 0; where a token is listed twice, its text stands for the last.
  explicit Vocabulary(std::vector<std::string> tokens);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // One more than the largest id.
  [[nodiscard]] std::int32_t end_id() const { return static_cast<std::int32_t>(tokens_.size()); }
  // How many there are; fewer than end_id() where ids are left out.
  [[nodiscard]] std::size_t count() const { return count_; }
  // Null where no token has this id.
  [[nodiscard]] const std::string* token(std::int32_t id) const;
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const;
  // From text to id.
  [[nodiscard]] const std::unordered_map<std::string_view, std::int32_t>& index() const { return index_; }

 private:
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> present_;
  std::size_t count_ = 0;
  std::unordered_map<std::string_view, std::int32_t> index_;  // of what is in tokens_
};

}  // namespace qdelta
