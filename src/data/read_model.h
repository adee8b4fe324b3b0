// The "model" of a tokenizer.json: BPE, Unigram, WordPiece or WordLevel.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "data/checked_json.h"
#include "data/token_model.h"

namespace qdelta {

constexpr std::int32_t kLargestId = std::numeric_limits<std::int32_t>::max() - 1;

// Whether the model could take bytes as they are and see GPT-2's alphabet in them (BpeConfig::takes_bytes).
[[nodiscard]] bool may_take_bytes(const JsonAt& model);

// Throws Error(unsupported) for a model or a setting that is not known, Error(corrupt).
[[nodiscard]] std::unique_ptr<TokenModel> read_model(const JsonAt& model, bool takes_bytes);

// What kind of model it is; old files do not say.
[[nodiscard]] std::string type_of_model(const JsonAt& model);

}  // namespace qdelta
