// A small random model and batch of any rule.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "mixers.h"
#include "model/language_model.h"
#include "rule/rule.h"

namespace qdelta::testing {

inline ModelConfig small_config(std::string_view mixer) {
  ModelConfig config;
  config.vocab_size = 31;
  config.hidden_size = 24;
  config.num_hidden_layers = layers_for(mixer);
  config.choose_mixer(mixer);
  config.num_heads = 2;
  config.head_dim = 8;
  config.expand_v = 2;
  config.intermediate_size = 40;
  config.initializer_range = 0.3;  // large, so that every path of the gradient carries weight
  return config;
}
inline ModelConfig small_config(Rule rule) { return small_config(traits_of(rule).name); }

struct TokenCase {
  std::vector<std::int32_t> ids, targets;
  std::vector<std::int64_t> offsets;

  TokenCase(std::uint64_t seed, std::int64_t vocabulary, const std::vector<std::int64_t>& lengths) : offsets{0} {
    Random random(seed);
    for (const std::int64_t length : lengths) {
      for (std::int64_t t = 0; t < length; ++t) {
        ids.push_back(static_cast<std::int32_t>(random.integer(0, vocabulary - 1)));
        // Some positions do not count.
        targets.push_back(random.uniform() < 0.2 ? -1 : static_cast<std::int32_t>(random.integer(0, vocabulary - 1)));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
  [[nodiscard]] ModelInput input() const { return {ids, offsets}; }
};

}  // namespace qdelta::testing
