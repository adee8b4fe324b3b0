// --model may name a run: its newest checkpoint is taken, by every subcommand that takes a model, and each says which.
#include <nlohmann/json.hpp>

#include "training_testing.h"

namespace qdelta::testing {
namespace {

class ModelFolder : public ::testing::Test {
 protected:
  ModelFolder() : run_(folder_.file("run")), newest_(run_ + "/checkpoints/step-00000006") {
    write_file(folder_.file("text"), sample_text(3000));
    static_cast<void>(run_well(
        joined({"train", "--text", folder_.file("text"), "--out", run_, "--save-every", "3"}, tiny_training("6"))));
  }
  // The same results with the name of the run as with that of its newest checkpoint.
  void expect_newest(const Words& command) const {
    const auto with_model = [&](const std::string& model) {
      return run_well(joined(command, {"--model", model, "--threads", "1"}));
    };
    const RunResult of_run = with_model(run_);
    const RunResult of_checkpoint = with_model(newest_);
    EXPECT_EQ(of_run.out, of_checkpoint.out) << command.front();
    EXPECT_TRUE(contains(of_run.err, run_ + " is a run; its newest checkpoint is " + newest_)) << of_run.err;
    EXPECT_FALSE(contains(of_checkpoint.err, "is a run")) << of_checkpoint.err;
  }

  TemporaryFolder folder_;
  std::string run_, newest_;
};

TEST_F(ModelFolder, MayBeARun) {
  expect_newest({"generate", "--prompt", "The river", "--max-tokens", "8", "--temperature", "0"});
  expect_newest({"perplexity", "--data", folder_.file("text")});
  write_file(folder_.file("piqa.jsonl"), R"({"goal": "sweep", "sol1": "a broom", "sol2": "hot water", "label": 0})");
  expect_newest({"eval", "--tasks", "piqa", "--data", folder_.path(), "--bootstrap", "0"});
  const RunResult info = run_well({"info", "--model", run_});
  EXPECT_TRUE(contains(info.err, newest_)) << info.err;
  EXPECT_EQ(info.out, run_well({"info", "--model", newest_}).out);
}

TEST_F(ModelFolder, OfARunIsWhatAnotherStartsFrom) {
  const Words more =
      joined({"train", "--text", folder_.file("text"), "--init-from", run_, "--out", folder_.file("next")},
             {"--seq-len", "32", "--rows", "2", "--threads", "1", "--steps", "1"});
  const RunResult result = run_well(more);
  EXPECT_TRUE(contains(result.out, "Starts from the weights of " + newest_)) << result.out;
}

TEST_F(ModelFolder, WithoutACheckpointSaysWhatIsMissing) {
  std::filesystem::remove_all(run_ + "/checkpoints");
  expect_failure(run_qdelta({"generate", "--model", run_, "--prompt", "x"}), 1, {run_, "model.safetensors"});
}

}  // namespace
}  // namespace qdelta::testing
