// `qdelta compare`, from the outside: the same table however often it is interrupted.
#include <nlohmann/json.hpp>

#include "cli/training_testing.h"
#include "io/folder_lock.h"
#include "plot/plot_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class CompareCommand : public ::testing::Test {
 protected:
  CompareCommand() { write_file(folder_.file("text"), sample_text(4000)); }

  [[nodiscard]] Words command(const std::string& out, const std::string& steps = "4", const Words& more = {}) const {
    return with(
        joined({"compare", "--text", folder_.file("text"), "--out", folder_.file(out), "--rules",
                "q_delta,linear,q_delta@lambda=0.5", "--seeds", "1,2", "--eval-every", "2", "--validation-rows", "2"},
               tiny_training(steps)),
        more);
  }
  [[nodiscard]] std::string tables(const std::string& out) const {
    const fs::path folder = folder_.file(out);
    return read_file(folder / "table.md") + read_file(folder / "table.csv") + read_file(folder / "table.json") +
           read_file(folder / "compare.svg");
  }
  TemporaryFolder folder_;
};

TEST_F(CompareCommand, WritesATableWithMeansOverSeeds) {
  const RunResult result = run_well(command("out"));
  EXPECT_TRUE(contains(result.out, "Linear attention")) << result.out;
  EXPECT_TRUE(contains(result.out, "Q-Delta, λ = 0.5")) << result.out;
  const auto json = nlohmann::json::parse(read_file(folder_.file("out/table.json")));
  ASSERT_EQ(json["rows"].size(), 3);
  EXPECT_EQ(json["finished"], 6);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["tokens"], 4 * 2 * 32);
    const auto& loss = row["scores"]["validation_loss"];
    ASSERT_EQ(loss["values"].size(), 2);
    const double a = loss["values"][0];
    const double b = loss["values"][1];
    EXPECT_NE(a, b);  // another seed, other weights
    EXPECT_DOUBLE_EQ(loss["mean"], (a + b) / 2);
    EXPECT_NEAR(loss["sd"], std::abs(a - b) / std::sqrt(2.0), 1e-12);
  }
  // Lambda's projection is what q_delta has beyond its ablation: 32 x 2 in two layers, and a bias each.
  const std::int64_t learned = json["rows"][0]["parameters"];
  EXPECT_EQ(learned - json["rows"][2]["parameters"].get<std::int64_t>(), 2 * (32 * 2 + 1));
  plot::testing::expect_tidy(read_file(folder_.file("out/compare.svg")));
  // The same again: nothing is trained, nothing changes.
  const std::string before = tables("out");
  const RunResult again = run_well(command("out"));
  EXPECT_TRUE(contains(again.out, "q_delta seed 1: finished before")) << again.out;
  EXPECT_EQ(tables("out"), before);
}

TEST_F(CompareCommand, GoesOnToTheSameTable) {
  static_cast<void>(run_well(command("whole", "60")));
  // Stopped in the middle of the second run, then one result lost.
  {
    Program program(command("pieces", "60"));
    const std::string log = folder_.file("pieces/runs/linear/seed-1/log.jsonl");
    ASSERT_TRUE(wait_until([&] { return fs::exists(log) && lines_in(log) > 3; }));
    program.send(SIGINT);
    const RunResult result = program.wait_at_most(std::chrono::seconds(30));
    EXPECT_EQ(result.status, 130) << result.err;
    EXPECT_TRUE(contains(result.out, "give the same command again")) << result.out;
  }
  EXPECT_TRUE(fs::exists(folder_.file("pieces/runs/q_delta/seed-1/result.json")));
  EXPECT_FALSE(fs::exists(folder_.file("pieces/runs/linear/seed-1/result.json")));
  fs::remove(folder_.file("pieces/runs/q_delta/seed-1/result.json"));
  static_cast<void>(run_well(command("pieces", "60")));
  EXPECT_EQ(tables("pieces"), tables("whole"));
}

TEST_F(CompareCommand, MoreSeedsAndRulesCanBeAddedOtherSettingsNot) {
  static_cast<void>(run_well(command("out")));
  const RunResult more = run_well(command("out", "4", {"--rules", "q_delta,delta", "--seeds", "1,3"}));
  EXPECT_TRUE(contains(more.out, "q_delta seed 1: finished before")) << more.out;
  const std::string before = tables("out");
  expect_failure(run_qdelta(command("out", "5")), 1, {"begun with other settings", "steps: was 4, is 5"});
  expect_failure(run_qdelta(command("out", "4", {"--lr", "0.5"})), 1, {"lr: was 0.001, is 0.5"});
  EXPECT_EQ(tables("out"), before);
}

// Tasks may be asked for later; finished runs are then scored, but not trained again.
TEST_F(CompareCommand, GivesEachModelTheTasks) {
  static_cast<void>(run_well(command("out")));
  std::string lines;
  for (const int label : {0, 1, 0}) {  // so that no answer is right for all of them
    lines +=
        nlohmann::json{{"goal", "sweep"}, {"sol1", "a broom"}, {"sol2", "hot water"}, {"label", label}}.dump() + "\n";
  }
  write_file(folder_.file("piqa.jsonl"), lines);
  const Words tasks{"--tasks", "piqa", "--eval-data", folder_.path()};
  const RunResult scored = run_well(command("out", "4", tasks));
  EXPECT_TRUE(contains(scored.out, "q_delta seed 1: finished before")) << scored.out;
  EXPECT_TRUE(contains(scored.out, "piqa acc")) << scored.out;
  const auto table = [&] { return nlohmann::json::parse(read_file(folder_.file("out/table.json"))); };
  const nlohmann::json json = table();
  for (const auto& row : json["rows"]) {
    ASSERT_EQ(row["scores"]["piqa acc"]["values"].size(), 2) << row;
    EXPECT_TRUE(row["scores"].contains("validation_loss"));
    // The same as `qdelta eval` says of the model.
    const std::string model =
        folder_.file("out/runs/" + row["variant"].get<std::string>() + "/seed-1/checkpoints/step-00000004");
    static_cast<void>(run_well({"eval", "--model", model, "--tasks", "piqa", "--data", folder_.path(), "--threads", "1",
                                "--out", folder_.file("eval.json")}));
    const auto alone = nlohmann::json::parse(read_file(folder_.file("eval.json")));
    EXPECT_EQ(row["scores"]["piqa acc"]["values"][0], alone["results"]["piqa"]["acc"]);
  }
  const std::string before = tables("out");
  static_cast<void>(run_well(command("out", "4", tasks)));
  EXPECT_EQ(tables("out"), before);
  // Fewer examples are another question.
  static_cast<void>(run_well(command("out", "4", joined(tasks, {"--limit", "1"}))));
  EXPECT_NE(table()["rows"], json["rows"]);
  expect_failure(run_qdelta(command("out", "4", {"--tasks", "piqo"})), 1, {"no task 'piqo'"});
}

// Before hours of training, not after them.
TEST_F(CompareCommand, LooksForTheDataOfTasksFirst) {
  expect_failure(run_qdelta(command("out", "4", {"--tasks", "piqa", "--eval-data", folder_.path()})), 1, {"piqa"});
  EXPECT_FALSE(fs::exists(folder_.file("out/runs")));
  write_file(folder_.file("piqa.jsonl"), R"({"goal": "sweep"})");
  expect_failure(run_qdelta(command("out", "4", {"--tasks", "piqa", "--eval-data", folder_.path()})), 1,
                 {"piqa.jsonl", "label"});
  EXPECT_FALSE(fs::exists(folder_.file("out/runs")));
}

TEST_F(CompareCommand, OneAtATime) {
  fs::create_directories(folder_.file("out"));
  const FileDescriptor other = lock_folder(folder_.file("out"));
  expect_failure(run_qdelta(command("out")), 1, {"another process is at work in", "out"});
}

TEST_F(CompareCommand, ReadsTheFileThatTrainReads) {
  write_file(folder_.file("run.toml"), "rule = \"delta\"\nseed = 9\nsteps = 3\nhidden-size = 16\n");
  Words words = {"compare",
                 "--config",
                 folder_.file("run.toml"),
                 "--text",
                 folder_.file("text"),
                 "--out",
                 folder_.file("out"),
                 "--rules",
                 "linear",
                 "--seeds",
                 "1",
                 "--layers",
                 "1",
                 "--heads",
                 "1",
                 "--head-dim",
                 "8",
                 "--mlp-width",
                 "16",
                 "--seq-len",
                 "16",
                 "--rows",
                 "1",
                 "--warmup",
                 "1",
                 "--threads",
                 "1"};
  static_cast<void>(run_well(words));
  EXPECT_TRUE(fs::exists(folder_.file("out/runs/linear/seed-1/checkpoints/step-00000003/config.json")));
}

TEST_F(CompareCommand, SaysWhatIsWrong) {
  const auto fails = [&](const Words& more, const std::vector<std::string>& pieces) {
    expect_failure(run_qdelta(command("bad", "4", more)), 1, pieces);
  };
  fails({"--rules", "q_delta,transformer"}, {"'transformer' is no rule"});
  fails({"--seeds", "1,1"}, {"a seed twice"});
  expect_failure(run_qdelta(joined(command("bad"), {"--resume"})), 2, {"--resume"});
  fails({"--steps", "0"}, {"steps"});
  EXPECT_FALSE(fs::exists(folder_.file("bad")));
  expect_failure(run_qdelta({"compare", "--text", folder_.file("text")}), 1, {"--out is missing"});
}

TEST_F(CompareCommand, RecallCountsAccuracy) {
  static_cast<void>(run_well({"compare",
                              "--mqar",
                              "32:4:64",
                              "--vocab-size",
                              "64",
                              "--rules",
                              "delta,mamba2",
                              "--seeds",
                              "1",
                              "--hidden-size",
                              "16",
                              "--layers",
                              "1",
                              "--heads",
                              "1",
                              "--head-dim",
                              "8",
                              "--mlp",
                              "false",
                              "--rows",
                              "8",
                              "--steps",
                              "2",
                              "--warmup",
                              "1",
                              "--threads",
                              "1",
                              "--out",
                              folder_.file("recall")}));
  const auto json = nlohmann::json::parse(read_file(folder_.file("recall/table.json")));
  EXPECT_GE(json["rows"][0]["scores"]["accuracy"]["mean"], 0);
  EXPECT_TRUE(json["rows"][0]["scores"].contains("perplexity"));
}

}  // namespace
}  // namespace qdelta::testing
