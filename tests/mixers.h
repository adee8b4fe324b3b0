// Tests of models run with every mixer: all the rules, Mamba, and a model whose layers differ.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/mixer_types.h"

namespace qdelta::testing {

// Two rules and Mamba: a pattern for ModelConfig::choose_mixer.
inline constexpr const char* kHybrid = "q_delta,mamba,gated_delta";

inline std::vector<std::string> all_mixers() {
  std::vector<std::string> names;
  for (const std::string_view name : mixer_names()) names.emplace_back(name);
  names.emplace_back(kHybrid);
  return names;
}
// Layers of a small model: two, or as many as the pattern has.
inline std::int64_t layers_for(std::string_view pattern) {
  return std::max<std::int64_t>(2, 1 + std::count(pattern.begin(), pattern.end(), ','));
}
// For the names of parameterised tests.
inline std::string mixer_test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ',', '_');
  return name;
}

}  // namespace qdelta::testing
