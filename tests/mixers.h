// Tests of models run with every mixer: all the rules, and Mamba.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/config.h"

namespace qdelta::testing {

inline std::vector<std::string> all_mixers() {
  std::vector<std::string> names;
  for (const std::string_view name : mixer_names()) names.emplace_back(name);
  return names;
}
// For the names of parameterised tests.
inline std::string mixer_test_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace qdelta::testing
