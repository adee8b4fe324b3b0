// config.json, read and written.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>

#include "core/error.h"
#include "io/parse_json.h"
#include "io/untrusted_text.h"
#include "model/config.h"
#include "model/config_keys.h"
#include "model/mixer_types.h"

namespace qdelta {
namespace {

using Json = nlohmann::json;

// Published models of one mixer. Others are of our type, with a key that names the mixer.
struct PublishedType {
  std::string_view model_type, architecture, mixer;
};
constexpr PublishedType kOurType{"qdelta", "QDeltaForCausalLM", "q_delta"};
constexpr PublishedType kPublishedTypes[] = {kOurType, {"gated_deltanet", "GatedDeltaNetForCausalLM", "gated_delta"}};

constexpr const char* kSilu = "swish";  // as files call it
constexpr const char* kSigmoid = "sigmoid";

// The keys that the table says are read in this kind of file; others are passed over.
class Keys {
 public:
  Keys(const Json& json, ConfigKind kind) : json_(json), kind_(kind) {}

  // Null where the key is not there, or is null.
  [[nodiscard]] const Json* find(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end() || found->is_null()) return nullptr;
    const ConfigKey* key = find_config_key(kind_, name);
    return key != nullptr && key->use == KeyUse::read ? &*found : nullptr;
  }

  // A value of the wrong kind is an error that names the key.
  template <class T>
  void read(const char* name, T& value) const {
    const Json* found = find(name);
    if (found == nullptr) return;
    const bool fits = std::is_same_v<T, bool>          ? found->is_boolean()
                      : std::is_same_v<T, std::string> ? found->is_string()
                      : std::is_integral_v<T>          ? found->is_number_integer()
                                                       : found->is_number();
    require(fits, "config: '{}' is {}, which is not what it should be", name, shown_json(*found));
    value = found->get<T>();
  }

  void read(const char* name, std::optional<double>& value) const {
    if (find(name) == nullptr) return;
    double number = 0;
    read(name, number);
    value = number;
  }

  // A token's id: null is none, which is not the same as a key that is not there. Of several the first.
  void read_id(const char* name, std::optional<std::int64_t>& id, bool several = false) const {
    if (!json_.contains(name)) return;
    id.reset();
    const Json* found = find(name);
    if (several && found != nullptr && found->is_array() && !found->empty()) found = &found->front();
    if (found == nullptr) return;
    require(found->is_number_integer(), "config: '{}' is {}, which is no token's id", name, shown_json(*found));
    id = found->get<std::int64_t>();
  }

  // Two names of one thing.
  template <class T>
  void read_either(const char* one, const char* other, T& value) const {
    read(one, value);
    const T first = value;
    read(other, value);
    require(find(one) == nullptr || first == value, "config: '{}' is {}, but '{}', which is the same, is {}", one,
            first, other, value);
  }

 private:
  const Json& json_;
  ConfigKind kind_;
};

Json id_or_null(const std::optional<std::int64_t>& id) { return id ? Json(*id) : Json(); }

// FLA's DeltaNet says widths as multiples of hidden_size.
void read_deltanet_widths(const Keys& keys, ModelConfig& config) {
  double expand_k = 1;
  double expand_v = 1;
  keys.read("expand_k", expand_k);
  keys.read("expand_v", expand_v);
  constexpr std::int64_t kWidest = std::int64_t{1} << 24;
  require(config.num_heads > 0 && config.num_heads <= kWidest, "config: num_heads is {}, which makes no sense",
          config.num_heads);
  const double key_width = static_cast<double>(config.hidden_size) * expand_k;
  require(expand_v > 0 && key_width >= 1 && key_width <= static_cast<double>(kWidest),
          "config: hidden_size {} with expand_k {} and expand_v {} makes no sense", config.hidden_size, expand_k,
          expand_v);
  config.head_dim = static_cast<std::int64_t>(key_width / static_cast<double>(config.num_heads));
  require(std::abs(static_cast<double>(config.head_dim * config.num_heads) - key_width) < 1e-9,
          "config: {} heads do not divide hidden_size {} times expand_k {}", config.num_heads, config.hidden_size,
          expand_k);
  config.expand_v = expand_v / expand_k;
}

// What the implementations have where a file does not say.
void set_published_defaults(const Json& json, ConfigKind kind, ModelConfig& config) {
  switch (kind) {
    case ConfigKind::ours:
      return;
    case ConfigKind::gated_deltanet:
      config.mixer = "gated_delta";
      config.hidden_size = 2048;
      config.head_dim = 256;
      return;
    case ConfigKind::delta_net:
      config.mixer = "delta";
      config.hidden_size = 2048;
      config.num_heads = 16;
      config.num_hidden_layers = 24;
      config.use_gate = false;
      return;
    case ConfigKind::mamba:
      config.mixer = "mamba";
      config.use_mlp = false;
      config.norm_eps = 1e-5;
      // Two implementations publish this type. One says layer_norm_epsilon, and may leave out that the head is tied.
      const bool of_transformers = json.contains("layer_norm_epsilon");
      config.tie_word_embeddings = of_transformers;
      config.vocab_size = of_transformers ? 50280 : 32000;
      config.hidden_size = of_transformers ? 768 : 2048;
      config.num_hidden_layers = of_transformers ? 32 : 48;
  }
}

void read_layer_types(const Json& json, ModelConfig& config) {
  const auto found = json.find("layer_types");
  if (found == json.end() || found->is_null()) return;
  require(found->is_array(), "config: 'layer_types' is {}, expected a list of mixers", shown_json(*found));
  require(!json.contains("rule") || json.at("rule").is_null(), "config: 'rule' and 'layer_types' exclude each other");
  const std::vector<std::string_view> known = mixer_names();
  std::vector<std::string> types;
  for (const Json& name : *found) {
    require(name.is_string(), "config: 'layer_types' holds {}, expected the name of a mixer", shown_json(name));
    types.push_back(name.get<std::string>());
    require(std::find(known.begin(), known.end(), types.back()) != known.end(),
            "config: 'layer_types' holds {}; there are {}", shown(types.back()), fmt::join(known, ", "));
  }
  require(std::ssize(types) == config.num_hidden_layers,
          "config: 'layer_types' names the mixers of {} layers, but num_hidden_layers is {}", types.size(),
          config.num_hidden_layers);
  config.set_layer_types(std::move(types));
}

// A number, or "auto" for 0.
void read_step_rank(const Keys& keys, std::int64_t& value) {
  std::int64_t ranks[2] = {value, value};
  constexpr const char* kNames[2] = {"time_step_rank", "dt_rank"};
  for (int i = 0; i < 2; ++i) {
    const Json* found = keys.find(kNames[i]);
    if (found != nullptr && found->is_string() && *found == "auto") continue;
    keys.read(kNames[i], ranks[i]);
    if (found != nullptr) value = ranks[i];
  }
  const bool both = keys.find(kNames[0]) != nullptr && keys.find(kNames[1]) != nullptr;
  require(!both || ranks[0] == ranks[1], "config: 'time_step_rank' and 'dt_rank', which are the same, differ");
}

// A published Mamba may repeat its inner width, which expand says.
void check_inner_width(const Keys& keys, const ModelConfig& config) {
  const double inner = static_cast<double>(config.hidden_size) * config.expand;
  double given = inner;
  keys.read("intermediate_size", given);
  require(given == std::floor(inner), "config: 'intermediate_size' is {}, but hidden_size {} times expand {} is {}",
          given, config.hidden_size, config.expand, inner);
}

GateActivation output_gate_of(const Keys& keys) {
  std::string name = kSilu;
  keys.read("output_gate_activation", name);
  return gate_activation_of(name, "config: 'output_gate_activation'");
}

}  // namespace

GateActivation gate_activation_of(const std::string& name, const char* what) {
  if (name == kSigmoid) return GateActivation::sigmoid;
  if (name == kSilu || name == "silu") return GateActivation::silu;
  fail(Status::unsupported, "{} is {}, expected swish, silu or sigmoid", what, shown(name));
}

ModelConfig config_from_json(const Json& json) {
  require(json.is_object(), "config: the file holds no JSON object");
  const ConfigKind kind = kind_of_config(json);
  check_fixed_keys(json, kind);
  const Keys keys(json, kind);
  ModelConfig config;
  set_published_defaults(json, kind, config);
  std::string rule;
  keys.read("rule", rule);
  if (!rule.empty()) config.mixer = mixer_type(rule).name;
  keys.read("vocab_size", config.vocab_size);
  keys.read("hidden_size", config.hidden_size);
  keys.read("num_hidden_layers", config.num_hidden_layers);
  read_layer_types(json, config);
  keys.read("num_heads", config.num_heads);
  keys.read("num_v_heads", config.num_v_heads);
  if (kind == ConfigKind::delta_net) {
    read_deltanet_widths(keys, config);
  } else {
    keys.read("head_dim", config.head_dim);
    keys.read("expand_v", config.expand_v);
  }
  keys.read_either("conv_size", "conv_kernel", config.conv_size);
  keys.read("use_short_conv", config.use_short_conv);
  keys.read("use_gate", config.use_gate);
  config.output_gate = output_gate_of(keys);
  keys.read("allow_neg_eigval", config.allow_neg_eigval);
  keys.read("hidden_ratio", config.hidden_ratio);
  keys.read("use_mlp", config.use_mlp);
  keys.read("expand", config.expand);
  keys.read("state_size", config.state_size);
  read_step_rank(keys, config.dt_rank);
  if (config.published_mamba() && kind == ConfigKind::mamba) {
    check_inner_width(keys, config);
  } else if (!config.published_mamba()) {
    keys.read("intermediate_size", config.intermediate_size);
  }
  keys.read_either("norm_eps", "layer_norm_epsilon", config.norm_eps);
  keys.read("tie_word_embeddings", config.tie_word_embeddings);
  keys.read("initializer_range", config.initializer_range);
  keys.read_id("bos_token_id", config.bos_token_id);
  keys.read_id("eos_token_id", config.eos_token_id, /*several=*/true);
  keys.read_id("pad_token_id", config.pad_token_id);
  keys.read("lamb_bias", config.lamb_bias);
  keys.read("initial_lamb_bias", config.initial_lamb_bias);
  keys.read("fixed_lambda", config.fixed_lambda);
  keys.read("use_decay", config.use_decay);
  config.check();
  return config;
}

namespace {

// As the published implementation of Mamba has it.
nlohmann::ordered_json mamba_to_json(const ModelConfig& config) {
  nlohmann::ordered_json json{
      {"model_type", "mamba"},
      {"architectures", {"MambaForCausalLM"}},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"state_size", config.state_size},
      {"expand", config.expand == std::floor(config.expand) ? Json(config.inner_width() / config.hidden_size)
                                                            : Json(config.expand)},
      {"conv_kernel", config.conv_size},
      {"time_step_rank", config.step_rank()},
      {"use_bias", false},
      {"use_conv_bias", true},
      {"hidden_act", "silu"},
      {"norm_eps", config.norm_eps},
      {"layer_norm_epsilon", config.norm_eps},  // the same, as transformers calls it
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"initializer_range", config.initializer_range},
      {"bos_token_id", id_or_null(config.bos_token_id)},
      {"eos_token_id", id_or_null(config.eos_token_id)},
  };
  if (config.pad_token_id) json["pad_token_id"] = *config.pad_token_id;
  // As flash-linear-attention calls it, which has the same default. (What is always there is in the hashes of states.)
  if (config.step_rank() != (config.hidden_size + 15) / 16) json["dt_rank"] = config.step_rank();
  return json;
}

}  // namespace

nlohmann::ordered_json config_to_json(const ModelConfig& config) {
  if (config.published_mamba()) return mamba_to_json(config);
  const bool alike = config.layer_types.empty();
  const auto* const published =
      std::find_if(std::begin(kPublishedTypes), std::end(kPublishedTypes),
                   [&](const PublishedType& known) { return alike && known.mixer == config.mixer; });
  const bool is_published = published != std::end(kPublishedTypes);
  const PublishedType& type = is_published ? *published : kOurType;
  const bool lambda = config.has_lambda();  // what nothing reads is not written: published readers would not keep it
  nlohmann::ordered_json json{
      {"model_type", type.model_type},
      {"architectures", {type.architecture}},
      {"attn_mode", "chunk"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_heads", config.num_heads},
      {"num_v_heads", config.num_v_heads > 0 ? Json(config.num_v_heads) : Json()},
      {"head_dim", config.head_dim},
      {"expand_v", config.expand_v},
      {"conv_size", config.conv_size},
      {"use_short_conv", config.use_short_conv},
      {"use_gate", config.use_gate},
      {"allow_neg_eigval", config.allow_neg_eigval},
      {"hidden_ratio", config.hidden_ratio},
      {"intermediate_size", config.intermediate_size > 0 ? Json(config.intermediate_size) : Json()},
      {"hidden_act", "swish"},
      {"norm_eps", config.norm_eps},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"initializer_range", config.initializer_range},
      {"bos_token_id", id_or_null(config.bos_token_id)},
      {"eos_token_id", id_or_null(config.eos_token_id)},
      {"lamb_bias", lambda && config.lamb_bias ? Json(*config.lamb_bias) : Json()},
  };
  if (config.pad_token_id) json["pad_token_id"] = *config.pad_token_id;
  // Keys of ours appear only where the published implementations would not understand the model anyway.
  if (!alike) {
    json["layer_types"] = config.layer_types;
  } else if (!is_published) {
    json["rule"] = config.mixer;
  }
  for (const std::unique_ptr<Mixer>& mixer : make_distinct_mixers(config)) mixer->write_config(json);
  if (!config.use_mlp) json["use_mlp"] = false;
  if (lambda && config.fixed_lambda) json["fixed_lambda"] = *config.fixed_lambda;
  if (!config.use_decay) json["use_decay"] = false;
  if (config.output_gate == GateActivation::sigmoid) json["output_gate_activation"] = kSigmoid;
  return json;
}

namespace {

// Once for each file and each set of keys: a command may read a config several times.
void warn_of_unknown_keys(const Json& json, const std::string& path) {
  std::vector<std::string> names;
  constexpr std::size_t kMostShown = 12;
  const std::vector<std::string> unknown = unknown_config_keys(json);
  if (unknown.empty()) return;
  for (const std::string& name : unknown) {
    if (names.size() < kMostShown) names.push_back(shown(name));
  }
  if (unknown.size() > kMostShown) names.push_back(fmt::format("and {} more", unknown.size() - kMostShown));
  const std::string warning = fmt::format(
      "warning: {}: this engine does not know {}, and ignores what it does not know\n", path, fmt::join(names, ", "));
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (warned.insert(warning).second) fmt::print(stderr, "{}", warning);
}

}  // namespace

ModelConfig load_config(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string file = (fs::is_directory(path) ? fs::path(path) / "config.json" : fs::path(path)).string();
  const Json json = read_json_file(file);
  try {
    ModelConfig config = config_from_json(json);
    warn_of_unknown_keys(json, file);
    return config;
  } catch (const Error& error) {
    fail(error.status(), "{}: {}", file, error.what());
  }
}

}  // namespace qdelta
