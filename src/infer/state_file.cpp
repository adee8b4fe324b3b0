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
constexpr const char* kTokenIds = "token_ids";

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

// A tensor of the file that is to become part of a state.
ConstTensorView checked_view(const SafetensorsFile& file, const ModelStates& states, std::size_t pool) {
  const std::string& name = states.pools()[pool].name;
  const Shape shape = states.slot_of(pool, 0).shape;
  const ConstTensorView from = file.view(name);
  if (from.dtype != DType::f32 || !(from.shape == shape)) {
    fail(Status::corrupt, "{}: '{}' is {} {}, expected F32 {}", file.path(), name, name_of(from.dtype),
         from.shape.text(), shape.text());
  }
  return from;
}

std::uint64_t hash_tensor(std::uint64_t hash, const ConstTensorView& view) {
  const auto bytes = static_cast<std::size_t>(view.shape.elements()) * size_of(view.dtype);
  return hash_bytes({view.data, bytes}, hash);
}

// What the header says, after checking it. `expected` gives the hash of the model as files of a version have it.
template <class ModelHash>
SavedState checked_info(const SafetensorsFile& file, std::int64_t vocab_size, const ModelHash& expected) {
  const std::uint64_t version = file.metadata().contains("version") ? number(file, "version") : 1;
  if (version < 1 || version > kStateVersion) {
    fail(Status::unsupported, "{} is a saved state of version {}; this program reads versions 1 to {}", file.path(),
         version, kStateVersion);
  }
  if (number(file, version == 1 ? "model_hash" : "model_xxh3") != expected(version)) {
    fail(Status::invalid_argument, "{} is a state of another model, or of other weights of this one", file.path());
  }
  SavedState info;
  info.tokens = static_cast<std::int64_t>(number(file, "tokens"));
  info.token_hash = number(file, version == 1 ? "token_hash" : "token_xxh3");
  const std::uint64_t pending = number(file, "pending");
  if (pending > static_cast<std::uint64_t>(vocab_size)) {
    fail(Status::corrupt, "{}: the pending token is beyond the vocabulary", file.path());
  }
  info.pending = static_cast<std::int32_t>(pending) - 1;
  return info;
}

// The tensors' hash, where the file has one.
void check_tensors(const SafetensorsFile& file, std::span<const ConstTensorView> tensors) {
  if (!file.metadata().contains("tensors_xxh3")) return;
  std::uint64_t hash = 0;
  for (const ConstTensorView& tensor : tensors) hash = hash_tensor(hash, tensor);
  if (file.contains(kTokenIds)) hash = hash_tensor(hash, file.view(kTokenIds));
  if (hash != number(file, "tensors_xxh3")) {
    fail(Status::corrupt, "{} is damaged: its tensors do not have the hash that it says", file.path());
  }
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
                const SavedState& info, const StateFileOptions& options) {
  const std::span<const ModelStates::Pool> pools = states.pools();
  std::vector<Tensor> host;
  for (std::size_t i = 0; i < pools.size(); ++i) host.push_back(download_slot(states, i, slot));
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < pools.size(); ++i) tensors.push_back({pools[i].name, host[i].view()});
  if (!options.token_ids.empty()) {
    tensors.push_back({kTokenIds,
                       {reinterpret_cast<const std::byte*>(options.token_ids.data()),
                        DType::i32,
                        {static_cast<std::int64_t>(options.token_ids.size())}}});
  }
  std::uint64_t hash = 0;
  for (const NamedTensor& tensor : tensors) hash = hash_tensor(hash, tensor.view);
  write_safetensors(path, tensors,
                    {{"format", "qdelta state"},
                     {"version", std::to_string(kStateVersion)},
                     {"model_xxh3", std::to_string(options.model_hash ? *options.model_hash : model_hash(model))},
                     {"tensors_xxh3", std::to_string(hash)},
                     {"tokens", std::to_string(info.tokens)},
                     {"token_xxh3", std::to_string(info.token_hash)},
                     {"pending", std::to_string(info.pending + 1)}});
}

SavedState load_state(const std::string& path, const LanguageModel& model, ModelStates& states, std::int64_t slot,
                      std::optional<std::uint64_t> known_model_hash) {
  return load_state(SafetensorsFile::open(path), model, states, slot, known_model_hash);
}

SavedState load_state(const SafetensorsFile& file, const LanguageModel& model, ModelStates& states, std::int64_t slot,
                      std::optional<std::uint64_t> known_model_hash) {
  const SavedState info = checked_info(file, model.config().vocab_size, [&](std::uint64_t version) {
    if (version == 1) return model_hash_v1(model);
    return known_model_hash ? *known_model_hash : model_hash(model);
  });
  std::vector<ConstTensorView> tensors;
  for (std::size_t i = 0; i < states.pools().size(); ++i) tensors.push_back(checked_view(file, states, i));
  check_tensors(file, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView to = states.slot_of(i, slot);
    upload(states.device(), to.data, tensors[i].data, static_cast<std::size_t>(to.shape.elements()) * sizeof(float));
  }
  return info;
}

SavedState state_info(const std::string& path, std::uint64_t model_hash, std::int64_t vocab_size) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  return checked_info(file, vocab_size, [&](std::uint64_t /*version*/) { return model_hash; });
}

std::vector<std::int32_t> token_ids_of_state(const std::string& path, std::uint64_t model_hash,
                                             std::int64_t vocab_size) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const SavedState info = checked_info(file, vocab_size, [&](std::uint64_t /*version*/) { return model_hash; });
  if (!file.contains(kTokenIds)) return {};
  const ConstTensorView view = file.view(kTokenIds);
  if (view.dtype != DType::i32 || view.shape.rank != 1 || view.extent(0) != info.tokens) {
    fail(Status::corrupt, "{}: '{}' is {} {}, expected I32 [{}]", path, kTokenIds, name_of(view.dtype),
         view.shape.text(), info.tokens);
  }
  const auto* first = reinterpret_cast<const std::int32_t*>(view.data);
  std::vector<std::int32_t> ids(first, first + info.tokens);
  if (hash_tokens(0, ids) != info.token_hash) fail(Status::corrupt, "{}: its tokens are not those it has read", path);
  return ids;
}

}  // namespace qdelta
