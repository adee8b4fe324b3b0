// The moving average of the weights: its formula, and that it is what is validated and saved.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/checkpoint.h"
#include "training_case.h"

namespace qdelta::testing {
namespace {

class Average : public ::testing::Test {
 protected:
  Average() { initialise(model_.layout(), 5, model_.parameters()); }

  TemporaryFolder folder_;
  ShardsOfSteps shards_{folder_.file("shards")};
  LanguageModel model_{tiny_config()};
};

TEST_F(Average, FollowsTheWeights) {
  OptimizerOptions options;
  options.average_decay = 0.5F;
  Device device;
  device.threads = 1;
  Trainer trainer(model_, options, device);
  trainer.start_average();
  std::vector<double> expected(model_.parameters().begin(), model_.parameters().end());
  const auto source = shards_.source();
  for (int update = 1; update <= 12; ++update) {
    const TokenBatch batch = source->next();
    static_cast<void>(trainer.step(std::span(&batch, 1), 1e-2F));
    const double decay = std::min(0.5, (1.0 + update) / (10.0 + update));  // 0.5 from the eighth on
    double largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = decay * expected[i] + (1 - decay) * model_.parameters()[i];
      largest = std::max(largest, std::abs(expected[i] - trainer.state().average()[i]));
    }
    EXPECT_LT(largest, 1e-6) << "after " << update;
  }
}

TEST_F(Average, ASkippedStepLeavesItAlone) {
  OptimizerOptions options;
  options.average_decay = 0.9F;
  Trainer trainer(model_, options, Device{});
  trainer.start_average();
  const std::vector<float> before(trainer.state().average().begin(), trainer.state().average().end());
  model_.parameters()[0] = std::nanf("");
  TokenBatch batch = shards_.source()->next();
  batch.ids[0] = 0;  // whose embedding it is
  EXPECT_TRUE(trainer.step(std::span(&batch, 1), 1e-2F).skipped);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), trainer.state().average().begin()));
}

TEST_F(Average, IsValidatedAndSavedAsAModel) {
  TrainingOptions options = tiny_run(folder_.file("run"), 8);
  options.optimizer.average_decay = 0.8F;
  const std::vector<TokenBatch> validation = shards_.validation();
  const auto source = shards_.source();
  const TrainingOutcome outcome = train_quietly(model_, *source, validation, options);
  const auto averaged = load_model(outcome.checkpoint + "/ema");
  Trainer tester(*averaged, {}, options.device);
  const EvaluationResult result = tester.evaluate(validation);
  const RunRecord last = read_run_log(log_of(options.out)).back();
  EXPECT_EQ(value_of(last, "validation_ema_loss"), result.loss);
  EXPECT_EQ(value_of(last, "validation_ema_accuracy"), result.accuracy);
  EXPECT_NE(last.validation_loss, result.loss);
  // The weights themselves are back in their place.
  const auto weights = load_model(outcome.checkpoint);
  EXPECT_TRUE(std::equal(weights->parameters().begin(), weights->parameters().end(), model_.parameters().begin()));
}

TEST_F(Average, RefusesWhatIsNoDecay) {
  for (const float bad : {-0.1F, 1.0F, std::nanf("")}) {
    OptimizerOptions options;
    options.average_decay = bad;
    expect_error(Status::invalid_argument, {"ema", "less than 1"}, [&] { return options.check(), 0; });
  }
}

// Someone took it away: the run cannot go on as it was.
TEST_F(Average, ACheckpointWithoutItIsRefused) {
  TrainingOptions options = tiny_run(folder_.file("run"), 4);
  options.optimizer.average_decay = 0.8F;
  const auto source = shards_.source();
  const TrainingOutcome outcome = train_quietly(model_, *source, {}, options);
  std::filesystem::remove_all(outcome.checkpoint + "/ema");
  options.resume = true;
  expect_error(Status::io, {outcome.checkpoint + "/ema"},
               [&] { return train_quietly(model_, *shards_.source(), {}, options); });
}

TEST_F(Average, DamageIsNoticed) {
  TrainingOptions options = tiny_run(folder_.file("run"), 4);
  options.optimizer.average_decay = 0.8F;
  const auto source = shards_.source();
  const TrainingOutcome outcome = train_quietly(model_, *source, {}, options);
  EXPECT_TRUE(verify_checkpoint(outcome.checkpoint));
  const std::string path = outcome.checkpoint + "/ema/model.safetensors";
  std::string bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
  expect_error(Status::corrupt, {path}, [&] { return verify_checkpoint(outcome.checkpoint); });
}

}  // namespace
}  // namespace qdelta::testing
