// Runs distributed_ranks under mpirun: its tests on 2, 3 and 4 ranks, and what happens when one of them fails.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "files.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

struct Outcome {
  int status = 0;
  std::string output;
  double seconds = 0;
};

Outcome run(const std::string& command) {
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::array<char, 4096> block{};
  for (std::size_t length = 0; (length = std::fread(block.data(), 1, block.size(), pipe)) > 0;) {
    outcome.output.append(block.data(), length);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

bool have_mpirun() { return run("command -v mpirun").status == 0; }
#define QDELTA_NEEDS_MPIRUN() \
  if (!have_mpirun()) GTEST_SKIP() << "there is no mpirun on this machine (Debian: openmpi-bin)"

// More ranks than cores, and as root, as in a container.
Outcome mpirun(int count, const std::string& arguments, int limit_s) {
  return run(fmt::format("timeout -k 5 {} mpirun --allow-run-as-root --oversubscribe --bind-to none -n {} {} {}",
                         limit_s, count, QDELTA_RANKS_BINARY, arguments));
}

class RanksUnderMpirun : public ::testing::TestWithParam<int> {};

TEST_P(RanksUnderMpirun, PassTheirTests) {
  QDELTA_NEEDS_MPIRUN();
  const Outcome outcome = mpirun(GetParam(), "--gtest_brief=1", 500);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find(fmt::format("{} ranks over MPI (Open MPI", GetParam())), std::string::npos)
      << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Counts, RanksUnderMpirun, ::testing::Values(2, 3, 4));

// The processes that a run said it was.
std::vector<pid_t> processes_in(const std::string& output) {
  std::vector<pid_t> found;
  const std::string word = "process ";
  for (std::size_t at = output.find(word); at != std::string::npos; at = output.find(word, at + 1)) {
    const int pid = std::atoi(output.c_str() + at + word.size());
    if (pid > 0) found.push_back(pid);
  }
  return found;
}

struct Failure {
  const char* how;
  const char* message;  // of ours; empty where it is mpirun's to say something
};

class RankThatFails : public ::testing::TestWithParam<Failure> {};

TEST_P(RankThatFails, EndsTheOthers) {
  QDELTA_NEEDS_MPIRUN();
  const Outcome outcome = mpirun(3, fmt::format("--fail {}", GetParam().how), 90);
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 60);
  EXPECT_NE(outcome.output.find(GetParam().message), std::string::npos) << outcome.output;
  const std::vector<pid_t> processes = processes_in(outcome.output);
  EXPECT_EQ(processes.size(), 3U) << outcome.output;
  for (const pid_t process : processes) {
    for (int i = 0; i < 300 && ::kill(process, 0) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(::kill(process, 0), -1) << "process " << process << " still runs";
  }
}

std::string failure_name(const ::testing::TestParamInfo<Failure>& failure) { return failure.param.how; }

INSTANTIATE_TEST_SUITE_P(Ways, RankThatFails,
                         ::testing::Values(Failure{"abort", "rank 1 of 3: the disk is full"},
                                           Failure{"throw_and_abort", "rank 1 of 3: the disk is full"},
                                           Failure{"throw", "rank 1 of 3: this rank ended because of an error"},
                                           Failure{"exit", "Exit code:    3"}, Failure{"kill", "rank 1 with PID"},
                                           Failure{"launcher", ""}),
                         failure_name);

TEST(Start, SaysWhichPackageIsMissing) {
  const TemporaryFolder folder;
  write_file(folder.file("libmpi.so.40"), "");  // found before the system's, and no library
  const Outcome outcome =
      run(fmt::format("LD_LIBRARY_PATH={} OMPI_COMM_WORLD_SIZE=2 {}", folder.path(), QDELTA_RANKS_BINARY));
  EXPECT_EQ(outcome.status, EXIT_FAILURE);
  EXPECT_NE(outcome.output.find("apt-get install openmpi-bin"), std::string::npos) << outcome.output;
}

TEST(Start, SaysThatTheLauncherIsAnothers) {
  QDELTA_NEEDS_MPIRUN();
  const Outcome outcome =
      run(fmt::format("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_COMM_WORLD_SIZE=2 timeout 60 {}",
                      QDELTA_RANKS_BINARY));
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.output.find("2 processes were started, but Open MPI"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace qdelta::testing
