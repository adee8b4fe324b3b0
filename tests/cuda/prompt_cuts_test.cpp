// Where a prompt is cut leaves no trace on the GPU either, in models whose mixers say so.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device.h"
#include "infer/cuts_case.h"
#include "kernels/device.h"

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
        EXPECT_EQ(prompt_grid(*model, device), kGpuPromptPiece);
      } else {
        EXPECT_EQ(prompt_grid(*model, device), static_cast<std::size_t>(kRowBlock));
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
  std::vector<std::int32_t> text;
  for (std::size_t i = 0; i < 20'000; ++i) text.push_back(static_cast<std::int32_t>('a' + i * i % 23));
  const ReadText whole(*model, device, text, {8192, 16384});
  for (const std::vector<std::size_t>& cuts :
       {std::vector<std::size_t>{19'968}, {8192, 16384, 19'968}, {128, 8320, 16512}, {1024, 5120, 13'312, 19'840}}) {
    const ReadText cut(*model, device, text, cuts);
    EXPECT_TRUE(same_bits(cut.logits, whole.logits)) << cuts.front();
    for (std::size_t pool = 0; pool < whole.state.size(); ++pool) {
      EXPECT_TRUE(same_bits(cut.state[pool], whole.state[pool])) << pool << ", " << cuts.front();
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
