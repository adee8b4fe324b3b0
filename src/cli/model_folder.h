// What --model may name.
#pragma once

#include <string>

namespace qdelta {

// For the help of --model.
inline constexpr const char* kModelHelp =
    "Model folder: config.json, model.safetensors, tokenizer; or a run, whose newest checkpoint is taken";

// The folder of a model: the one that is named, or where that is a run, that of its newest checkpoint, which is said on
// standard error.
[[nodiscard]] std::string model_folder(const std::string& path);

// Whether a folder has weights.
[[nodiscard]] bool has_weights(const std::string& folder);

}  // namespace qdelta
