// Runs of qdelta under mpirun.
#pragma once

#include <cmath>
#include <string>

#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {

class RanksTest : public ::testing::Test {
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
  // Numbers of two runs, to rounding: losses, and the weights at the end.
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
  // A run of which one rank is killed once there is a checkpoint: it ends soon, and names that rank.
  void expect_end_when_killed(int ranks, int killed, const Words& words) const {
    const std::string run = folder_.file("run");
    // Each rank leaves its process's number before it becomes the program.
    std::string command =
        fmt::format("echo $$ > {}-$OMPI_COMM_WORLD_RANK; exec {}", folder_.file("rank"), QDELTA_BINARY);
    for (const std::string& word :
         with(words, {"--steps", "1000000", "--save-every", "2", "--keep", "1", "--out", run})) {
      command += " " + word;
    }
    command = fmt::format("timeout -k 5 90 mpirun --allow-run-as-root --oversubscribe --bind-to none -n {} sh -c '{}'",
                          ranks, command);
    const std::string out = folder_.file("out");
    std::chrono::steady_clock::time_point start;
    std::thread killer([&] {
      if (!wait_until([&] { return newest_checkpoint(run).has_value(); })) return;
      const pid_t process = std::atoi(read_file(fmt::format("{}-{}", folder_.file("rank"), killed)).c_str());
      start = std::chrono::steady_clock::now();
      if (process > 1) ::kill(process, SIGKILL);
    });
    const int status = std::system((command + " > " + out + " 2>&1").c_str());
    killer.join();
    EXPECT_NE(status, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_TRUE(contains(read_file(out), fmt::format("rank {}", killed))) << read_file(out);
    const std::string checkpoint = newest_checkpoint(run).value();
    EXPECT_NO_THROW(static_cast<void>(load_model(checkpoint)));
    EXPECT_TRUE(std::filesystem::exists(checkpoint + "/optimizer.safetensors"));
  }

  TemporaryFolder folder_;
};

}  // namespace qdelta::testing
