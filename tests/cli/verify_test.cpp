// `qdelta verify`: what it checks, what it says, and its exit status.
#include <nlohmann/json.hpp>

#include <cmath>

#include "io/run_log.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class Verify : public ::testing::Test {
 protected:
  Verify() {
    write_file(folder_.file("text"), sample_text(4000));
    static_cast<void>(run_well(
        joined({"train", "--text", folder_.file("text"), "--out", run_, "--save-every", "2"}, tiny_training("4"))));
    static_cast<void>(
        run_well({"generate", "--model", checkpoint_, "--prompt", "The", "--max-tokens", "3", "--save-state", state_}));
  }
  static RunResult verify(const std::string& path) { return run_qdelta({"verify", path}); }
  // Changes one bit in the middle of a file, looks, and puts it back.
  void expect_seen(const std::string& path, const std::string& checked, const Words& pieces) const {
    const std::string good = read_file(path);
    std::string bad = good;
    bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] ^ 1);
    write_file(path, bad);
    const RunResult result = verify(checked);
    write_file(path, good);
    EXPECT_EQ(result.status, 1) << path << "\n" << result.out;
    EXPECT_TRUE(contains(result.out, "\ndamaged ") || result.out.starts_with("damaged ")) << result.out;
    for (const std::string& piece : pieces) EXPECT_TRUE(contains(result.out, piece)) << piece << "\n" << result.out;
  }

  TemporaryFolder folder_;
  std::string run_ = folder_.file("run");
  std::string checkpoint_ = run_ + "/checkpoints/step-00000004";
  std::string state_ = folder_.file("state.safetensors");
};

TEST_F(Verify, AWholeRunIsListedThingByThing) {
  const RunResult result = verify(run_);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  for (const char* piece : {"/run.toml: ", "/config.json: ", "checkpoints/step-00000002: weights, moments and state",
                            "checkpoints/step-00000004: ", "/log.jsonl: 4 steps",
                            "data/train/tokens-00000.qdt: ", "validation: ", "text: ", " checked, 0 damaged"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece << "\n" << result.out;
  }
  EXPECT_FALSE(contains(result.out, "no checksum")) << result.out;
  EXPECT_EQ(result.err, "");
}

TEST_F(Verify, DamageIsFoundWhereItIs) {
  expect_seen(checkpoint_ + "/model.safetensors", run_, {"damaged      checkpoint  " + checkpoint_, "checksum"});
  expect_seen(checkpoint_ + "/optimizer.safetensors", run_, {"optimizer.safetensors is damaged"});
  expect_seen(checkpoint_ + "/state.json", run_, {"state.json is damaged"});
  expect_seen(run_ + "/data/train/tokens-00000.qdt", run_, {"checksum of the tokens", "1 damaged"});
  expect_seen(checkpoint_ + "/model.safetensors", checkpoint_, {"damaged      model"});
  expect_seen(state_, state_, {"damaged      state"});
  expect_seen(state_, folder_.path(), {"damaged      state"});
  const std::string log = read_file(run_ + "/log.jsonl");
  write_file(run_ + "/log.jsonl", log.substr(0, log.find("{\"step\":2")) + log.substr(log.find("{\"step\":3")));
  EXPECT_TRUE(contains(verify(run_).out, "after step 1 comes step 3"));
  write_file(run_ + "/log.jsonl", log.substr(0, log.find("{\"step\":3")));
  EXPECT_TRUE(contains(verify(run_).out, "ends at step 2, but there is a checkpoint of step 4"));
  write_file(run_ + "/log.jsonl", log);
  EXPECT_EQ(verify(run_).status, 0);
}

TEST_F(Verify, WhatHasChangedSinceIsANote) {
  write_file(folder_.file("text"), "another");
  fs::rename(checkpoint_, checkpoint_ + ".damaged");
  const RunResult result = verify(run_);
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_TRUE(contains(result.out, "note         text        ")) << result.out;
  EXPECT_TRUE(contains(result.out, "step-00000004.damaged: no checkpoint")) << result.out;
  // Other shards than the run was started with, though whole, are no longer its data.
  fs::remove_all(run_ + "/data/train");
  fs::copy(run_ + "/data/validation", run_ + "/data/train", fs::copy_options::recursive);
  const RunResult other = verify(run_);
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(contains(other.out, "the run was started with")) << other.out;
}

TEST_F(Verify, FilesOfOthersHaveNoChecksum) {
  const RunResult result = verify(std::string(QDELTA_GOLDEN_DIR) + "/model/qdelta_tiny");
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(result.out.starts_with("no checksum  model ")) << result.out;
}

TEST_F(Verify, WhatCannotBeLookedAtDoesNotHideTheRest) {
  fs::create_symlink("circle", folder_.file("circle"));  // sorted before the rest
  const RunResult result = verify(folder_.path());
  EXPECT_EQ(result.status, 1) << result.out << result.err;
  const std::string seen = "damaged      other       " + folder_.file("circle");
  for (const std::string& piece : {seen, std::string("ok           state"), std::string(" 1 damaged")}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece << "\n" << result.out;
  }
  EXPECT_EQ(result.err, "");
  expect_failure(verify(folder_.file("circle")), 1, {folder_.file("circle") + ": "});
}

TEST_F(Verify, AsJson) {
  const RunResult result = run_qdelta({"verify", "--json", state_, checkpoint_});
  EXPECT_EQ(result.status, 0);
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report.at("damaged"), 0);
  EXPECT_EQ(report.at("checked"), report.at("findings").size());
  EXPECT_EQ(report.at("findings")[0].at("kind"), "state");
  EXPECT_EQ(report.at("findings")[0].at("path"), state_);
  EXPECT_EQ(report.at("findings")[1].at("result"), "ok");
}

TEST_F(Verify, WhereThereIsNothingToCheck) {
  expect_failure(verify(folder_.file("nowhere")), 1, {"nowhere", "no such file"});
  expect_failure(verify(folder_.file("text")), 1, {"nothing to check"});
  EXPECT_EQ(run_qdelta({"verify"}).status, 2);
}

// The newest checkpoint and the last line of the log are damaged: said, and the run ends as it would have.
TEST_F(Verify, ADamagedRunGoesOnFromTheCheckpointBefore) {
  const Numbers whole = numbers_of(run_);
  std::string weights = read_file(checkpoint_ + "/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_file(checkpoint_ + "/model.safetensors", weights);
  std::string log = read_file(run_ + "/log.jsonl");
  log[log.find("{\"step\":4")] = '[';
  write_file(run_ + "/log.jsonl", log);
  const RunResult result = run_well({"train", "--resume", run_});
  const std::string said = result.out + result.err;
  EXPECT_TRUE(contains(said, "step-00000004 is damaged")) << said;
  EXPECT_TRUE(contains(said, "goes on from step-00000002")) << said;
  EXPECT_TRUE(contains(said, "line 4 of the log")) << said;
  expect_same(numbers_of(run_), whole);
  EXPECT_EQ(verify(run_).status, 0);
}

// The same line where no step is left to train: it stands there with what is known.
TEST_F(Verify, TheDamagedLastLineOfAFinishedRunIsMended) {
  std::string log = read_file(run_ + "/log.jsonl");
  const std::size_t last = log.find("{\"step\":4");
  const std::vector<RunRecord> before = read_run_log(run_ + "/log.jsonl");
  log[last] = '[';
  write_file(run_ + "/log.jsonl", log);
  EXPECT_EQ(verify(run_).status, 1);
  const RunResult result = run_well({"train", "--resume", run_});
  EXPECT_TRUE(contains(result.out + result.err, "step 4 without its loss")) << result.out << result.err;
  EXPECT_EQ(read_file(run_ + "/log.jsonl").substr(0, last), log.substr(0, last));
  const std::vector<RunRecord> after = read_run_log(run_ + "/log.jsonl");
  ASSERT_EQ(after.size(), 4U);
  EXPECT_EQ(after[3].tokens, before[3].tokens);
  EXPECT_EQ(after[3].learning_rate, before[3].learning_rate);
  EXPECT_TRUE(std::isnan(after[3].loss));
  const RunResult seen = verify(run_);
  EXPECT_EQ(seen.status, 0) << seen.out;
  EXPECT_TRUE(contains(seen.out, "4 steps, 1 without a loss")) << seen.out;
  EXPECT_FALSE(contains(run_well({"train", "--resume", run_}).out, "without its loss"));
  static_cast<void>(run_well({"plot", run_, "--out", folder_.file("curve.svg")}));
}

// Shards that somebody shortens while they are read.
TEST_F(Verify, AShardThatIsShortenedWhileItIsReadIsNamed) {
  static_cast<void>(
      run_well({"tokenize", "--tokenizer", "bytes", "--out", folder_.file("tokens"), folder_.file("text")}));
  const std::string shard = folder_.file("tokens/tokens-00000.qdt");
  Program program(
      joined({"train", "--data", folder_.file("tokens"), "--out", folder_.file("short")}, tiny_training("20000")));
  ASSERT_TRUE(wait_until([&] { return lines_in(log_of(folder_.file("short"))) > 1; }));
  fs::resize_file(shard, 0);
  const RunResult result = program.wait_at_most(std::chrono::seconds(60));
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_TRUE(contains(result.err, "qdelta: " + shard + " cannot be read any more")) << result.err;
}

}  // namespace
}  // namespace qdelta::testing
