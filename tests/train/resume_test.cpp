// A run that is stopped and resumed gives the numbers of one that never was: parameters, moments, losses, bit for bit.
#include <gtest/gtest.h>

#include <stdexcept>

#include "training_case.h"

namespace qdelta::testing {
namespace {

constexpr std::int64_t kSteps = 12;

struct Settings {
  std::int64_t accumulate = 1;
  Recompute recompute = Recompute::none;
  RowOptions row = ShardsOfSteps::kRow;
  std::int64_t save_every = 0;
  std::string_view mixer = "q_delta";
  float ema = 0;
};

class Resume : public ::testing::Test {
 protected:
  // Runs until the end, or up to and including step `last`.
  TrainingOutcome run(const std::string& name, const Settings& settings, int threads = 1, std::int64_t last = kSteps) {
    std::atomic<bool> stop = false;
    TrainingOptions options = options_of(name, settings, threads);
    LanguageModel model(tiny_config(settings.mixer));
    initialise(model.layout(), 5, model.parameters());
    const auto checkpoint = newest_checkpoint(options.out);
    const std::int64_t done =
        checkpoint ? nlohmann::json::parse(read_file(*checkpoint + "/state.json")).at("step").get<std::int64_t>() : 0;
    WatchedSource source(shards_.source(settings.row), [&](std::int64_t n) {
      if (done + (n - 1) / settings.accumulate + 1 == last && last < kSteps) stop = true;  // during that step
    });
    return train_quietly(model, source, shards_.validation(settings.row), options, stop);
  }

  TrainingOptions options_of(const std::string& name, const Settings& settings, int threads) {
    TrainingOptions options = tiny_run(folder_.file(name), kSteps);
    options.accumulate = settings.accumulate;
    options.recompute = settings.recompute;
    options.save_every = settings.save_every;
    options.optimizer.average_decay = settings.ema;
    options.device.threads = threads;
    options.resume = newest_checkpoint(options.out).has_value();
    return options;
  }

  void expect_exact(const Settings& settings) {
    EXPECT_EQ(run("whole", settings).end, TrainingOutcome::End::finished);
    const TrainingOutcome half = run("halves", settings, 1, kSteps / 2);
    EXPECT_EQ(half.end, TrainingOutcome::End::interrupted);
    EXPECT_EQ(half.state.step, kSteps / 2);
    EXPECT_EQ(half.checkpoint, newest_checkpoint(folder_.file("halves")));
    EXPECT_EQ(run("halves", settings).end, TrainingOutcome::End::finished);
    const Numbers whole = numbers_of(folder_.file("whole"));
    EXPECT_EQ(whole.log.size(), static_cast<std::size_t>(kSteps));
    expect_same(numbers_of(folder_.file("halves")), whole);
  }

  TemporaryFolder folder_;
  ShardsOfSteps shards_{folder_.file("shards")};
};

TEST_F(Resume, GivesTheNumbersOfAnUndisturbedRun) { expect_exact({}); }

TEST_F(Resume, OfMamba) { expect_exact({.mixer = "mamba"}); }

TEST_F(Resume, OfLayersThatDiffer) { expect_exact({.mixer = kHybrid}); }

TEST_F(Resume, OfLayersThatDifferWithRecomputation) {
  expect_exact({.accumulate = 2, .recompute = Recompute::all, .mixer = kHybrid});
}

TEST_F(Resume, WithAnAverageOfTheWeights) {
  expect_exact({.ema = 0.9F});
  const Numbers with = numbers_of(folder_.file("whole"));
  EXPECT_FALSE(with.average.empty());
  EXPECT_NE(with.average, with.parameters);
  // It only looks on.
  static_cast<void>(run("without", {}));
  Numbers without = numbers_of(folder_.file("without"));
  EXPECT_TRUE(without.average.empty());
  without.average = with.average;
  expect_same(without, with);
}

TEST_F(Resume, WithGradientAccumulation) { expect_exact({.accumulate = 3}); }

TEST_F(Resume, WithRecomputation) { expect_exact({.accumulate = 2, .recompute = Recompute::all}); }

TEST_F(Resume, WithSequencesCutAtDocumentsAndContexts) {
  expect_exact({.row = {.seq_len = 32, .reset_at_documents = true, .context_len = 11}});
}

TEST_F(Resume, StepByStep) {
  static_cast<void>(run("whole", {}));
  for (std::int64_t step = 1; step <= kSteps; ++step) static_cast<void>(run("steps", {}, 1, step));
  expect_same(numbers_of(folder_.file("steps")), numbers_of(folder_.file("whole")));
}

TEST_F(Resume, WithOtherNumbersOfThreads) {
  static_cast<void>(run("whole", {.accumulate = 2}, 2));
  static_cast<void>(run("pieces", {.accumulate = 2}, 1, 3));
  static_cast<void>(run("pieces", {.accumulate = 2}, 3, 8));
  static_cast<void>(run("pieces", {.accumulate = 2}, 2));
  expect_same(numbers_of(folder_.file("pieces")), numbers_of(folder_.file("whole")));
}

TEST_F(Resume, RecomputationChangesNothing) {
  static_cast<void>(run("kept", {}));
  static_cast<void>(run("recomputed", {.recompute = Recompute::all}));
  expect_same(numbers_of(folder_.file("recomputed")), numbers_of(folder_.file("kept")));
}

// The log is then ahead of the checkpoint, and the steps between them come again.
TEST_F(Resume, AfterACrashBetweenCheckpoints) {
  const Settings settings{.save_every = 3};
  static_cast<void>(run("whole", settings));
  const TrainingOptions options = options_of("crashed", settings, 1);
  LanguageModel model(tiny_config());
  initialise(model.layout(), 5, model.parameters());
  WatchedSource source(shards_.source(), [](std::int64_t n) {
    if (n == 9) throw std::runtime_error("crash");
  });
  EXPECT_THROW(static_cast<void>(train_quietly(model, source, shards_.validation(), options)), std::runtime_error);
  EXPECT_EQ(read_run_log(log_of(options.out)).size(), 8U);
  EXPECT_TRUE(newest_checkpoint(options.out).value().ends_with("step-00000006"));
  static_cast<void>(run("crashed", settings));
  expect_same(numbers_of(folder_.file("crashed")), numbers_of(folder_.file("whole")));
}

TEST_F(Resume, AFinishedRunStaysAsItIs) {
  const TrainingOutcome first = run("whole", {});
  const Numbers numbers = numbers_of(folder_.file("whole"));
  const TrainingOutcome again = run("whole", {});
  EXPECT_EQ(again.end, TrainingOutcome::End::finished);
  EXPECT_EQ(again.state.step, kSteps);
  EXPECT_EQ(again.checkpoint, first.checkpoint);
  expect_same(numbers_of(folder_.file("whole")), numbers);
}

TEST_F(Resume, AStopBeforeTheFirstStepLeavesNothingToName) {
  LanguageModel model(tiny_config());
  const auto source = shards_.source();
  const TrainingOutcome outcome = train_quietly(model, *source, {}, tiny_run(folder_.file("none"), kSteps), true);
  EXPECT_EQ(outcome.end, TrainingOutcome::End::interrupted);
  EXPECT_EQ(outcome.state.step, 0);
  EXPECT_EQ(outcome.checkpoint, "");
}

TEST_F(Resume, AStopBeforeTheFirstStepOfAResumedRunNamesItsCheckpoint) {
  const TrainingOutcome half = run("halves", {}, 1, 6);
  LanguageModel model(tiny_config());
  const auto source = shards_.source();
  const TrainingOutcome none = train_quietly(model, *source, {}, options_of("halves", {}, 1), true);
  EXPECT_EQ(none.state.step, 6);
  EXPECT_EQ(none.checkpoint, half.checkpoint);
}

TEST_F(Resume, OnlyTheSameRun) {
  static_cast<void>(run("whole", {}));
  LanguageModel model(tiny_config());
  const auto source = shards_.source();
  TrainingOptions options = options_of("whole", {}, 1);
  options.resume = false;
  expect_error(Status::invalid_argument, {options.out, "step-00000012", "--resume"},
               [&] { return train_quietly(model, *source, {}, options); });
  options.resume = true;
  options.recipe = "another";
  expect_error(Status::invalid_argument, {options.out, "other settings", "tiny", "another"},
               [&] { return train_quietly(model, *source, {}, options); });
  LanguageModel other(tiny_config(Rule::gated_delta));
  expect_error(Status::invalid_argument, {"step-00000012", "another model"},
               [&] { return train_quietly(other, *source, {}, options_of("whole", {}, 1)); });
}

}  // namespace
}  // namespace qdelta::testing
