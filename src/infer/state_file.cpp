#include "infer/state_file.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstring>

#include "core/fnv1a.h"
#include "core/hash.h"
#include "io/safetensors.h"

namespace qdelta {
namespace {

constexpr std::uint64_t kStateVersion = 2;

// What model_hash was in files of version 1.
std::uint64_t model_hash_v1(const LanguageModel& model) {
  std::uint64_t hash = fnv1a::kStart;
  const auto add = [&hash](std::uint64_t word) {
    hash = fnv1a::step(hash, word);
    hash ^= hash >> 29U;
  };
  for (const char c : config_to_json(model.config()).dump()) add(static_cast<unsigned char>(c));
  const std::span<const float> values = model.parameters();
  for (std::size_t i = 0; i + 2 <= values.size(); i += 2) {
    std::uint64_t word = 0;
    std::memcpy(&word, values.data() + i, sizeof(word));
    add(word);
  }
  return hash;
}

Tensor download_slot(const ModelStates& states, std::size_t pool, std::int64_t slot) {
  const ConstTensorView from = states.slot_of(pool, slot);
  Tensor host(DType::f32, from.shape);
  download(states.device(), host.data(), from.data, host.bytes());
  return host;
}

std::uint64_t number(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  std::uint64_t value = 0;
  if (found != file.metadata().end()) {
    const char* end = found->second.data() + found->second.size();
    const auto read = std::from_chars(found->second.data(), end, value);
    if (read.ptr == end && read.ec == std::errc()) return value;
  }
  fail(Status::corrupt, "{} is no saved state: its '{}' is missing or no number", file.path(), key);
}

void upload_slot(const SafetensorsFile& file, ModelStates& states, std::size_t pool, std::int64_t slot) {
  const std::string& name = states.pools()[pool].name;
  const TensorView to = states.slot_of(pool, slot);
  const ConstTensorView from = file.view(name);
  if (from.dtype != DType::f32 || !(from.shape == to.shape)) {
    fail(Status::corrupt, "{}: '{}' is {} {}, expected F32 {}", file.path(), name, name_of(from.dtype),
         from.shape.text(), to.shape.text());
  }
  upload(states.device(), to.data, from.data, static_cast<std::size_t>(to.shape.elements()) * sizeof(float));
}

}  // namespace

std::uint64_t model_hash(const LanguageModel& model) {
  return hash_bytes(std::as_bytes(model.parameters()), hash_texts({config_to_json(model.config()).dump()}));
}

std::uint64_t hash_tokens(std::uint64_t hash, std::span<const std::int32_t> tokens) {
  for (const std::int32_t& token : tokens) hash = hash_bytes(std::as_bytes(std::span(&token, 1)), hash);
  return hash;
}

void save_state(const std::string& path, const LanguageModel& model, const ModelStates& states, std::int64_t slot,
                const SavedState& info) {
  const std::span<const ModelStates::Pool> pools = states.pools();
  std::vector<Tensor> host;
  for (std::size_t i = 0; i < pools.size(); ++i) host.push_back(download_slot(states, i, slot));
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < pools.size(); ++i) tensors.push_back({pools[i].name, host[i].view()});
  write_safetensors(path, tensors,
                    {{"format", "qdelta state"},
                     {"version", std::to_string(kStateVersion)},
                     {"model_xxh3", std::to_string(model_hash(model))},
                     {"tokens", std::to_string(info.tokens)},
                     {"token_xxh3", std::to_string(info.token_hash)},
                     {"pending", std::to_string(info.pending + 1)}});
}

SavedState load_state(const std::string& path, const LanguageModel& model, ModelStates& states, std::int64_t slot) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const std::uint64_t version = file.metadata().contains("version") ? number(file, "version") : 1;
  if (version < 1 || version > kStateVersion) {
    fail(Status::unsupported, "{} is a saved state of version {}; this program reads versions 1 to {}", path, version,
         kStateVersion);
  }
  const bool same_model = version == 1 ? number(file, "model_hash") == model_hash_v1(model)
                                       : number(file, "model_xxh3") == model_hash(model);
  if (!same_model) {
    fail(Status::invalid_argument, "{} is a state of another model, or of other weights of this one", path);
  }
  SavedState info;
  info.tokens = static_cast<std::int64_t>(number(file, "tokens"));
  info.token_hash = number(file, version == 1 ? "token_hash" : "token_xxh3");
  const std::uint64_t pending = number(file, "pending");
  if (pending > static_cast<std::uint64_t>(model.config().vocab_size)) {
    fail(Status::corrupt, "{}: the pending token is beyond the vocabulary", path);
  }
  info.pending = static_cast<std::int32_t>(pending) - 1;
  for (std::size_t i = 0; i < states.pools().size(); ++i) upload_slot(file, states, i, slot);
  return info;
}

}  // namespace qdelta
