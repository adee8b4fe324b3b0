// A recurrent state on disk: what a prefix left behind, so that a later run continues without reading it again.
//
// A safetensors file with `conv.I` and `recurrent.I` of each block, and in its
// metadata a hash of the model and of the tokens read. A state of another model is refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace qdelta {

struct SavedState {
  std::int64_t tokens = 0;       // read so far
  std::uint64_t token_hash = 0;  // of all of them, in order
  // The token after them, which is read when the text goes on: only so are there logits for the next one. -1: none.
  std::int32_t pending = -1;
};

// Identifies a model: its config and every parameter.
[[nodiscard]] std::uint64_t model_hash(const LanguageModel& model);
// Continues a hash over more tokens; start from 0.
[[nodiscard]] std::uint64_t hash_tokens(std::uint64_t hash, std::span<const std::int32_t> tokens);

void save_state(const std::string& path, const LanguageModel& model, const ModelStates& states, std::int64_t slot,
                const SavedState& info);
[[nodiscard]] SavedState load_state(const std::string& path, const LanguageModel& model, ModelStates& states,
                                    std::int64_t slot);

}  // namespace qdelta
