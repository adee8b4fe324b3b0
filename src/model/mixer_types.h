// The table of mixers: every rule of the recurrence by its name, and Mamba.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/mixer.h"

namespace qdelta {

struct MixerType {
  std::string_view name;   // in files and on the command line
  std::string_view title;  // as in papers
  std::unique_ptr<Mixer> (*make)(const MixerType& type, std::shared_ptr<const ModelConfig> config);
};

// Rules first.
[[nodiscard]] std::span<const MixerType> mixer_types();
[[nodiscard]] std::vector<std::string_view> mixer_names();
// Throws where there is none of that name.
[[nodiscard]] const MixerType& mixer_type(std::string_view name);

// A model's mixers, one for each layer, not placed yet.
[[nodiscard]] std::vector<std::unique_ptr<Mixer>> make_mixers(const ModelConfig& config);
// One of each type that the model has, in the order of their first layers.
[[nodiscard]] std::vector<std::unique_ptr<Mixer>> make_distinct_mixers(const ModelConfig& config);

}  // namespace qdelta
