// A recurrent state on disk: what a prefix left behind, so that a later run continues without reading it again.
//
// A safetensors file with `conv.I` and `recurrent.I` of each block, and in files of the server's cache `token_ids`, the
// tokens read. In its metadata: `version` (2), `model_xxh3`, `token_xxh3` and `tensors_xxh3` (hashes of the model, of
// the tokens read and of the tensors, one after the other), `tokens` (how many) and `pending` (the token to read next,
// plus one). A state of another model is refused, and one whose tensors have another hash. Files of version 1 have no
// `version`, and FNV-1a hashes in `model_hash` and `token_hash`; early ones of version 2 have no `tensors_xxh3`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/language_model.h"

namespace qdelta {

struct SavedState {
  std::int64_t tokens = 0;       // read so far
  std::uint64_t token_hash = 0;  // of all of them, in order
  // The token after them, which is read when the text goes on: only so are there logits for the next one. -1: none.
  std::int32_t pending = -1;
};

// Identifies a model: its config and every parameter. XXH3.
[[nodiscard]] std::uint64_t model_hash(const LanguageModel& model);
// Continues a hash over more tokens; start from 0, or from what a file says: then also where that is of version 1.
[[nodiscard]] std::uint64_t hash_tokens(std::uint64_t hash, std::span<const std::int32_t> tokens);

struct StateFileOptions {
  std::optional<std::uint64_t> model_hash;  // where it is known: to compute it takes a moment
  std::span<const std::int32_t> token_ids;  // for a file that knows what was read
};
void save_state(const std::string& path, const LanguageModel& model, const ModelStates& states, std::int64_t slot,
                const SavedState& info, const StateFileOptions& options = {});
[[nodiscard]] SavedState load_state(const std::string& path, const LanguageModel& model, ModelStates& states,
                                    std::int64_t slot, std::optional<std::uint64_t> known_model_hash = std::nullopt);
// The same of a file that is open.
[[nodiscard]] SavedState load_state(const SafetensorsFile& file, const LanguageModel& model, ModelStates& states,
                                    std::int64_t slot, std::optional<std::uint64_t> known_model_hash = std::nullopt);
// What a file says without its tensors having been read. Throws as load_state does.
[[nodiscard]] SavedState state_info(const std::string& path, std::uint64_t model_hash, std::int64_t vocab_size);
// The tokens that a state of this model has read; none where its file does not say.
[[nodiscard]] std::vector<std::int32_t> token_ids_of_state(const std::string& path, std::uint64_t model_hash,
                                                           std::int64_t vocab_size);

}  // namespace qdelta
