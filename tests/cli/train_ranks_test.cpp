// qdelta train under mpirun: the numbers of one process, whatever the number of ranks, and what happens when one fails.
#include <cmath>

#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class TrainRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null") != 0) {
      GTEST_SKIP() << "there is no mpirun on this machine (Debian: openmpi-bin)";
    }
    write_file(folder_.file("text"), sample_text(8000));
  }
  [[nodiscard]] Words settings(const std::string& rows) const {
    return joined({"train", "--text", folder_.file("text"), "--seq-len", "32", "--rows", rows, "--warmup", "2",
                   "--threads", "1", "--eval-every", "3", "--steps", "6", "--ema", "0.8"},
                  tiny_model());
  }
  // On the standard output and error streams together.
  [[nodiscard]] RunResult mpirun(int ranks, const Words& words) const {
    std::string command =
        fmt::format("TERM=dumb timeout -k 5 90 mpirun --allow-run-as-root --oversubscribe --bind-to none -n {} {}",
                    ranks, QDELTA_BINARY);
    for (const std::string& word : words) command += " '" + word + "'";
    const std::string out = folder_.file("mpirun-output");
    const int status = std::system((command + " > " + out + " 2>&1").c_str());
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128, .out = read_file(out), .err = ""};
  }
  void run_ranks(int ranks, const Words& words) const {
    const RunResult result = mpirun(ranks, words);
    EXPECT_EQ(result.status, 0) << result.out;
  }
  // Losses, and the weights at the end.
  void expect_alike(const std::string& one, const std::string& other) const {
    const auto a = read_run_log(log_of(folder_.file(one)));
    const auto b = read_run_log(log_of(folder_.file(other)));
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i].loss, b[i].loss, 2e-6 * a[i].loss) << "step " << i + 1;
      EXPECT_NEAR(a[i].validation_loss.value_or(0), b[i].validation_loss.value_or(0), 1e-5);
      EXPECT_EQ(a[i].tokens, b[i].tokens);
      EXPECT_NEAR(value_of(a[i], "validation_ema_loss").value_or(0), value_of(b[i], "validation_ema_loss").value_or(0),
                  1e-5);
    }
    for (const char* of : {"", "/ema"}) {  // the weights and their average
      const auto first = load_model(newest_checkpoint(folder_.file(one)).value() + of);
      const auto second = load_model(newest_checkpoint(folder_.file(other)).value() + of);
      ASSERT_EQ(first->parameters().size(), second->parameters().size());
      double largest = 0;
      for (std::size_t i = 0; i < first->parameters().size(); ++i) {
        largest = std::max(largest, std::abs(double{first->parameters()[i]} - double{second->parameters()[i]}));
      }
      // Adam's first updates are signs: where a gradient is about zero, rounding can turn one around.
      EXPECT_LT(largest, 2e-3) << of;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(TrainRanks, GiveTheNumbersOfOneProcess) {
  static_cast<void>(run_well(joined(settings("12"), {"--out", folder_.file("one")})));
  for (const int ranks : {2, 3, 4}) {
    const std::string name = fmt::format("of{}", ranks);
    run_ranks(ranks, joined(settings(fmt::format("{}", 12 / ranks)), {"--out", folder_.file(name)}));
    expect_alike("one", name);
  }
}

// Seven rows on three ranks, and tokens of an update instead of rows of a rank.
TEST_F(TrainRanks, RowsNeedNotDivide) {
  static_cast<void>(run_well(joined(settings("7"), {"--out", folder_.file("one")})));
  for (const int ranks : {1, 3}) {
    const std::string name = fmt::format("of{}", ranks);
    run_ranks(ranks, joined(settings("2"), {"--batch-tokens", "224", "--out", folder_.file(name)}));
    expect_alike("one", name);
  }
}

TEST_F(TrainRanks, TheSameRanksGiveTheSameBits) {
  for (const char* name : {"a", "b"}) run_ranks(3, joined(settings("2"), {"--out", folder_.file(name)}));
  expect_same(numbers_of(folder_.file("b")), numbers_of(folder_.file("a")));
}

// One layout of checkpoints, whoever wrote them.
TEST_F(TrainRanks, ARunMayBeResumedOnAnotherNumber) {
  static_cast<void>(run_well(joined(settings("6"), {"--out", folder_.file("one")})));
  run_ranks(3, joined(settings("2"), {"--out", folder_.file("run")}));
  fs::remove_all(folder_.file("run/checkpoints/step-00000006"));
  run_ranks(2, {"train", "--resume", folder_.file("run")});
  expect_alike("one", "run");
  fs::remove_all(folder_.file("run/checkpoints/step-00000006"));
  if (newest_checkpoint(folder_.file("run"))) {
    static_cast<void>(run_well({"train", "--resume", folder_.file("run")}));
    expect_alike("one", "run");
  }
  const RunResult other = mpirun(2, {"train", "--resume", folder_.file("run"), "--rows", "2"});
  EXPECT_NE(other.status, 0);
  EXPECT_TRUE(contains(other.out, "--rows is 2 on 2 processes, but was 2 on 3")) << other.out;
}

TEST_F(TrainRanks, OnlyTheFirstSpeaks) {
  const RunResult result = mpirun(3, joined(settings("2"), {"--out", folder_.file("run")}));
  EXPECT_EQ(result.status, 0) << result.out;
  for (const char* once : {"3 ranks over MPI", "Finished at step 6", "parameters, Q-Delta"}) {
    const std::size_t at = result.out.find(once);
    EXPECT_NE(at, std::string::npos) << once << " in " << result.out;
    EXPECT_EQ(result.out.find(once, at + 1), std::string::npos) << once << " in " << result.out;
  }
  EXPECT_TRUE(contains(result.out, "on each of 3 ranks")) << result.out;
  const RunResult wrong = mpirun(3, {"train", "--text", folder_.file("missing"), "--out", folder_.file("bad")});
  EXPECT_NE(wrong.status, 0);
  EXPECT_TRUE(contains(wrong.out, "rank 0 of 3: cannot read " + folder_.file("missing"))) << wrong.out;
  EXPECT_FALSE(contains(wrong.out, "rank 1 of 3")) << wrong.out;
}

TEST_F(TrainRanks, OneThatIsKilledEndsTheRunAndTheLastCheckpointIsWhole) {
  const std::string run = folder_.file("run");
  const Words words = with(settings("2"), {"--steps", "1000000", "--save-every", "2", "--keep", "1", "--out", run});
  // Each rank leaves its process's number before it becomes the program.
  std::string command = fmt::format("echo $$ > {}-$OMPI_COMM_WORLD_RANK; exec {}", folder_.file("rank"), QDELTA_BINARY);
  for (const std::string& word : words) command += " " + word;
  command =
      fmt::format("timeout -k 5 90 mpirun --allow-run-as-root --oversubscribe --bind-to none -n 3 sh -c '{}'", command);
  const std::string out = folder_.file("out");
  std::thread killer([&] {
    if (!wait_until([&] { return newest_checkpoint(run).has_value(); })) return;
    const pid_t process = std::atoi(read_file(folder_.file("rank-2")).c_str());
    if (process > 1) ::kill(process, SIGKILL);
  });
  const auto start = std::chrono::steady_clock::now();
  const int status = std::system((command + " > " + out + " 2>&1").c_str());
  killer.join();
  EXPECT_NE(status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(80));
  EXPECT_TRUE(contains(read_file(out), "rank 2")) << read_file(out);
  const std::string checkpoint = newest_checkpoint(run).value();
  EXPECT_NO_THROW(static_cast<void>(load_model(checkpoint)));
  EXPECT_TRUE(fs::exists(checkpoint + "/optimizer.safetensors"));
}

}  // namespace
}  // namespace qdelta::testing
