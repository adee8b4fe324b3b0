// A gradient that is not finite: the step is skipped, and nothing that lasts is touched by it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "training_case.h"

namespace qdelta::testing {
namespace {

class SkippedStep : public ::testing::Test {
 protected:
  SkippedStep() { initialise(model_.layout(), 5, model_.parameters()); }
  // A weight that every output passes through.
  float& weight() { return model_.parameters()[static_cast<std::size_t>(model_.layout().final_norm.offset)]; }

  TemporaryFolder folder_;
  ShardsOfSteps shards_{folder_.file("shards")};
  LanguageModel model_{tiny_config()};
};

TEST_F(SkippedStep, LeavesParametersAndMomentsAlone) {
  Trainer trainer(model_, {}, {1});
  const auto source = shards_.source();
  const std::vector<TokenBatch> micro_batches{source->next()};
  EXPECT_FALSE(trainer.step(micro_batches, 1e-3F).skipped);
  const float good = weight();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> m(trainer.state().m().begin(), trainer.state().m().end());
    const std::vector<float> v(trainer.state().v().begin(), trainer.state().v().end());
    weight() = bad;
    const std::vector<float> before(model_.parameters().begin(), model_.parameters().end());
    const StepResult result = trainer.step(micro_batches, 1e-3F);
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(std::isfinite(result.gradient_norm));
    EXPECT_EQ(trainer.state().updates, 1);
    EXPECT_EQ(std::memcmp(before.data(), model_.parameters().data(), model_.parameters().size_bytes()), 0);
    EXPECT_TRUE(std::ranges::equal(trainer.state().m(), m));
    EXPECT_TRUE(std::ranges::equal(trainer.state().v(), v));
    weight() = good;
  }
  // The bad gradients are gone, too.
  const StepResult result = trainer.step(micro_batches, 1e-3F);
  EXPECT_FALSE(result.skipped);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_EQ(trainer.state().updates, 2);
}

TEST_F(SkippedStep, IsCountedAndTheRunGoesOn) {
  const TrainingOptions options = tiny_run(folder_.file("run"), 5);
  const float good = weight();
  float kept = good;
  WatchedSource source(shards_.source(), [&](std::int64_t n) {
    if (n == 3) {
      kept = weight();
      weight() = std::nanf("");
    }
    if (n == 4) weight() = kept;
  });
  const TrainingOutcome outcome = train_quietly(model_, source, shards_.validation(), options);
  EXPECT_EQ(outcome.end, TrainingOutcome::End::finished);
  EXPECT_EQ(outcome.state.step, 5);
  EXPECT_EQ(outcome.state.updates, 4);
  EXPECT_EQ(outcome.state.skipped, 1);
  const std::vector<RunRecord> log = read_run_log(log_of(options.out));
  ASSERT_EQ(log.size(), 5U);
  for (const RunRecord& record : log) {
    EXPECT_EQ(std::isfinite(record.gradient_norm), record.step != 3);
    EXPECT_EQ(record.skipped, record.step >= 3 ? 1 : 0);
  }
  EXPECT_NE(weight(), good);  // it was trained after all
  EXPECT_TRUE(std::isfinite(weight()));
}

// JSON has no NaN: a best loss of that kind would make the checkpoint unreadable.
TEST_F(SkippedStep, AValidationLossThatIsNoNumberDoesNotSpoilTheCheckpoint) {
  TrainingOptions options = tiny_run(folder_.file("run"), 4);
  options.eval_every = 2;
  weight() = std::nanf("");
  const auto source = shards_.source();
  const TrainingOutcome broken = train_quietly(model_, *source, shards_.validation(), options);
  EXPECT_EQ(broken.state.skipped, 4);
  EXPECT_TRUE(std::isnan(broken.validation.loss));
  OptimizerState optimizer(model_.layout().size);
  const TrainingState state = load_checkpoint(broken.checkpoint, model_, optimizer);
  EXPECT_EQ(state.step, 4);
  EXPECT_EQ(state.evaluations_since_best, 2);  // none of them was any good
}

}  // namespace
}  // namespace qdelta::testing
