// Feeds bytes to the readers of config.json and model.safetensors.index.json. A config that is accepted must be the
// same again when it is written and read, and its parameters must have places; an index leads to no other folder.
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "expect.h"
#include "io/parse_json.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/config_keys.h"
#include "model/parameters.h"

using qdelta::fuzz::expect;

namespace {

void read_config(const nlohmann::json& json) {
  const qdelta::ModelConfig config = qdelta::config_from_json(json);
  const nlohmann::json written = qdelta::config_to_json(config);
  expect(qdelta::unknown_config_keys(written).empty(), "a key that we write and do not know");
  const nlohmann::json again = qdelta::config_to_json(qdelta::config_from_json(written));
  expect(again == written, "a config that changes");
  for (const std::string& name : qdelta::unknown_config_keys(json)) expect(json.contains(name), "a key from nowhere");
  if (config.num_hidden_layers > 64) return;  // their places take a while
  const qdelta::ParameterLayout layout(config);
  expect(layout.parameters() > 0 && layout.parameters() <= layout.size, "parameters without a place");
  for (const auto& tensor : layout.tensors) {
    expect(tensor.slot.exists() && tensor.slot.offset + tensor.slot.shape.elements() <= layout.size,
           tensor.name.c_str());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = [&] { return qdelta::parse_json(text, "text", qdelta::kSmallJson); };
  qdelta::fuzz::may_refuse([&] { read_config(parsed()); }, qdelta::Status::invalid_argument);
  qdelta::fuzz::may_refuse([&] {
    for (const std::string& name : qdelta::shards_of_index(parsed(), "index")) {
      const auto path = (std::filesystem::path("/folder") / name).lexically_normal();
      expect(path.parent_path() == "/folder" && path.has_filename(), "a file of another folder");
    }
  });
  return 0;
}
