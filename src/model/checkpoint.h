// Checkpoints are Hugging Face folders: config.json and model.safetensors (or its shards), with the published tensor
// names.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "model/language_model.h"

namespace qdelta {

// The files of a folder, opened, with all that can be checked before the tensors are read.
class ModelFiles {
 public:
  // Throws as load_model does.
  explicit ModelFiles(const std::string& folder);

  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  // Reads all tensors and compares them with the files' checksums: Error(corrupt) where they differ, false where a file
  // has none.
  bool verify() const;
  // verify(), and the model.
  [[nodiscard]] std::unique_ptr<LanguageModel> load() const;

 private:
  ParameterLayout layout_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::pair<Slot, ConstTensorView>> parameters_;
};

// Reads a folder. Tensors may be F32, BF16 or F16. Every missing, unknown or misshapen tensor is named in one error.
// What is damaged is refused, where the files have checksums.
[[nodiscard]] std::unique_ptr<LanguageModel> load_model(const std::string& folder);

// The files that an index, model.safetensors.index.json, names. Throws Error(corrupt) with the label.
[[nodiscard]] std::set<std::string> shards_of_index(const nlohmann::json& json, const std::string& label);

// Writes config.json and model.safetensors (F32) into a folder, which is created if need be; each file is replaced
// whole.
void save_model(const std::string& folder, const LanguageModel& model);

}  // namespace qdelta
