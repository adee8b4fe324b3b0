#include "data/vocabulary.h"

#include <algorithm>

#include "core/error.h"
#include "io/untrusted_text.h"

namespace qdelta {

Vocabulary::Vocabulary(std::vector<std::pair<std::string, std::int32_t>> tokens) : count_(tokens.size()) {
  std::int32_t end = 0;
  for (const auto& [token, id] : tokens) end = std::max(end, id + 1);
  // A file may name any id; do not let a single wrong one take gigabytes.
  const std::size_t reasonable = 16 * tokens.size() + (std::size_t{1} << 20U);
  if (static_cast<std::size_t>(end) > reasonable) {
    fail(Status::corrupt, "the vocabulary has {} tokens, but an id as large as {}", tokens.size(), end - 1);
  }
  tokens_.resize(static_cast<std::size_t>(end));
  present_.resize(tokens_.size());
  for (auto& [token, id] : tokens) {
    const auto at = static_cast<std::size_t>(id);
    if (present_[at]) {
      fail(Status::corrupt, "the tokens {} and {} have the same id {}", shown(tokens_[at]), shown(token), id);
    }
    present_[at] = true;
    tokens_[at] = std::move(token);
  }
  index_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (present_[id]) index_.emplace(tokens_[id], static_cast<std::int32_t>(id));
  }
}

Vocabulary::Vocabulary(std::vector<std::string> tokens)
    : tokens_(std::move(tokens)), present_(tokens_.size(), true), count_(tokens_.size()) {
  index_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    index_.insert_or_assign(std::string_view(tokens_[id]), static_cast<std::int32_t>(id));
  }
}

const std::string* Vocabulary::token(std::int32_t id) const {
  const auto at = static_cast<std::size_t>(id);
  return id >= 0 && at < tokens_.size() && present_[at] ? &tokens_[at] : nullptr;
}

std::optional<std::int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = index_.find(token);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

}  // namespace qdelta
