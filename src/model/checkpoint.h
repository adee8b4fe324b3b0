// Checkpoints are Hugging Face folders: config.json and model.safetensors (or its shards), with the published tensor
// names.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <set>
#include <string>

#include "model/language_model.h"

namespace qdelta {

// Reads a folder. Tensors may be F32, BF16 or F16. Every missing, unknown or misshapen tensor is named in one error.
[[nodiscard]] std::unique_ptr<LanguageModel> load_model(const std::string& folder);

// The files that an index, model.safetensors.index.json, names. Throws Error(corrupt) with the label.
[[nodiscard]] std::set<std::string> shards_of_index(const nlohmann::json& json, const std::string& label);

// Writes config.json and model.safetensors (F32) into a folder, which is created if need be; each file is replaced
// whole.
void save_model(const std::string& folder, const LanguageModel& model);

}  // namespace qdelta
