#include "infer/state_file.h"

#include <nlohmann/json.hpp>

#include <cstring>

#include "core/fnv1a.h"
#include "core/hash.h"
#include "io/safetensors.h"

namespace qdelta {
namespace {

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

// What the header says, of a state of the model whose hash `expected` gives as files of a version have it.
template <class ModelHash>
StateHeader checked_header(const SafetensorsFile& file, std::int64_t vocab_size, const ModelHash& expected) {
  const StateHeader header = read_state_header(file);
  if (header.model_hash != expected(header.version)) {
    fail(Status::invalid_argument, "{} is a state of another model, or of other weights of this one", file.path());
  }
  if (header.info.pending >= vocab_size) {
    fail(Status::corrupt, "{}: the pending token is beyond the vocabulary", file.path());
  }
  return header;
}

}  // namespace

std::uint64_t model_hash(const LanguageModel& model) {
  return hash_bytes(std::as_bytes(model.parameters()), hash_texts({config_to_json(model.config()).dump()}));
}

void save_state(const std::string& path, const LanguageModel& model, const ModelStates& states, std::int64_t slot,
                const SavedState& info, const StateFileOptions& options) {
  const std::span<const ModelStates::Pool> pools = states.pools();
  std::vector<Tensor> host;
  for (std::size_t i = 0; i < pools.size(); ++i) host.push_back(download_slot(states, i, slot));
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < pools.size(); ++i) tensors.push_back({pools[i].name, host[i].view()});
  if (!options.token_ids.empty()) {
    tensors.push_back({kStateTokenIds,
                       {reinterpret_cast<const std::byte*>(options.token_ids.data()),
                        DType::i32,
                        {static_cast<std::int64_t>(options.token_ids.size())}}});
  }
  write_safetensors(path, tensors,
                    {{"format", kStateFormat},
                     {"version", std::to_string(kStateVersion)},
                     {"model_xxh3", std::to_string(options.model_hash ? *options.model_hash : model_hash(model))},
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
  file.verify();
  const StateHeader header = checked_header(file, model.config().vocab_size, [&](std::uint64_t version) {
    if (version == 1) return model_hash_v1(model);
    return known_model_hash ? *known_model_hash : model_hash(model);
  });
  std::vector<ConstTensorView> tensors;
  for (std::size_t i = 0; i < states.pools().size(); ++i) {
    tensors.push_back(state_tensor(file, states.pools()[i].name, states.slot_of(i, 0).shape));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView to = states.slot_of(i, slot);
    upload(states.device(), to.data, tensors[i].data, static_cast<std::size_t>(to.shape.elements()) * sizeof(float));
  }
  return header.info;
}

SavedState state_info(const std::string& path, std::uint64_t model_hash, std::int64_t vocab_size) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  return checked_header(file, vocab_size, [&](std::uint64_t /*version*/) { return model_hash; }).info;
}

std::vector<std::int32_t> token_ids_of_state(const std::string& path, std::uint64_t model_hash,
                                             std::int64_t vocab_size) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const StateHeader header = checked_header(file, vocab_size, [&](std::uint64_t /*version*/) { return model_hash; });
  return state_token_ids(file, header, vocab_size);
}

}  // namespace qdelta
