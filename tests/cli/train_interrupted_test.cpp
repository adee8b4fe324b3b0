// `qdelta train` that is stopped, killed, or runs out of disk: what it leaves is whole, and goes on exactly.
#include <nlohmann/json.hpp>

#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class TrainInterrupted : public ::testing::Test {
 protected:
  TrainInterrupted() { write_file(folder_.file("text"), sample_text(6000)); }

  [[nodiscard]] Words command(const std::string& name, const std::string& steps, const Words& more = {}) const {
    return joined(joined({"train", "--text", folder_.file("text"), "--out", folder_.file(name)}, tiny_training(steps)),
                  more);
  }
  // Every checkpoint that has its final name can be loaded, and the newest leads on from where the log was cut.
  static void expect_whole(const std::string& run) {
    if (!fs::exists(run + "/checkpoints")) return;
    for (const auto& entry : fs::directory_iterator(run + "/checkpoints")) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".unfinished")) continue;
      const auto model = load_model(entry.path());
      OptimizerState optimizer(model->layout().size);
      const TrainingState state = load_checkpoint(entry.path(), *model, optimizer);
      EXPECT_EQ(name, fmt::format("step-{:08}", state.step));
      EXPECT_GT(read_run_log(log_of(run)).back().step + 1, state.step);
    }
  }
  void expect_same_run(const std::string& name) const {
    expect_same(numbers_of(folder_.file(name)), numbers_of(folder_.file("whole")));
  }

  TemporaryFolder folder_;
};

TEST_F(TrainInterrupted, KilledAtAnyMomentItGoesOnExactly) {
  const Words often{"--save-every", "1", "--eval-every", "7"};
  const std::string steps = "40";
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(run_well(command("whole", steps, often)));
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  const std::string run = folder_.file("killed");
  Random random(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  int killed = 0;
  bool first_written = false;
  for (int attempt = 0; attempt < (quick() ? 4 : 12); ++attempt) {
    Program program(command("killed", steps, joined(often, {"--resume"})));
    std::this_thread::sleep_for(whole * uniform(random, 0, 0.5));
    program.send(SIGKILL);
    const RunResult result = program.wait();
    const bool in_time = result.status == 128 + SIGKILL;
    EXPECT_TRUE(in_time || result.status == 0) << result.err;
    killed += in_time ? 1 : 0;
    expect_whole(run);
    const bool there = newest_checkpoint(run).has_value();
    EXPECT_TRUE(there || !first_written) << "the checkpoint is gone";
    first_written = there;
  }
  EXPECT_GT(killed, 0);
  static_cast<void>(run_well(command("killed", steps, joined(often, {"--resume"}))));
  expect_same_run("killed");
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints")) {
    EXPECT_FALSE(entry.path().string().ends_with(".unfinished")) << entry.path();
  }
}

TEST_F(TrainInterrupted, CtrlCFinishesTheStepSavesAndSaysHowToGoOn) {
  const std::string steps = quick() ? "150" : "600";
  const std::string run = folder_.file("stopped");
  static_cast<void>(run_well(command("whole", steps, {"--eval-every", "0"})));
  std::size_t lines = 0;
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program(command("stopped", steps, {"--eval-every", "0", "--resume"}));
    ASSERT_TRUE(wait_until([&] { return lines_in(log_of(run)) > lines + 3; }));
    program.send(signal);
    const RunResult result = program.wait();
    EXPECT_EQ(result.status, 130) << result.err;
    EXPECT_EQ(result.err, "");
    lines = lines_in(log_of(run));
    const std::string newest = newest_checkpoint(run).value();
    EXPECT_EQ(newest, fmt::format("{}/checkpoints/step-{:08}", run, lines));
    EXPECT_TRUE(contains(result.out, fmt::format("Stopped after step {} of {}", lines, steps))) << result.out;
    EXPECT_TRUE(contains(result.out, newest)) << result.out;
    EXPECT_TRUE(contains(result.out, "--resume")) << result.out;
    EXPECT_TRUE(fs::exists(run + "/loss.svg"));
    expect_whole(run);
  }
  const RunResult result = run_well(command("stopped", steps, {"--eval-every", "0", "--resume"}));
  EXPECT_TRUE(contains(result.out, fmt::format("Resumed {} at step {}", run, lines))) << result.out;
  EXPECT_TRUE(contains(result.out, "Finished at step " + steps)) << result.out;
  expect_same_run("stopped");
}

// As with `qdelta train ... | head -n 1`. What could not be shown is not passed over in silence either.
TEST_F(TrainInterrupted, ADisplayThatGoesAwayDoesNotEndTheRun) {
  std::string line = QDELTA_BINARY;
  for (const std::string& word : command("run", "40", {"--eval-every", "1"})) line += " '" + word + "'";
  std::FILE* const display = ::popen((line + " 2> " + folder_.file("errors")).c_str(), "r");
  ASSERT_NE(display, nullptr);
  EXPECT_NE(std::fgetc(display), EOF);
  const int status = ::pclose(display);  // shuts the pipe, and waits
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_TRUE(contains(read_file(folder_.file("errors")), "cannot write the output"));
  EXPECT_TRUE(fs::exists(folder_.file("run/checkpoints/step-00000040")));
}

TEST_F(TrainInterrupted, CtrlCEndsTheDemoAsItDoesARun) {
  const std::string out = folder_.file("demo");
  Program program({"demo", "--steps", "100000", "--out", out});
  ASSERT_TRUE(wait_until([&] { return lines_in(log_of(out + "/q_delta-1")) > 0; }));
  program.send(SIGINT);
  const RunResult result = program.wait();
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(contains(result.out, "Stopped; what was trained so far is in " + out)) << result.out;
}

// As timeout(1) does it: to the program, and then to the group that it is in.
TEST_F(TrainInterrupted, TheSameSignalTwiceInARowIsOneWish) {
  // A step takes longer than what lies between the two.
  const Words longer{"--rows", "8", "--seq-len", "256", "--hidden-size", "128", "--eval-every", "0"};
  const std::string run = folder_.file("stopped");
  Program program(with(command("stopped", "2000"), longer));
  ASSERT_TRUE(wait_until([&] { return lines_in(log_of(run)) > 0; }));
  for (int i = 0; i < 3; ++i) {
    program.send(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // else they may be taken as one
  }
  EXPECT_EQ(program.wait_at_most(std::chrono::seconds(60)).status, 130);
  const std::optional<std::string> newest = newest_checkpoint(run);
  ASSERT_TRUE(newest.has_value()) << "the work is lost";
  EXPECT_EQ(*newest, fmt::format("{}/checkpoints/step-{:08}", run, lines_in(log_of(run))));
}

TEST_F(TrainInterrupted, ASecondCtrlCEndsItAtOnce) {
  // Steps so long that the first one is still being waited for.
  Words words{"train", "--text", folder_.file("text"), "--out", folder_.file("run"), "--steps", "50", "--warmup", "0"};
  words = joined(words, {"--rows", "32", "--seq-len", "1024", "--hidden-size", "256", "--threads", "1"});
  Program program(words);
  ASSERT_TRUE(wait_until([&] { return fs::exists(log_of(folder_.file("run"))); }));
  program.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  program.send(SIGINT);
  EXPECT_EQ(program.wait_at_most(std::chrono::seconds(30)).status, 128 + SIGINT);
  EXPECT_EQ(newest_checkpoint(folder_.file("run")), std::nullopt) << "it waited for the step";
}

TEST_F(TrainInterrupted, WithoutResumeAnExistingRunIsNotTouched) {
  static_cast<void>(run_well(command("whole", "3")));
  const Numbers before = numbers_of(folder_.file("whole"));
  const std::string data = read_file(folder_.file("whole/data/train/tokens-00000.qdt"));
  write_file(folder_.file("text"), sample_text(6000, 2));
  expect_failure(run_qdelta(command("whole", "3")), 1, {folder_.file("whole"), "step-00000003", "--resume"});
  expect_same(numbers_of(folder_.file("whole")), before);
  EXPECT_TRUE(read_file(folder_.file("whole/data/train/tokens-00000.qdt")) == data) << "its data was replaced";
}

TEST_F(TrainInterrupted, AFinishedRunThatIsResumedSaysSo) {
  static_cast<void>(run_well(command("whole", "3")));
  const RunResult result = run_well(command("whole", "3", {"--resume"}));
  EXPECT_TRUE(contains(result.out, "Finished at step 3\n")) << result.out;
  EXPECT_TRUE(contains(result.out, "checkpoints/step-00000003")) << result.out;
}

TEST_F(TrainInterrupted, AResumedRunMustHaveTheSameSettings) {
  static_cast<void>(run_well(command("whole", "3")));
  for (const Words& other : std::vector<Words>{{"--lr", "0.5"},
                                               {"--rows", "3"},
                                               {"--seed", "9"},
                                               {"--accumulate", "2"},
                                               {"--seq-len", "31"},
                                               {"--beta1", "0.5"},
                                               {"--clip", "2"}}) {
    // The last of two flags would do; the parser takes each once.
    Words words = command("whole", "3", {"--resume"});
    if (const auto at = std::ranges::find(words, other[0]); at != words.end()) {
      *(at + 1) = other[1];
    } else {
      words = joined(words, other);
    }
    const RunResult result = run_qdelta(words);
    EXPECT_EQ(result.status, 1) << other[0];
    EXPECT_TRUE(contains(result.err, "other settings")) << other[0] << ": " << result.err;
  }
  Words words = command("whole", "3", {"--resume", "--gate", "false"});
  EXPECT_TRUE(contains(run_qdelta(words).err, "another model"));
}

// Which token ends a text is not what a model is: earlier versions wrote other ids.
TEST_F(TrainInterrupted, AResumedRunMayNameOtherSpecialTokens) {
  static_cast<void>(run_well(command("whole", "4")));
  static_cast<void>(run_well(command("older", "4", {"--save-every", "2"})));
  fs::remove_all(folder_.file("older/checkpoints/step-00000004"));
  const std::string path = folder_.file("older/checkpoints/step-00000002/config.json");
  nlohmann::json config = nlohmann::json::parse(read_file(path));
  config["eos_token_id"] = 2;
  config.erase("bos_token_id");
  write_file(path, config.dump());
  static_cast<void>(run_well(command("older", "4", {"--resume"})));
  expect_same_run("older");
  config = nlohmann::json::parse(read_file(folder_.file("older/checkpoints/step-00000004/config.json")));
  EXPECT_EQ(config.at("eos_token_id"), 257);
}

TEST_F(TrainInterrupted, AFullDiskLeavesTheLastCheckpointAndItGoesOn) {
  const std::string run = folder_.file("full");
  static_cast<void>(run_well(command("whole", "8", {"--save-every", "2"})));
  static_cast<void>(run_well(command("full", "8", {"--save-every", "2"})));
  fs::remove_all(run + "/checkpoints/step-00000008");
  const std::string last = newest_checkpoint(run).value();
  EXPECT_TRUE(last.ends_with("step-00000006"));
  const std::string weights = read_file(last + "/model.safetensors");
  ASSERT_GT(weights.size(), 50'000U);

  // The weights do not fit any more; everything else does.
  const RunResult result =
      run_with_file_limit(command("full", "8", {"--save-every", "2", "--resume"}), weights.size() - 1000);
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
  EXPECT_TRUE(contains(result.err, "model.safetensors") && contains(result.err, "File too large")) << result.err;
  EXPECT_EQ(newest_checkpoint(run), last);
  EXPECT_TRUE(read_file(last + "/model.safetensors") == weights);
  expect_whole(run);
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints")) {
    EXPECT_FALSE(entry.path().string().ends_with(".unfinished")) << "it keeps the space";
  }
  static_cast<void>(run_well(command("full", "8", {"--save-every", "2", "--resume"})));
  expect_same_run("full");
}

TEST_F(TrainInterrupted, AFullDiskBeforeTheFirstStep) {
  const RunResult shards = run_with_file_limit(command("none", "3"), 1000);
  expect_failure(shards, 1, {"none/data", "File too large"});
  EXPECT_EQ(newest_checkpoint(folder_.file("none")), std::nullopt);
  static_cast<void>(run_well(command("none", "3", {"--resume"})));  // nothing is in its way
  static_cast<void>(run_well(command("whole", "3")));
  expect_same_run("none");
}

TEST_F(TrainInterrupted, OutputThatCannotBeShownIsAFailureButTheRunIsThere) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const RunResult result = run_qdelta(command("whole", "3"), "/dev/full");
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.err, "cannot write the output")) << result.err;
  EXPECT_EQ(numbers_of(folder_.file("whole")).log.size(), 3U);
}

TEST_F(TrainInterrupted, FoldersThatAreFilesAreNamed) {
  write_file(folder_.file("file"), "");
  expect_failure(run_qdelta(command("file", "3")), 1, {folder_.file("file")});
  expect_failure(run_qdelta(command("file/run", "3")), 1, {folder_.file("file")});
  fs::create_directories(folder_.file("run"));
  write_file(folder_.file("run/checkpoints"), "");
  const RunResult result = run_qdelta(command("run", "3"));
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.err, folder_.file("run/checkpoints"))) << result.err;
  fs::create_directories(folder_.file("log/log.jsonl"));
  const RunResult log = run_qdelta(command("log", "3"));
  EXPECT_EQ(log.status, 1);
  EXPECT_TRUE(contains(log.err, folder_.file("log/log.jsonl"))) << log.err;
}

// A run that was killed while it wrote the text's shards has some of them.
TEST_F(TrainInterrupted, HalfOfTheDataIsMadeAgain) {
  static_cast<void>(run_well(command("whole", "3")));
  fs::create_directories(folder_.file("half"));
  fs::copy(folder_.file("whole/data"), folder_.file("half/data"), fs::copy_options::recursive);
  fs::remove(folder_.file("half/data/validation/shards.json"));
  static_cast<void>(run_well(command("half", "3", {"--resume"})));
  expect_same_run("half");
}

}  // namespace
}  // namespace qdelta::testing
