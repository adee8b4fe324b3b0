// Where a prompt is cut leaves no trace on the GPU either, in models whose mixers say so.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device.h"
#include "infer/cuts_case.h"
#include "kernels/device.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

TEST(PromptCutsOnGpu, KeepBits) {
  QDELTA_NEEDS_DEVICE();
  const auto gpu = open_gpu(0);
  for (const DType activations : {DType::f32, DType::bf16}) {
    const Device device{1, gpu.get(), activations};
    for (const std::string& mixer : all_mixers()) {
      SCOPED_TRACE(mixer);
      const auto model = speaking_model(wide_config(mixer));
      const std::vector<std::string> layers = model->config().distinct_layer_types();
      if (std::ranges::find(layers, "mamba") != layers.end()) {
        EXPECT_EQ(prompt_cuts(*model, device).grid, kGpuPromptPiece);
        EXPECT_EQ(prompt_cuts(*model, device).segment, kGpuPromptPiece);
      } else {
        EXPECT_EQ(prompt_cuts(*model, device).grid, static_cast<std::size_t>(kRowBlock));
        EXPECT_EQ(prompt_cuts(*model, device).segment, static_cast<std::size_t>(kSegmentTokens));
        expect_cuts_to_keep_bits(*model, device);
      }
    }
    // As wide as a real model, so that the products' algorithms are too.
    ModelConfig config = wide_config("q_delta");
    config.hidden_size = 1024;
    config.num_heads = 4;
    config.head_dim = 128;
    config.intermediate_size = 2816;
    expect_cuts_to_keep_bits(*speaking_model(config), device);
  }
}

// A long text from a state that was kept near its end, as a server does.
TEST(PromptCutsOnGpu, KeepBitsOfLongTexts) {
  QDELTA_NEEDS_DEVICE();
  const auto gpu = open_gpu(0);
  const Device device{1, gpu.get(), DType::bf16};
  const auto model = speaking_model(wide_config("q_delta"));
  const std::vector<std::int32_t> text = letters(20'200);
  const ReadText whole(*model, device, text, {8192, 16384});
  for (const std::vector<std::size_t>& cuts : {std::vector<std::size_t>{},
                                               {19'968},
                                               {8192, 16384, 20'096},
                                               {512, 8704, 16896},
                                               {1024, 5120, 19'968, 20'096}}) {
    expect_same(ReadText(*model, device, text, cuts), whole, std::to_string(cuts.size()) + " cuts");
  }
}

// Texts with and without whole segments in one call, each from the beginning or from a state within it: the same bits
// as alone. The slots are neighbours, or not.
void expect_company_to_keep_bits(const LanguageModel& model, const Device& device) {
  struct Text {
    std::size_t tokens, begin;
  };
  constexpr Text kTexts[] = {{1400, 0}, {100, 0}, {512, 0}, {1400, 512}, {1400, 1280}, {1024, 512}, {1, 0}, {700, 640}};
  for (const std::int64_t step : {1, 5}) {
    ModelStates states(model.config(), 8, device);
    PromptReader reader(model, std::make_shared<DeviceWeights>(model, device), states);
    std::vector<std::vector<std::int32_t>> texts;
    std::vector<PromptPiece> pieces;
    for (const Text& each : kTexts) texts.push_back(letters(each.tokens, texts.size()));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::int64_t slot = static_cast<std::int64_t>(i) * step % 8;
      const PromptPiece before{.prompt = texts[i], .begin = 0, .end = kTexts[i].begin, .slot = slot};
      if (before.end > 0) static_cast<void>(reader.read({&before, 1}));
      pieces.push_back({.prompt = texts[i], .begin = kTexts[i].begin, .end = texts[i].size(), .slot = slot});
    }
    static_cast<void>(reader.read(pieces));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      expect_same(ReadText(device, reader, i, states, pieces[i].slot), ReadText(model, device, texts[i], {}),
                  std::to_string(kTexts[i].tokens) + " tokens from " + std::to_string(kTexts[i].begin));
    }
  }
}

TEST(PromptCutsOnGpu, KeepBitsAmongOtherTexts) {
  QDELTA_NEEDS_DEVICE();
  const auto gpu = open_gpu(0);
  for (const DType activations : {DType::f32, DType::bf16}) {
    const Device device{1, gpu.get(), activations};
    expect_company_to_keep_bits(*speaking_model(quick() ? speaking_config() : wide_config("q_delta")), device);
  }
}

}  // namespace
}  // namespace qdelta::testing
