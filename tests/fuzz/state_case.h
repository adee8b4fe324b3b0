// The states that fuzz_state.cpp reads: of a model of one layer, with three tokens.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"

namespace qdelta::fuzz {

inline constexpr std::int64_t kVocabulary = 258;
inline constexpr std::size_t kDataBytes = 188;  // of the tensors below and three tokens

inline std::vector<std::pair<std::string, Shape>> state_tensors() {
  return {{"conv.0", {1, 3, 4}}, {"recurrent.0", {1, 2, 4, 4}}};
}

// A file in memory, as write_safetensors would lay it out; the caller sees to the order of the tensors.
inline std::string safetensors_file(std::span<const NamedTensor> tensors,
                                    const std::map<std::string, std::string>& metadata) {
  std::string header = "{\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::string data;
  for (const NamedTensor& tensor : tensors) {
    const Shape& shape = tensor.view.shape;
    const auto extents = std::span(shape.extent).first(static_cast<std::size_t>(shape.rank));
    const std::size_t begin = data.size();
    const std::uint64_t bytes = safetensors_bytes(shape, tensor.view.dtype).value_or(0);
    if (bytes > 0) data.append(reinterpret_cast<const char*>(tensor.view.data), bytes);
    header +=
        fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", nlohmann::json(tensor.name).dump(),
                    name_of(tensor.view.dtype), fmt::join(extents, ","), begin, data.size());
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + data;
}

}  // namespace qdelta::fuzz
