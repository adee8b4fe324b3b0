// What --model may name.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "model/config.h"

namespace qdelta {

// For the help of --model.
inline constexpr const char* kModelHelp =
    "Model folder: config.json, model.safetensors, tokenizer; or a run, whose newest checkpoint is taken";

// The folder of a model: the one that is named, or where that is a run, that of its newest checkpoint, which is said on
// standard error.
[[nodiscard]] std::string model_folder(const std::string& path);

// The tokenizer of a model's folder, or the one that is named instead. Throws where the model does not know all of its
// tokens.
[[nodiscard]] std::unique_ptr<Tokenizer> tokenizer_of(const ModelConfig& model, const std::string& folder,
                                                      const std::string& named);

// Whether a folder has weights.
[[nodiscard]] bool has_weights(const std::string& folder);

}  // namespace qdelta
