// A recurrent state on disk: what a prefix left behind, so that a later run continues without reading it again.
//
// A safetensors file with `conv.I` and `recurrent.I` of each block, and in files of the server's cache `token_ids`, the
// tokens read. In its metadata: `version` (2), `model_xxh3` and `token_xxh3` (hashes of the model and of the tokens
// read), `tokens` (how many) and `pending` (the token to read next, plus one), and the checksum of such files
// (io/safetensors_checksum.h). A state of another model is refused, and one that is damaged. Files of version 1 have no
// `version`, and FNV-1a hashes in `model_hash` and `token_hash`; they and early ones of version 2 have no checksum.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/state_format.h"
#include "io/safetensors.h"
#include "model/language_model.h"

namespace qdelta {

// Identifies a model: its config and every parameter. XXH3.
[[nodiscard]] std::uint64_t model_hash(const LanguageModel& model);

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
