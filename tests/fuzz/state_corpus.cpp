// What fuzz_state.cpp starts from: states of both versions, as files and as their headers alone.
#include <array>
#include <cstddef>
#include <cstdint>

#include "corpus.h"
#include "infer/state_format.h"
#include "io/safetensors_checksum.h"
#include "state_case.h"

namespace {

constexpr std::string_view kWords[] = {"\"pending\":\"0\"",
                                       "\"pending\":\"259\"",
                                       "\"pending\":\"2147483648\"",
                                       "\"tokens\":\"3\"",
                                       "\"version\":\"1\"",
                                       "\"version\":\"3\"",
                                       "\"model_hash\"",
                                       "\"token_hash\"",
                                       "token_ids",
                                       "qdelta.xxh3",
                                       "xxh3:",
                                       "\"I32\"",
                                       "\"F32\"",
                                       "recurrent.0",
                                       "conv.0"};

std::string state(bool first_version, bool with_ids, bool sealed) {
  static constexpr std::array<std::int32_t, 3> kIds{72, 105, 33};
  std::vector<qdelta::Tensor> memory;
  std::vector<qdelta::NamedTensor> tensors;
  for (const auto& [name, shape] : qdelta::fuzz::state_tensors()) memory.emplace_back(qdelta::DType::f32, shape);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    tensors.push_back({qdelta::fuzz::state_tensors()[i].first, std::as_const(memory[i]).view()});
  }
  if (with_ids) {
    tensors.push_back({qdelta::kStateTokenIds,
                       {reinterpret_cast<const std::byte*>(kIds.data()), qdelta::DType::i32, qdelta::Shape{3}}});
  }
  const std::string tokens = std::to_string(qdelta::hash_tokens(0, kIds));
  std::map<std::string, std::string> metadata{{"format", qdelta::kStateFormat}, {"tokens", "3"}, {"pending", "66"}};
  metadata[first_version ? "model_hash" : "model_xxh3"] = "12345";
  metadata[first_version ? "token_hash" : "token_xxh3"] = tokens;
  if (!first_version) metadata["version"] = "2";
  if (sealed) metadata[qdelta::kChecksumKey] = qdelta::safetensors_checksum(tensors, metadata, 1);
  return qdelta::fuzz::safetensors_file(tensors, metadata);
}

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() {
  std::vector<std::string> all;
  for (const std::string& file :
       {state(false, true, true), state(false, false, true), state(false, true, false), state(true, false, false)}) {
    all.push_back(file);
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    all.push_back(file.substr(sizeof(length), length));
  }
  return all;
}

std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
