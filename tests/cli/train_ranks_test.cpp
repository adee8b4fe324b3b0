// qdelta train under mpirun: the numbers of one process, whatever the number of ranks, and what happens when one fails.
#include "ranks_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class TrainRanks : public RanksTest {};

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
  EXPECT_TRUE(contains(wrong.out, "rank 0 of 3: cannot open " + folder_.file("missing"))) << wrong.out;
  EXPECT_FALSE(contains(wrong.out, "rank 1 of 3")) << wrong.out;
}

TEST_F(TrainRanks, OneThatIsKilledEndsTheRunAndTheLastCheckpointIsWhole) {
  expect_end_when_killed(3, 2, settings("2"));
}

}  // namespace
}  // namespace qdelta::testing
