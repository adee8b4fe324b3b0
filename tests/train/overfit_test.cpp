// Every mixer can learn: a batch of random tokens, by heart.
#include <gtest/gtest.h>

#include "mixers.h"
#include "testing.h"
#include "train/trainer.h"

namespace qdelta::testing {
namespace {

// Nothing but memory helps here: the tokens follow no rule, and all of them occur in several places.
TokenBatch random_batch() {
  Random random(5);
  TokenBatch batch;
  batch.offsets = {0, 20, 41, 64};
  std::int32_t start = 0;
  for (std::int64_t n = 0; n < 64; ++n) {
    const bool starts = n == 0 || n == 20 || n == 41;  // each with a token of its own
    batch.ids.push_back(starts ? ++start : static_cast<std::int32_t>(random.integer(4, 15)));
  }
  for (std::int64_t n = 0; n < 64; ++n) {
    const bool ends = n + 1 == 20 || n + 1 == 41 || n + 1 == 64;
    batch.targets.push_back(ends ? -1 : batch.ids[static_cast<std::size_t>(n) + 1]);
    batch.loss_tokens += ends ? 0 : 1;
  }
  return batch;
}

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, LearnsABatchByHeart) {
  ModelConfig config;
  config.vocab_size = 16;
  config.hidden_size = 48;
  config.num_hidden_layers = layers_for(GetParam());
  config.choose_mixer(GetParam());
  config.num_heads = 2;
  config.head_dim = 16;
  config.expand_v = 1;
  config.intermediate_size = 64;
  LanguageModel model(config);
  initialise(model.layout(), 1, model.parameters());
  Trainer trainer(model, {.weight_decay = 0}, {1});
  const std::vector<TokenBatch> micro_batches{random_batch()};

  double loss = trainer.evaluate(micro_batches).loss;
  EXPECT_GT(loss, 2.5);  // it does not know them yet: log 16 is 2.77
  constexpr int kSteps = 400;
  int step = 0;
  for (; step < kSteps && loss >= 0.01; ++step) {
    // Large steps first; at that size the last ones would still jump about.
    const StepResult result = trainer.step(micro_batches, loss > 0.2 ? 1e-2F : 2e-3F);
    ASSERT_FALSE(result.skipped);
    ASSERT_EQ(result.tokens, 64);
    loss = result.loss;
  }
  EXPECT_LT(loss, 0.05) << "after " << step << " steps";
  const EvaluationResult end = trainer.evaluate(micro_batches);
  EXPECT_LT(end.loss, 0.05);
  EXPECT_EQ(end.accuracy, 1);
  EXPECT_EQ(end.loss_tokens, 61);
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryMixer, ::testing::ValuesIn(all_mixers()), mixer_test_name);

}  // namespace
}  // namespace qdelta::testing
