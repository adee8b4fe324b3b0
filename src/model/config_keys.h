// The keys of a config.json that this engine knows, by the kind of file: which are read, which have only one value that
// it can run, and which change nothing about the function that the model computes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta {

// What decides which keys there are, as a bit each.
enum class ConfigKind : std::uint8_t {
  ours = 1,            // model_type qdelta, or any with a `rule` or `layer_types` of ours
  gated_deltanet = 2,  // flash-linear-attention's
  delta_net = 4,       // likewise
  mamba = 8,           // transformers', and flash-linear-attention's
};

enum class KeyUse : std::uint8_t {
  read,
  fixed,    // to what `allowed` says: any other value would be another function
  ignored,  // how the function is computed, trained or described, by others
};

struct ConfigKey {
  std::string_view name;
  std::uint8_t kinds;  // bits of ConfigKind
  KeyUse use;
  std::string_view allowed = {};  // of `fixed`: JSON values with spaces between
};

// Sorted by use. A key stands in several rows where kinds differ in what they do with it.
[[nodiscard]] std::span<const ConfigKey> config_keys();
[[nodiscard]] const ConfigKey* find_config_key(ConfigKind kind, std::string_view name);

// The kind of a config.json, which must be an object. Throws where its model_type is none that this engine has.
[[nodiscard]] ConfigKind kind_of_config(const nlohmann::json& json);
// Throws Error(unsupported) that names a key whose value this engine cannot run.
void check_fixed_keys(const nlohmann::json& json, ConfigKind kind);
[[nodiscard]] std::vector<std::string> unknown_config_keys(const nlohmann::json& json);

// A value fit for a message.
[[nodiscard]] std::string shown_json(const nlohmann::json& value);

}  // namespace qdelta
