// A text read in one go and in pieces, cut wherever that is allowed: the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
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
    take(device, reader, 0, states, 1);
  }
  // What piece `index` of the last call has left in a slot.
  ReadText(const Device& device, PromptReader& reader, std::size_t index, ModelStates& states, std::int64_t slot) {
    take(device, reader, index, states, slot);
  }

 private:
  void take(const Device& device, PromptReader& reader, std::size_t index, ModelStates& states, std::int64_t slot) {
    logits = host(device, reader.logits_after({&index, 1}));
    for (std::size_t pool = 0; pool < states.pools().size(); ++pool) {
      state.push_back(host(device, states.slot_of(pool, slot)));
    }
  }
  static std::vector<float> host(const Device& device, const TensorView& view) {
    std::vector<float> values(static_cast<std::size_t>(view.shape.elements()));
    download(device, values.data(), view.data, values.size() * sizeof(float));
    return values;
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline void expect_same(const ReadText& got, const ReadText& expected, const std::string& where) {
  EXPECT_TRUE(same_bits(got.logits, expected.logits)) << where;
  for (std::size_t pool = 0; pool < expected.state.size(); ++pool) {
    EXPECT_TRUE(same_bits(got.state[pool], expected.state[pool])) << "pool " << pool << ", " << where;
  }
}

inline std::vector<std::int32_t> letters(std::size_t tokens, std::size_t seed = 0) {
  std::vector<std::int32_t> text;
  for (std::size_t i = 0; i < tokens; ++i) text.push_back(static_cast<std::int32_t>('a' + (i + seed) * i % 23));
  return text;
}

// In two whole segments and more.
inline void expect_cuts_to_keep_bits(const LanguageModel& model, const Device& device) {
  const PromptCuts places = prompt_cuts(model, device);
  const std::size_t grid = places.grid;
  const std::size_t segment = places.segment;
  for (const std::size_t rest : {std::size_t{1}, std::size_t{77}, grid}) {
    const std::size_t last = 2 * segment + 3 * grid;
    const std::vector<std::int32_t> text = letters(last + rest);
    const ReadText whole(model, device, text, {});
    std::vector<std::size_t> all;
    for (std::size_t at = grid; at <= last; at += grid) {
      if (places.allow(at, text.size())) all.push_back(at);
    }
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>{places.last(last, text.size())}, {segment, 2 * segment}, all}) {
      expect_same(ReadText(model, device, text, cuts), whole,
                  std::to_string(text.size()) + " tokens, the last cut at " + std::to_string(cuts.back()));
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
