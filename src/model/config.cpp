#include "model/config.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/memory.h"
#include "model/mixer_types.h"
#include "rule/rule.h"

namespace qdelta {
namespace {

using Json = nlohmann::json;

// Reads one key if it is there and not null. A value of the wrong kind is an error that names the key.
template <class T>
void read(const Json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  const bool fits = std::is_same_v<T, bool>          ? found->is_boolean()
                    : std::is_same_v<T, std::string> ? found->is_string()
                    : std::is_integral_v<T>          ? found->is_number_integer()
                                                     : found->is_number();
  require(fits, "config: '{}' is {}, which is not what it should be", key, found->dump());
  value = found->get<T>();
}

void read(const Json& json, const char* key, std::optional<double>& value) {
  double number = 0;
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  read(json, key, number);
  value = number;
}

// A token's id: null is none, which is not the same as a key that is not there.
void read(const Json& json, const char* key, std::optional<std::int64_t>& id) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  id.reset();
  if (found->is_null()) return;
  std::int64_t number = 0;
  read(json, key, number);
  id = number;
}

Json id_or_null(const std::optional<std::int64_t>& id) { return id ? Json(*id) : Json(); }

constexpr std::int64_t kMostLayers = std::int64_t{1} << 14;
constexpr std::string_view kMamba = "mamba";
constexpr std::string_view kDeltaNet = "delta_net";

// Published models of one mixer. Others are of our type, with a key that names the mixer.
struct PublishedType {
  std::string_view model_type, architecture, mixer;
};
constexpr PublishedType kOurType{"qdelta", "QDeltaForCausalLM", "q_delta"};
constexpr PublishedType kPublishedTypes[] = {kOurType, {"gated_deltanet", "GatedDeltaNetForCausalLM", "gated_delta"}};

// FLA's DeltaNet says widths as multiples of hidden_size, and has options that this engine has no kernels for.
void read_published_deltanet(const Json& json, ModelConfig& config) {
  config.mixer = "delta";
  const auto must_be = [&](const char* key, const Json& expected) {
    const auto found = json.find(key);
    if (found == json.end() || *found == expected) return;
    fail(Status::unsupported, "config: a delta_net with {} {} is not supported, only {}", key, found->dump(),
         expected.dump());
  };
  must_be("use_beta", true);
  must_be("use_output_norm", true);
  must_be("qk_norm", "l2");
  must_be("qk_activation", "silu");
  must_be("attn", nullptr);
  must_be("conv_bias", false);
  double expand_k = 1;
  double expand_v = 1;
  config.hidden_size = 2048;
  config.num_heads = 16;
  config.num_hidden_layers = 24;
  config.use_gate = false;
  read(json, "expand_k", expand_k);
  read(json, "expand_v", expand_v);
  read(json, "hidden_size", config.hidden_size);
  read(json, "num_heads", config.num_heads);
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

// What a published Mamba says in its own way.
void read_published_mamba(const Json& json, ModelConfig& config) {
  config.mixer = kMamba;
  config.use_mlp = false;
  config.norm_eps = 1e-5;
  // Two implementations publish this type. One says layer_norm_epsilon, and leaves out that the head is tied.
  config.tie_word_embeddings = json.contains("layer_norm_epsilon");
  read(json, "layer_norm_epsilon", config.norm_eps);
  read(json, "conv_kernel", config.conv_size);
  bool use_bias = false;
  bool use_conv_bias = true;
  read(json, "use_bias", use_bias);
  read(json, "use_conv_bias", use_conv_bias);
  if (use_bias || !use_conv_bias) {
    fail(Status::unsupported, "config: Mamba is supported with use_bias false and use_conv_bias true only");
  }
}

// Layers that are all alike are said by their one mixer.
void set_layer_types(ModelConfig& config, std::vector<std::string> types) {
  config.layer_types.clear();
  if (!types.empty() && std::count(types.begin(), types.end(), types.front()) == std::ssize(types)) {
    config.mixer = types.front();
  } else {
    config.layer_types = std::move(types);
  }
}

void read_layer_types(const Json& json, ModelConfig& config) {
  const auto found = json.find("layer_types");
  if (found == json.end() || found->is_null()) return;
  require(found->is_array(), "config: 'layer_types' is {}, expected a list of mixers", found->dump());
  require(!json.contains("rule") || json.at("rule").is_null(), "config: 'rule' and 'layer_types' exclude each other");
  std::vector<std::string> types;
  for (const Json& name : *found) {
    require(name.is_string(), "config: 'layer_types' holds {}, expected the name of a mixer", name.dump());
    types.push_back(name.get<std::string>());
    const std::vector<std::string_view> known = mixer_names();
    require(std::find(known.begin(), known.end(), types.back()) != known.end(),
            "config: 'layer_types' holds '{}'; there are {}", types.back(), fmt::join(known, ", "));
  }
  require(std::ssize(types) == config.num_hidden_layers,
          "config: 'layer_types' names the mixers of {} layers, but num_hidden_layers is {}", types.size(),
          config.num_hidden_layers);
  set_layer_types(config, std::move(types));
}

void read_mixer(const Json& json, ModelConfig& config) {
  std::string type;
  std::string rule;
  read(json, "model_type", type);
  read(json, "rule", rule);
  const auto published = std::find_if(std::begin(kPublishedTypes), std::end(kPublishedTypes),
                                      [&](const PublishedType& known) { return known.model_type == type; });
  if (!rule.empty()) {
    config.mixer = mixer_type(rule).name;
  } else if (type == kMamba) {
    read_published_mamba(json, config);
  } else if (type == kDeltaNet) {
    read_published_deltanet(json, config);
  } else if (published != std::end(kPublishedTypes)) {
    config.mixer = published->mixer;
  } else if (!type.empty()) {
    fail(Status::unsupported,
         "config: model_type is '{}'; this engine reads 'qdelta', 'gated_deltanet', 'delta_net' and 'mamba', or any "
         "with a 'rule' of its own",
         type);
  }
}

// A number, or "auto" for 0.
void read_dt_rank(const Json& json, std::int64_t& value) {
  const auto found = json.find("time_step_rank");
  if (found != json.end() && found->is_string() && *found == "auto") {
    value = 0;
  } else {
    read(json, "time_step_rank", value);
  }
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(',');
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The shortest beginning that gives all when it is repeated.
std::span<const std::string> repeated_pattern(std::span<const std::string> all) {
  for (std::size_t length = 1; length < all.size(); ++length) {
    if (std::equal(all.begin() + static_cast<std::ptrdiff_t>(length), all.end(), all.begin())) {
      return all.first(length);
    }
  }
  return all;
}

}  // namespace

std::int64_t ModelConfig::value_dim() const {
  return static_cast<std::int64_t>(std::llround(static_cast<double>(head_dim) * expand_v));
}

std::int64_t ModelConfig::inner_width() const {
  return static_cast<std::int64_t>(std::llround(static_cast<double>(hidden_size) * expand));
}

const std::string& ModelConfig::layer_type(std::int64_t layer) const {
  return layer_types.empty() ? mixer : layer_types.at(static_cast<std::size_t>(layer));
}

std::vector<std::string> ModelConfig::distinct_layer_types() const {
  if (layer_types.empty()) return {mixer};
  std::vector<std::string> types;
  for (const std::string& type : layer_types) {
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  return types;
}

std::string ModelConfig::mixer_name() const {
  return layer_types.empty() ? mixer : fmt::format("{}", fmt::join(repeated_pattern(layer_types), ","));
}

std::string ModelConfig::mixer_title() const {
  std::vector<std::string_view> titles;
  for (const std::string& type : distinct_layer_types()) titles.push_back(mixer_type(type).title);
  return fmt::format("{}", fmt::join(titles, " + "));
}

void ModelConfig::choose_mixer(std::string_view pattern) {
  const std::vector<std::string> names = split(pattern);
  for (const std::string& name : names) (void)mixer_type(name);
  if (names.size() == 1) return set_layer_types(*this, names);
  require(std::ssize(names) <= num_hidden_layers && num_hidden_layers <= kMostLayers,
          "'{}' names {} mixers for {} layers", pattern, names.size(), num_hidden_layers);
  std::vector<std::string> types;
  for (std::int64_t i = 0; i < num_hidden_layers; ++i) {
    types.push_back(names[static_cast<std::size_t>(i) % names.size()]);
  }
  set_layer_types(*this, std::move(types));
}

bool ModelConfig::has_lambda() const {
  const std::vector<std::string> types = distinct_layer_types();
  return std::any_of(types.begin(), types.end(), [](const std::string& type) {
    const auto rule = rule_from_name(type);
    return rule && traits_of(*rule).reads_lambda;
  });
}

bool ModelConfig::published_mamba() const { return layer_types.empty() && mixer == kMamba && !use_mlp; }

std::int64_t ModelConfig::mlp_width() const {
  if (!use_mlp) return 0;
  if (intermediate_size > 0) return intermediate_size;
  const auto width = static_cast<std::int64_t>(static_cast<double>(hidden_size) * hidden_ratio * 2 / 3);
  return round_up(width, 256);
}

void ModelConfig::check() const {
  const auto positive = [](const char* key, std::int64_t value, std::int64_t most = std::int64_t{1} << 24) {
    require(value > 0 && value <= most, "config: {} is {}, which makes no sense", key, value);
  };
  const auto zero_or_more = [&](const char* key, std::int64_t value) {
    if (value != 0) positive(key, value);
  };
  positive("vocab_size", vocab_size);
  positive("hidden_size", hidden_size);
  positive("num_hidden_layers", num_hidden_layers, kMostLayers);
  positive("num_heads", num_heads);
  zero_or_more("num_v_heads", num_v_heads);
  positive("head_dim", head_dim);
  positive("conv_size", conv_size);
  zero_or_more("intermediate_size", intermediate_size);
  require(expand_v > 0 && expand_v <= 1024, "config: expand_v is {}, which makes no sense", expand_v);
  require(hidden_ratio > 0 && hidden_ratio <= 1024, "config: hidden_ratio is {}, which makes no sense", hidden_ratio);
  require(
      std::abs(static_cast<double>(head_dim) * expand_v - static_cast<double>(value_dim())) < 1e-9 && value_dim() > 0,
      "config: head_dim {} times expand_v {} is no whole number", head_dim, expand_v);
  require(value_heads() % num_heads == 0, "config: num_v_heads {} is not a multiple of num_heads {}", value_heads(),
          num_heads);
  require(!use_mlp || mlp_width() > 0, "config: intermediate_size or hidden_ratio give an MLP of width {}",
          mlp_width());
  require(norm_eps > 0 && std::isfinite(norm_eps), "config: norm_eps is {}", norm_eps);
  require(std::isfinite(lamb_bias.value_or(0)) && std::isfinite(fixed_lambda.value_or(0)),
          "config: lambda is not finite");
  require(std::isfinite(initializer_range) && initializer_range >= 0, "config: initializer_range is {}",
          initializer_range);
  require(layer_types.empty() || std::ssize(layer_types) == num_hidden_layers,
          "config: layer_types names the mixers of {} layers, but num_hidden_layers is {}", layer_types.size(),
          num_hidden_layers);

  // Each size may make sense where all of them together do not. In floating point: the product may have any size.
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  double total = 2 * number(vocab_size) * number(hidden_size) +
                 number(num_hidden_layers) * 3 * number(mlp_width()) * number(hidden_size);
  const std::vector<std::string> types = distinct_layer_types();
  const std::vector<std::unique_ptr<Mixer>> mixers = make_distinct_mixers(*this);
  for (std::size_t i = 0; i < types.size(); ++i) {
    mixers[i]->check();
    const auto layers =
        layer_types.empty() ? num_hidden_layers : std::count(layer_types.begin(), layer_types.end(), types[i]);
    total += number(layers) * mixers[i]->approximate_parameters();
  }
  require(total < 0x1p42,
          "config: vocab_size {}, hidden_size {}, num_hidden_layers {}, num_heads {}, head_dim {} and the others make "
          "a model of {:.1e} parameters, which makes no sense",
          vocab_size, hidden_size, num_hidden_layers, num_heads, head_dim, total);
}

ModelConfig config_from_json(const Json& json) {
  require(json.is_object(), "config: the file holds no JSON object");
  ModelConfig config;
  read_mixer(json, config);
  std::string type;
  read(json, "model_type", type);
  const bool relative_widths = type == kDeltaNet && !json.contains("rule");  // read already
  read(json, "vocab_size", config.vocab_size);
  read(json, "hidden_size", config.hidden_size);
  read(json, "num_hidden_layers", config.num_hidden_layers);
  read_layer_types(json, config);
  read(json, "num_heads", config.num_heads);
  read(json, "num_v_heads", config.num_v_heads);
  read(json, "head_dim", config.head_dim);
  if (!relative_widths) read(json, "expand_v", config.expand_v);
  read(json, "conv_size", config.conv_size);
  read(json, "use_short_conv", config.use_short_conv);
  read(json, "use_gate", config.use_gate);
  read(json, "allow_neg_eigval", config.allow_neg_eigval);
  read(json, "hidden_ratio", config.hidden_ratio);
  read(json, "use_mlp", config.use_mlp);
  // In a published Mamba's file it is the inner width, which expand says.
  if (!config.published_mamba()) read(json, "intermediate_size", config.intermediate_size);
  read(json, "expand", config.expand);
  read(json, "state_size", config.state_size);
  read_dt_rank(json, config.dt_rank);
  read(json, "norm_eps", config.norm_eps);
  read(json, "tie_word_embeddings", config.tie_word_embeddings);
  read(json, "initializer_range", config.initializer_range);
  read(json, "bos_token_id", config.bos_token_id);
  read(json, "eos_token_id", config.eos_token_id);
  read(json, "pad_token_id", config.pad_token_id);
  read(json, "lamb_bias", config.lamb_bias);
  read(json, "fixed_lambda", config.fixed_lambda);
  read(json, "use_decay", config.use_decay);
  std::string activation = "swish";
  read(json, "hidden_act", activation);
  require(activation == "swish" || activation == "silu", "config: hidden_act '{}' is not supported, only swish",
          activation);
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
  return json;
}

}  // namespace

nlohmann::ordered_json config_to_json(const ModelConfig& config) {
  if (config.published_mamba()) return mamba_to_json(config);
  const bool alike = config.layer_types.empty();
  const auto published = std::find_if(std::begin(kPublishedTypes), std::end(kPublishedTypes),
                                      [&](const PublishedType& known) { return alike && known.mixer == config.mixer; });
  const bool is_published = published != std::end(kPublishedTypes);
  const PublishedType& type = is_published ? *published : kOurType;
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
      {"lamb_bias", config.lamb_bias ? Json(*config.lamb_bias) : Json()},
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
  if (config.fixed_lambda) json["fixed_lambda"] = *config.fixed_lambda;
  if (!config.use_decay) json["use_decay"] = false;
  return json;
}

ModelConfig load_config(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "config.json" : fs::path(path);
  std::ifstream in(file);
  if (!in) fail(Status::io, "cannot read {}", file.string());
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail(Status::corrupt, "{} is not valid JSON", file.string());
  try {
    return config_from_json(json);
  } catch (const Error& error) {
    fail(error.status(), "{}: {}", file.string(), error.what());
  }
}

}  // namespace qdelta
