// Evaluations during a run: when they come, what they say, and when they end it.
#include <gtest/gtest.h>

#include "training_case.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

class Evaluation : public ::testing::Test {
 protected:
  Evaluation() { initialise(model_.layout(), 5, model_.parameters()); }

  TrainingOutcome run(const TrainingOptions& options) {
    const auto source = shards_.source();
    return train_quietly(model_, *source, shards_.validation(), options);
  }
  static Steps evaluated(const std::string& run) {
    Steps steps;
    for (const RunRecord& record : read_run_log(log_of(run))) {
      if (record.validation_loss) steps.push_back(record.step);
    }
    return steps;
  }

  TemporaryFolder folder_;
  ShardsOfSteps shards_{folder_.file("shards")};
  LanguageModel model_{tiny_config()};
};

TEST_F(Evaluation, IsTheMeanOverAllCountedTokens) {
  std::vector<TokenBatch> batches = shards_.validation();
  ASSERT_EQ(batches.size(), 2U);  // of 3 and 2 rows: a mean of means would differ
  batches[0].targets[4] = -1;
  batches[0].loss_tokens -= 1;
  Trainer trainer(model_, {}, {1});
  const EvaluationResult result = trainer.evaluate(batches);
  ModelRunner runner(model_, {1});
  double sum = 0;
  std::int64_t counted = 0;
  std::int64_t right = 0;
  for (const TokenBatch& batch : batches) {
    Tensor logits(DType::f32, {static_cast<std::int64_t>(batch.ids.size()), kVocabulary});
    runner.logits({batch.ids, batch.offsets}, logits.view());
    for (std::size_t n = 0; n < batch.ids.size(); ++n) {
      if (batch.targets[n] < 0) continue;
      const auto row = logits.as<float>().subspan(n * kVocabulary, kVocabulary);
      double total = 0;
      for (const float value : row) total += std::exp(double{value});
      sum += std::log(total) - double{row[static_cast<std::size_t>(batch.targets[n])]};
      right += std::ranges::max_element(row) - row.begin() == batch.targets[n] ? 1 : 0;
      ++counted;
    }
  }
  EXPECT_EQ(result.loss_tokens, counted);
  EXPECT_NEAR(result.loss, sum / static_cast<double>(counted), 1e-5);
  EXPECT_EQ(result.accuracy, static_cast<double>(right) / static_cast<double>(counted));
}

TEST_F(Evaluation, ComesEverySoManyStepsAndAtTheEnd) {
  TrainingOptions options = tiny_run(folder_.file("run"), 8);
  options.eval_every = 3;
  const TrainingOutcome outcome = run(options);
  EXPECT_EQ(evaluated(options.out), (Steps{3, 6, 8}));
  EXPECT_EQ(outcome.validation.loss_tokens, 5 * 24);
  EXPECT_EQ(read_run_log(log_of(options.out)).back().validation_loss, outcome.validation.loss);
  options = tiny_run(folder_.file("end"), 3);
  options.eval_every = 0;
  static_cast<void>(run(options));
  EXPECT_EQ(evaluated(options.out), (Steps{3}));
}

TEST_F(Evaluation, DoesNotDisturbTheTraining) {
  const auto trained = [&](const std::string& name, std::int64_t every) {
    initialise(model_.layout(), 5, model_.parameters());
    TrainingOptions options = tiny_run(folder_.file(name), 6);
    options.eval_every = every;
    options.save_every = 6;
    static_cast<void>(run(options));
    return std::vector<float>(model_.parameters().begin(), model_.parameters().end());
  };
  EXPECT_TRUE(trained("often", 1) == trained("once", 0));
}

TEST_F(Evaluation, CheckpointsComeWithItOrAtTheirOwnPace) {
  TrainingOptions options = tiny_run(folder_.file("together"), 7);
  options.eval_every = 2;
  options.keep = 9;
  static_cast<void>(run(options));
  for (const int step : {2, 4, 6, 7})
    EXPECT_TRUE(fs::exists(fmt::format("{}/checkpoints/step-{:08}", options.out, step)));
  options.out = folder_.file("apart");
  options.save_every = 5;
  options.keep = 1;
  static_cast<void>(run(options));
  EXPECT_FALSE(fs::exists(options.out + "/checkpoints/step-00000005"));
  EXPECT_TRUE(fs::exists(options.out + "/checkpoints/step-00000007"));
}

// Without a learning rate nothing gets better: the first evaluation is the best there is.
TEST_F(Evaluation, PatienceEndsARunThatNoLongerGetsBetter) {
  TrainingOptions options = tiny_run(folder_.file("run"), 50);
  options.schedule.peak = 0;
  options.eval_every = 2;
  options.patience = 3;
  const TrainingOutcome outcome = run(options);
  EXPECT_EQ(outcome.end, TrainingOutcome::End::early);
  EXPECT_EQ(outcome.state.step, 8);
  EXPECT_EQ(evaluated(options.out), (Steps{2, 4, 6, 8}));
  EXPECT_EQ(newest_checkpoint(options.out), outcome.checkpoint);
  EXPECT_TRUE(outcome.checkpoint.ends_with("step-00000008"));
}

TEST_F(Evaluation, PatienceSurvivesAnInterruption) {
  TrainingOptions options = tiny_run(folder_.file("run"), 50);
  options.schedule.peak = 0;
  options.eval_every = 2;
  options.patience = 3;
  std::atomic<bool> stop = false;
  WatchedSource source(shards_.source(), [&](std::int64_t n) { stop = n == 5; });
  EXPECT_EQ(train_quietly(model_, source, shards_.validation(), options, stop).state.step, 5);
  options.resume = true;
  EXPECT_EQ(run(options).state.step, 8);
}

TEST_F(Evaluation, TensorBoardHasValidationInOnePlace) {
  TrainingOptions options = tiny_run(folder_.file("run"), 4);
  options.machine_limit = 1e12;
  static_cast<void>(run(options));
  std::string events;
  for (const auto& entry : fs::directory_iterator(options.out)) {
    if (entry.path().filename().string().starts_with("events.")) events = read_file(entry.path());
  }
  for (const char* tag : {"train/loss", "train/fraction_of_limit", "validation/loss", "validation/accuracy"}) {
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
  }
  EXPECT_EQ(events.find("train/validation"), std::string::npos);
}

TEST_F(Evaluation, ARunThatGetsBetterIsNotEnded) {
  TrainingOptions options = tiny_run(folder_.file("run"), 12);
  options.eval_every = 2;
  options.patience = 1;
  EXPECT_EQ(run(options).end, TrainingOutcome::End::finished);
}

TEST_F(Evaluation, ATargetAccuracyEndsTheRun) {
  TrainingOptions options = tiny_run(folder_.file("run"), 400);
  options.schedule.peak = 1e-2;
  options.eval_every = 5;
  options.keep = 1;
  options.target_accuracy = 0.1;  // guessing gives a fortieth, knowing the steps a third
  const TrainingOutcome outcome = run(options);
  EXPECT_EQ(outcome.end, TrainingOutcome::End::early);
  EXPECT_GE(outcome.validation.accuracy, 0.1);
  EXPECT_LT(outcome.state.step, 400);
  EXPECT_EQ(outcome.state.step % 5, 0);
  for (const RunRecord& record : read_run_log(log_of(options.out))) {
    if (record.validation_loss && record.step < outcome.state.step) {
      EXPECT_LT(record.extra.at("validation_accuracy"), 0.1);
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
