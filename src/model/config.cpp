#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "core/error.h"
#include "core/memory.h"
#include "model/mixer_types.h"
#include "rule/rule.h"

namespace qdelta {
namespace {

constexpr std::int64_t kMostLayers = std::int64_t{1} << 14;

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

// Layers that are all alike are said by their one mixer.
void ModelConfig::set_layer_types(std::vector<std::string> types) {
  layer_types.clear();
  if (!types.empty() && std::count(types.begin(), types.end(), types.front()) == std::ssize(types)) {
    mixer = types.front();
  } else {
    layer_types = std::move(types);
  }
}

void ModelConfig::choose_mixer(std::string_view pattern) {
  const std::vector<std::string> names = split(pattern);
  for (const std::string& name : names) (void)mixer_type(name);
  if (names.size() == 1) return set_layer_types(names);
  require(std::ssize(names) <= num_hidden_layers && num_hidden_layers <= kMostLayers,
          "'{}' names {} mixers for {} layers", pattern, names.size(), num_hidden_layers);
  std::vector<std::string> types;
  for (std::int64_t i = 0; i < num_hidden_layers; ++i) {
    types.push_back(names[static_cast<std::size_t>(i) % names.size()]);
  }
  set_layer_types(std::move(types));
}

bool ModelConfig::has_lambda() const {
  const std::vector<std::string> types = distinct_layer_types();
  return std::any_of(types.begin(), types.end(), [](const std::string& type) {
    const auto rule = rule_from_name(type);
    return rule && traits_of(*rule).reads_lambda;
  });
}

bool ModelConfig::published_mamba() const { return layer_types.empty() && mixer == "mamba" && !use_mlp; }

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
  require(std::isfinite(lamb_bias.value_or(0)) && std::isfinite(fixed_lambda.value_or(0)) &&
              std::isfinite(initial_lamb_bias),
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

}  // namespace qdelta
