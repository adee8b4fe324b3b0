// A text read in one go and in pieces that end anywhere on the grid: the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "infer/generating_case.h"
#include "infer/prompt_reader.h"
#include "kernels/row_blocks.h"

namespace qdelta::testing {

// What a text leaves behind: its state, and the logits after its last token.
struct ReadText {
  std::vector<std::vector<float>> state;
  std::vector<float> logits;

  ReadText(const LanguageModel& model, const Device& device, const std::vector<std::int32_t>& text,
           const std::vector<std::size_t>& cuts) {
    ModelStates states(model.config(), 3, device);
    PromptReader reader(model, std::make_shared<DeviceWeights>(model, device), states);
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= cuts.size(); ++i) {
      const std::size_t end = i < cuts.size() ? cuts[i] : text.size();
      const PromptPiece piece{.prompt = text, .begin = begin, .end = end, .slot = 1};
      static_cast<void>(reader.read({&piece, 1}));
      begin = end;
    }
    const std::size_t only = 0;
    logits = host(device, reader.logits_after({&only, 1}));
    for (std::size_t pool = 0; pool < states.pools().size(); ++pool) {
      state.push_back(host(device, states.slot_of(pool, 1)));
    }
  }

 private:
  static std::vector<float> host(const Device& device, const TensorView& view) {
    std::vector<float> values(static_cast<std::size_t>(view.shape.elements()));
    download(device, values.data(), view.data, values.size() * sizeof(float));
    return values;
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline void expect_cuts_to_keep_bits(const LanguageModel& model, const Device& device) {
  const std::size_t grid = prompt_grid(model, device);
  for (const std::size_t rest : {std::size_t{1}, std::size_t{77}, grid}) {
    std::vector<std::int32_t> text;
    for (std::size_t i = 0; i < 5 * grid + rest; ++i) text.push_back(static_cast<std::int32_t>('a' + i * i % 23));
    const ReadText whole(model, device, text, {});
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>{5 * grid}, {2 * grid, 3 * grid}, {grid, 2 * grid, 3 * grid, 4 * grid, 5 * grid}}) {
      const ReadText cut(model, device, text, cuts);
      EXPECT_TRUE(same_bits(cut.logits, whole.logits)) << rest << " tokens behind " << cuts.back();
      for (std::size_t pool = 0; pool < whole.state.size(); ++pool) {
        EXPECT_TRUE(same_bits(cut.state[pool], whole.state[pool])) << pool << ", " << rest << " behind " << cuts.back();
      }
    }
  }
}

// Wide enough that products run as they do in real models.
inline ModelConfig wide_config(std::string_view mixer) {
  ModelConfig config = speaking_config(mixer);
  config.hidden_size = 256;
  config.num_heads = 2;
  config.head_dim = 64;
  config.intermediate_size = 640;
  config.initializer_range = 0.05;
  return config;
}

}  // namespace qdelta::testing
