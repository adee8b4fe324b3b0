#include "model/mixer_types.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "model/config.h"
#include "model/mamba_mixer.h"
#include "model/recurrence_mixer.h"

namespace qdelta {

std::span<const MixerType> mixer_types() {
  static const std::vector<MixerType> types = [] {
    std::vector<MixerType> rows;
    for (const RuleTraits& rule : kRuleTraits) rows.push_back({rule.name, rule.title, make_recurrence_mixer});
    rows.push_back({"mamba", "Mamba", make_mamba_mixer});
    return rows;
  }();
  return types;
}

std::vector<std::string_view> mixer_names() {
  std::vector<std::string_view> names;
  for (const MixerType& type : mixer_types()) names.push_back(type.name);
  return names;
}

const MixerType& mixer_type(std::string_view name) {
  const std::span<const MixerType> types = mixer_types();
  const auto found = std::find_if(types.begin(), types.end(), [&](const MixerType& type) { return type.name == name; });
  require(found != types.end(), "'{}' is no rule; there are {}", name, fmt::join(mixer_names(), ", "));
  return *found;
}

std::vector<std::unique_ptr<Mixer>> make_mixers(const ModelConfig& config) {
  const auto shared = std::make_shared<const ModelConfig>(config);
  std::vector<std::unique_ptr<Mixer>> mixers;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const MixerType& type = mixer_type(config.layer_type(layer));
    mixers.push_back(type.make(type, shared));
  }
  return mixers;
}

std::vector<std::unique_ptr<Mixer>> make_distinct_mixers(const ModelConfig& config) {
  const auto shared = std::make_shared<const ModelConfig>(config);
  std::vector<std::unique_ptr<Mixer>> mixers;
  for (const std::string& name : config.distinct_layer_types()) {
    const MixerType& type = mixer_type(name);
    mixers.push_back(type.make(type, shared));
  }
  return mixers;
}

}  // namespace qdelta
