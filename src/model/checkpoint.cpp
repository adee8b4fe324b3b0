#include "model/checkpoint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/half.h"
#include "io/atomic_file.h"
#include "io/folders.h"
#include "io/parse_json.h"
#include "io/safetensors.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// The files that hold the tensors: model.safetensors, or the shards its index lists.
std::vector<SafetensorsFile> open_weights(const fs::path& folder) {
  std::vector<SafetensorsFile> files;
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(folder / "model.safetensors") && fs::exists(index)) {
    for (const std::string& name : shards_of_index(read_json_file(index.string()), index.string())) {
      files.push_back(SafetensorsFile::open((folder / name).string()));
    }
    return files;
  }
  files.push_back(SafetensorsFile::open((folder / "model.safetensors").string()));
  return files;
}

void copy_values(const ConstTensorView& from, std::span<float> to) {
  const auto count = to.size();
  switch (from.dtype) {
    case DType::f32:
      std::copy_n(reinterpret_cast<const float*>(from.data), count, to.begin());
      return;
    case DType::bf16:
      std::transform(reinterpret_cast<const BFloat16*>(from.data), reinterpret_cast<const BFloat16*>(from.data) + count,
                     to.begin(), [](BFloat16 value) { return static_cast<float>(value); });
      return;
    case DType::f16:
      std::transform(reinterpret_cast<const std::uint16_t*>(from.data),
                     reinterpret_cast<const std::uint16_t*>(from.data) + count, to.begin(), float_from_half);
      return;
    default:
      fail(Status::internal, "a tensor of type {} cannot be a parameter", name_of(from.dtype));
  }
}

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 12;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) out += "\n  " + names[i];
  if (names.size() > kShown) out += fmt::format("\n  ... and {} more", names.size() - kShown);
  return out;
}

// It is compared with the tensors before there is memory for a model: a wrong config.json may ask for any amount of it.
ParameterLayout layout_of(const std::string& folder) {
  if (!fs::is_directory(folder)) fail(Status::io, "{} is not a folder; a model is a folder with config.json", folder);
  return ParameterLayout(load_config(folder));
}

}  // namespace

std::set<std::string> shards_of_index(const nlohmann::json& json, const std::string& label) {
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    fail(Status::corrupt, "{} holds no weight_map", label);
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) fail(Status::corrupt, "{}: the file of {} is no string", label, shown(tensor));
    const auto name = file.get<std::string>();
    // A shard lies in the folder itself: an index must not lead elsewhere.
    const bool plain = fs::path(name).filename() == name && !name.empty() && name != "." && name != ".." &&
                       name.find('\0') == std::string::npos;
    if (!plain) fail(Status::corrupt, "{}: {} is not a file name", label, shown(name));
    names.insert(name);
  }
  return names;
}

ModelFiles::ModelFiles(const std::string& folder) : layout_(layout_of(folder)), files_(open_weights(folder)) {
  std::map<std::string, ConstTensorView> found;
  for (const SafetensorsFile& file : files_) {
    for (const std::string& name : file.names()) found[name] = file.view(name);
  }
  // A tied head may be in the file all the same; it is the embedding.
  if (layout_.config.tie_word_embeddings) found.erase("lm_head.weight");

  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  for (const NamedSlot& tensor : layout_.tensors) {
    const auto at = found.find(tensor.name);
    if (at == found.end()) {
      missing.push_back(tensor.name + " " + tensor.slot.shape.text());
    } else if (!(at->second.shape == tensor.slot.shape)) {
      misshapen.push_back(
          fmt::format("{}: {} instead of {}", tensor.name, at->second.shape.text(), tensor.slot.shape.text()));
    } else {
      const DType dtype = at->second.dtype;
      if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
        fail(Status::unsupported, "{}: {} is {}; parameters may be F32, BF16 or F16", folder, tensor.name,
             name_of(dtype));
      }
      parameters_.emplace_back(tensor.slot, at->second);
    }
    if (at != found.end()) found.erase(at);
  }
  std::vector<std::string> unknown;
  for (const auto& [name, view] : found) unknown.push_back(name + " " + view.shape.text());
  std::string trouble;
  if (!missing.empty()) trouble += "\nmissing:" + list(missing);
  if (!misshapen.empty()) trouble += "\nof another shape:" + list(misshapen);
  if (!unknown.empty()) trouble += "\nunknown:" + list(unknown);
  if (!trouble.empty()) fail(Status::corrupt, "the tensors in {} do not fit its config.json{}", folder, trouble);
}

bool ModelFiles::verify() const {
  bool all = true;
  for (const SafetensorsFile& file : files_) all = file.verify() && all;
  return all;
}

std::unique_ptr<LanguageModel> ModelFiles::load() const {
  verify();
  auto model = std::make_unique<LanguageModel>(layout_.config);
  for (const auto& [slot, view] : parameters_) {
    copy_values(view, model->parameters().subspan(static_cast<std::size_t>(slot.offset),
                                                  static_cast<std::size_t>(slot.shape.elements())));
  }
  return model;
}

std::unique_ptr<LanguageModel> load_model(const std::string& folder) { return ModelFiles(folder).load(); }

void save_model(const std::string& folder, const LanguageModel& model) {
  make_folders(folder);
  std::vector<NamedTensor> tensors;
  for (const NamedSlot& tensor : model.layout().tensors) {
    tensors.push_back({tensor.name, tensor.slot.in(model.parameters())});
  }
  write_safetensors((fs::path(folder) / "model.safetensors").string(), tensors, {{"format", "pt"}});
  write_whole((fs::path(folder) / "config.json").string(), config_to_json(model.config()).dump(1) + "\n");
}

}  // namespace qdelta
