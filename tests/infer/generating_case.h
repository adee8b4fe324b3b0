// What the tests of generation share: a small model that speaks bytes, and only such as can be read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_tokenizer.h"
#include "infer/generator.h"
#include "mixers.h"
#include "model/language_model.h"
#include "rule/rule.h"

namespace qdelta::testing {

inline ModelConfig speaking_config(std::string_view mixer = "q_delta") {
  ModelConfig config;
  config.vocab_size = 258;
  config.hidden_size = 32;
  config.num_hidden_layers = layers_for(mixer);
  config.choose_mixer(mixer);
  config.num_heads = 2;
  config.head_dim = 8;
  config.expand_v = 2;
  config.intermediate_size = 48;
  config.initializer_range = 0.3;  // large, so that what was read matters
  return config;
}
inline ModelConfig speaking_config(Rule rule) { return speaking_config(traits_of(rule).name); }

// Random weights, but for the output head: only lower case letters and the space have a logit other than zero, and
// among so many there is always one above it.
inline std::unique_ptr<LanguageModel> speaking_model(const ModelConfig& config, std::uint64_t seed = 1) {
  auto model = std::make_unique<LanguageModel>(config);
  initialise(model->layout(), seed, model->parameters());
  const Slot head = model->layout().head;
  for (std::int64_t id = 0; id < config.vocab_size; ++id) {
    if (id == ' ' || (id >= 'a' && id <= 'z')) continue;
    const auto row = static_cast<std::size_t>(head.offset + id * config.hidden_size);
    for (float& value : model->parameters().subspan(row, static_cast<std::size_t>(config.hidden_size))) value = 0;
  }
  return model;
}

inline std::vector<std::int32_t> bytes_of(std::string_view text) { return ByteTokenizer().encode(text); }

inline GenerationOptions greedy(std::int64_t tokens) {
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = tokens;
  return options;
}

}  // namespace qdelta::testing
