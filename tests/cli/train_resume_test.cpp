// A run knows what it was started with: it is resumed by its name, extended and started from, and other settings or
// data are refused with the difference named.
#include "io/run_log.h"
#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class TrainResume : public ::testing::Test {
 protected:
  TrainResume() { write_file(folder_.file("text"), sample_text(6000)); }
  [[nodiscard]] std::string run(const std::string& name) const { return folder_.file(name); }
  [[nodiscard]] Words start(const std::string& name, const std::string& steps, const Words& more = {}) const {
    return joined(joined({"train", "--text", folder_.file("text"), "--out", run(name)}, tiny_training(steps)), more);
  }
  // A run of six steps that was interrupted after the third.
  void start_interrupted(const std::string& name, const Words& more = {}) const {
    static_cast<void>(run_well(start(name, "6", joined({"--save-every", "3"}, more))));
    fs::remove_all(run(name) + "/checkpoints/step-00000006");
  }
  std::string make_shards(const std::string& name, std::uint64_t seed) {
    write_file(folder_.file(name + ".txt"), sample_text(6000, seed));
    static_cast<void>(
        run_well({"tokenize", "--tokenizer", "bytes", "--out", folder_.file(name), folder_.file(name + ".txt")}));
    return folder_.file(name);
  }
  [[nodiscard]] RunResult resumed(const std::string& name, const Words& more = {}) const {
    return run_qdelta(joined({"train", "--resume", run(name)}, more));
  }

  TemporaryFolder folder_;
};

TEST_F(TrainResume, TheNameOfARunIsEnough) {
  const Words settings{"--schedule", "wsd", "--decay-on", "all", "--curriculum", "16:2", "--rule", "gated_delta"};
  static_cast<void>(run_well(start("whole", "6", joined({"--save-every", "3"}, settings))));
  start_interrupted("run", settings);
  fs::remove(folder_.file("text"));  // the run has its own shards
  EXPECT_EQ(resumed("run").status, 0);
  expect_same(numbers_of(run("run")), numbers_of(run("whole")));
  const std::string file = read_file(run("run") + "/run.toml");
  for (const char* piece : {"steps = 6", "schedule = \"wsd\"", "[start]", "version = ", "commit = ", "ranks = 1",
                            "[data]", "lr = 0.001", "warmup = 2", "beta2 = 0.95"}) {
    EXPECT_TRUE(contains(file, piece)) << piece << " in " << file;
  }
}

// 100 steps of warm-up would be all of a short run.
TEST_F(TrainResume, ShortRunsHaveAShortWarmUp) {
  const Words short_run = joined({"train", "--text", folder_.file("text"), "--out", run("run"), "--seq-len", "16",
                                  "--rows", "1", "--threads", "1", "--steps", "30", "--save-every", "15"},
                                 tiny_model());
  const RunResult result = run_well(short_run);
  EXPECT_TRUE(contains(result.out, "Warm-up of 3 steps, a tenth of 30")) << result.out;
  EXPECT_TRUE(contains(read_file(run("run") + "/run.toml"), "warmup = 3\n"));
  const auto rates = [&](const std::string& name) {
    std::vector<double> all;
    for (const RunRecord& record : read_run_log(run(name) + "/log.jsonl")) all.push_back(record.learning_rate);
    return all;
  };
  ASSERT_EQ(rates("run").size(), 30U);
  EXPECT_LT(rates("run")[1], 1e-3);
  EXPECT_FLOAT_EQ(static_cast<float>(rates("run")[2]), 1e-3F);
  // What is given counts, and a run that goes on has the warm-up it began with.
  const RunResult given = run_well(with(short_run, {"--out", run("given"), "--warmup", "20"}));
  EXPECT_FALSE(contains(given.out, "Warm-up")) << given.out;
  EXPECT_LT(rates("given")[18], 1e-3);
  const std::vector<double> whole = rates("run");
  fs::remove_all(run("run") + "/checkpoints/step-00000030");
  EXPECT_EQ(resumed("run").status, 0);
  EXPECT_EQ(rates("run"), whole);
}

// Before a batch is read or a file is written.
TEST_F(TrainResume, TooLittleMemorySaysWhatToLower) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the program where an allocation fails";
#endif
  const RunResult result = run_qdelta(with(start("large", "3"), {"--hidden-size", "8388608", "--head-dim", "64"}));
  expect_failure(result, 1, {"cannot allocate", "lower --rows or --seq-len", "--recompute some or all"});
}

TEST_F(TrainResume, OtherSettingsAreNamed) {
  start_interrupted("run");
  const auto refused = [&](const Words& more, const std::vector<std::string>& pieces) {
    expect_failure(resumed("run", more), 1, pieces);
  };
  refused({"--lr", "0.5"}, {"other settings", "--lr is 0.5, but was 0.001"});
  refused({"--steps", "7", "--seed", "3"}, {"--steps is 7, but was 6", "--seed is 3, but was 1"});
  refused({"--rows", "5"}, {"--rows is 5 on 1 processes, but was 2 on 1"});
  refused({"--hidden-size", "48"}, {"another model", "hidden_size is 48, but was 32"});
  refused({"--mqar", "32:2:100"}, {"--mqar is 32:2:100, but was not given"});
  refused({"--out", folder_.file("elsewhere")}, {"different folders"});
  expect_failure(run_qdelta({"train", "--resume", folder_.file("nowhere")}), 1, {"there is no run in", "nowhere"});
  // What changes no number may differ; 1e-3 is 0.001.
  EXPECT_EQ(resumed("run", {"--lr", "1e-3", "--threads", "2", "--eval-every", "2", "--keep", "5"}).status, 0);
}

TEST_F(TrainResume, OtherTextsAreRefused) {
  start_interrupted("run");
  const Numbers before = numbers_of(run("run"));
  expect_failure(resumed("run", {"--text", folder_.file("missing")}), 1, {"cannot open", "missing"});
  write_file(folder_.file("other"), sample_text(6000, 2));
  expect_failure(resumed("run", {"--text", folder_.file("other")}), 1, {"other data", "text was", "6000 bytes"});
  // A start that is refused leaves the data of the run alone, also where there is no checkpoint yet.
  fs::remove_all(run("run") + "/checkpoints");
  const std::string shard = run("run") + "/data/train/tokens-00000.qdt";
  const std::string data = read_file(shard);
  write_file(folder_.file("text"), sample_text(6000, 2));
  EXPECT_EQ(run_qdelta(start("run", "6")).status, 1);
  EXPECT_TRUE(read_file(shard) == data) << "its data was replaced";
  for (const auto& entry : fs::directory_iterator(run("run"))) {
    EXPECT_FALSE(contains(entry.path().string(), "unfinished")) << entry.path();
  }
}

TEST_F(TrainResume, OtherShardsOfTheSameSizeAreRefused) {
  const std::string shards = make_shards("a", 1);
  const std::string others = make_shards("b", 2);
  const Words command =
      joined({"train", "--data", shards, "--out", run("run"), "--save-every", "2"}, tiny_training("4"));
  static_cast<void>(run_well(command));
  fs::remove_all(run("run") + "/checkpoints/step-00000004");
  fs::remove_all(shards);
  expect_failure(resumed("run"), 1, {"cannot open", "No such file"});
  fs::rename(others, shards);
  expect_failure(resumed("run"), 1, {"other data", "train was", "6001 tokens"});
}

TEST_F(TrainResume, ExtensionsGoOnWithTheScheduleTheyAreTold) {
  static_cast<void>(run_well(start("run", "4")));
  EXPECT_EQ(resumed("run", {"--extend", "2"}).status, 0);
  EXPECT_EQ(resumed("run", {"--extend", "4", "--schedule", "linear", "--lr", "0.01", "--min-lr-ratio", "0"}).status, 0);
  const auto log = read_run_log(log_of(run("run")));
  ASSERT_EQ(log.size(), 10U);
  const std::vector<double> expected{1e-4, 1e-4, 1e-4, 0.0075, 0.005, 0.0025, 0};  // steps 4 to 10
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(log[3 + i].learning_rate, expected[i], 1e-12) << i;
  EXPECT_TRUE(contains(resumed("run").out, "Finished at step 10")) << "extensions are part of the run";
  expect_failure(run_qdelta(start("new", "4", {"--extend", "2"})), 1, {"--extend goes with --resume"});
}

TEST_F(TrainResume, ARunStartsFromAModel) {
  static_cast<void>(run_well(start("first", "4")));
  const std::string model = newest_checkpoint(run("first")).value();
  const Words tuning{"train",     "--text",     folder_.file("text"),
                     "--out",     run("tuned"), "--init-from",
                     model,       "--rows",     "2",
                     "--seq-len", "32",         "--steps",
                     "1",         "--warmup",   "0",
                     "--threads", "1",          "--lr",
                     "0"};
  EXPECT_TRUE(contains(run_well(tuning).out, "Starts from the weights of " + model));
  const auto same_weights = [&](const std::string& folder) {
    const auto a = load_model(model);
    const auto b = load_model(newest_checkpoint(folder).value());
    return std::ranges::equal(a->parameters(), b->parameters());
  };
  EXPECT_TRUE(same_weights(run("tuned")));
  // The vocabulary may grow, and that is said; nothing else may differ.
  const RunResult larger = run_well(with(tuning, {"--out", run("larger"), "--vocab-size", "300"}));
  EXPECT_TRUE(contains(larger.out, "258 tokens there and 300 here: 258 rows are taken, 42 start anew")) << larger.out;
  expect_failure(run_qdelta(with(tuning, {"--out", run("wider"), "--mlp-width", "48"})), 1,
                 {model, "mlp.gate_proj.weight", "48"});
  // A config of a folder with weights does not use them.
  Words config = with(tuning, {"--out", run("config"), "--model-config", model});
  const auto at = std::ranges::find(config, "--init-from");
  config.erase(at, at + 2);
  EXPECT_TRUE(contains(run_well(config).out, "has weights, which are not used; --init-from " + model));
  EXPECT_FALSE(same_weights(run("config")));
}

TEST_F(TrainResume, MixturesSayHowOftenEachDatasetWasSeen) {
  const std::string a = make_shards("a", 1);
  const std::string b = make_shards("b", 2);
  const Words command = joined({"train", "--data", a + ":0.75", b + ":0.25", "--save-every", "2"}, tiny_training("4"));
  static_cast<void>(run_well(joined(command, {"--out", run("whole")})));
  static_cast<void>(run_well(joined(command, {"--out", run("run")})));
  fs::remove_all(run("run") + "/checkpoints/step-00000004");
  EXPECT_EQ(resumed("run").status, 0);
  expect_same(numbers_of(run("run")), numbers_of(run("whole")));
  const RunRecord last = read_run_log(log_of(run("run"))).back();
  EXPECT_DOUBLE_EQ(last.extra.at("epoch of a"), 4 * 2 * 0.75 / 187);
  expect_failure(run_qdelta(joined({"train", "--data", a + ":0.75", b, "--out", run("bad")}, tiny_training("4"))), 1,
                 {"every dataset a weight"});
}

}  // namespace
}  // namespace qdelta::testing
