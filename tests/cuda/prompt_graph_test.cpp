// One captured graph for prompts of many lengths, in any slot: what it leaves behind has the bits of launches one by
// one.
#include "infer/prompt_graph.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device.h"
#include "infer/cuts_case.h"
#include "kernels/row_blocks.h"

namespace qdelta::testing {
namespace {

std::vector<float> on_host(const Device& device, const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.shape.elements()));
  download(device, values.data(), view.data, values.size() * sizeof(float));
  return values;
}

std::vector<std::int32_t> text_of(std::size_t tokens, std::size_t seed) {
  std::vector<std::int32_t> text;
  for (std::size_t i = 0; i < tokens; ++i) text.push_back(static_cast<std::int32_t>('a' + (i + seed) * i % 23));
  return text;
}

// Both read the same texts into the same slots of two pools, each going on from what the slot had before. Lengths in an
// order in which longer texts leave rows behind that shorter ones must not see, often enough that both graphs are
// captured and replayed.
void expect_graphs_to_keep_bits(const LanguageModel& model, const Device& device) {
  constexpr std::int64_t kSlots = 4;
  const auto weights = std::make_shared<DeviceWeights>(model, device);
  ModelStates states(model.config(), kSlots, device);
  ModelStates expected(model.config(), kSlots, device);
  PromptGraph graph(model, weights, states);
  ModelRunner runner(model, weights, device);
  const std::vector<std::size_t> lengths = {128, 1, 64, 65, 2, 63, 127, 100, 7, 128, 3, 66, 31, 64, 96, 1};
  for (std::size_t i = 0; i < 2 * lengths.size(); ++i) {
    const std::size_t tokens = lengths[i % lengths.size()];
    const auto slot = static_cast<std::int64_t>(i % (kSlots - 1));  // the last one is nobody's
    const std::vector<std::int32_t> text = text_of(tokens, static_cast<std::size_t>(slot));
    const std::vector<float> logits = on_host(device, graph.read(text, slot));

    const std::vector<std::int64_t> offsets = {0, static_cast<std::int64_t>(tokens)};
    const RowBlocks rows_alone;
    runner.next_tokens({text, offsets}, {}, TokenLogProbabilities(), {&expected, {&slot, 1}});
    const auto last = static_cast<std::int32_t>(tokens - 1);
    EXPECT_TRUE(same_bits(logits, on_host(device, runner.logits_at({&last, 1})))) << tokens << " tokens";
    for (std::size_t pool = 0; pool < states.pools().size(); ++pool) {
      for (std::int64_t each = 0; each < kSlots; ++each) {
        EXPECT_TRUE(
            same_bits(on_host(device, states.slot_of(pool, each)), on_host(device, expected.slot_of(pool, each))))
            << tokens << " tokens, pool " << pool << ", slot " << each;
      }
    }
  }
}

void expect_graphs_to_keep_bits(const ModelConfig& config) {
  const auto gpu = open_gpu(0);
  for (const DType activations : {DType::f32, DType::bf16}) {
    const Device device{1, gpu.get(), activations};
    const auto model = speaking_model(config);
    if (prompt_cuts(*model, device).grid != static_cast<std::size_t>(kRowBlock)) continue;
    expect_graphs_to_keep_bits(*model, device);
  }
}

TEST(PromptGraphOnGpu, KeepsBits) {
  QDELTA_NEEDS_DEVICE();
  expect_graphs_to_keep_bits(speaking_config());
}

TEST(PromptGraphOnGpu, KeepsBitsOfAllMixers) {
  QDELTA_NEEDS_DEVICE();
  for (const std::string& mixer : all_mixers()) {
    SCOPED_TRACE(mixer);
    expect_graphs_to_keep_bits(wide_config(mixer));
  }
}

// As wide as a real model, so that the products' algorithms are too.
TEST(PromptGraphOnGpu, KeepsBitsOfWideModels) {
  QDELTA_NEEDS_DEVICE();
  ModelConfig config = wide_config("q_delta");
  config.hidden_size = 1024;
  config.num_heads = 4;
  config.head_dim = 128;
  config.intermediate_size = 2816;
  expect_graphs_to_keep_bits(config);
}

}  // namespace
}  // namespace qdelta::testing
