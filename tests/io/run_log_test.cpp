// The log of a run: what is written is read back, and a resumed run leaves no step in it twice.
#include "io/run_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "io/io_testing.h"

namespace qdelta::testing {
namespace {

RunRecord record(std::int64_t step) {
  RunRecord r;
  r.step = step;
  r.tokens = step * 1000;
  r.loss = 10.0 / static_cast<double>(step);
  r.learning_rate = 1e-3;
  r.gradient_norm = 0.5;
  r.tokens_per_second = 12345.678;
  r.seconds = 0.1 * static_cast<double>(step);
  return r;
}

std::vector<std::int64_t> steps_of(const std::string& path) {
  std::vector<std::int64_t> steps;
  for (const RunRecord& r : read_run_log(path)) steps.push_back(r.step);
  return steps;
}

class RunLogTest : public ::testing::Test {
 protected:
  void write_steps(std::int64_t last) {
    RunLog log = RunLog::create(path_);
    for (std::int64_t step = 1; step <= last; ++step) log.append(record(step));
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.file(kRunLogName);
};
using Steps = std::vector<std::int64_t>;

TEST_F(RunLogTest, ARecordComesBackAsItWas) {
  RunRecord written = record(7);
  written.validation_loss = 1.0 / 3;
  written.skipped = 2;
  written.tokens = (std::int64_t{1} << 53) + 1;  // more than a double can tell apart
  written.extra = {{"mfu", 0.41}, {"a \"quoted\" name\n", -1e-300}};
  {
    RunLog log = RunLog::create(path_);
    log.append(written);
  }
  const std::vector<RunRecord> records = read_run_log(path_);
  ASSERT_EQ(records.size(), 1U);
  const RunRecord& read = records[0];
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.tokens, written.tokens);
  EXPECT_EQ(read.loss, written.loss);
  EXPECT_EQ(read.validation_loss, written.validation_loss);
  EXPECT_EQ(read.learning_rate, written.learning_rate);
  EXPECT_EQ(read.gradient_norm, written.gradient_norm);
  EXPECT_EQ(read.tokens_per_second, written.tokens_per_second);
  EXPECT_EQ(read.seconds, written.seconds);
  EXPECT_EQ(read.skipped, 2);
  EXPECT_EQ(read.extra, written.extra);
}

TEST_F(RunLogTest, ALineReadsAsDocumented) {
  RunLog log = RunLog::create(path_);
  RunRecord r = record(10);
  r.extra["mfu"] = 0.5;
  log.append(r);
  EXPECT_EQ(read_file(path_),
            "{\"step\":10,\"tokens\":10000,\"loss\":1.0,\"learning_rate\":0.001,\"gradient_norm\":0.5,"
            "\"tokens_per_second\":12345.678,\"seconds\":1.0,\"skipped\":0,\"mfu\":0.5}\n");
}

TEST_F(RunLogTest, EveryLineIsThereAtOnce) {
  RunLog log = RunLog::create(path_);
  for (std::int64_t step = 1; step <= 3; ++step) {
    log.append(record(step));
    EXPECT_EQ(steps_of(path_).size(), static_cast<std::size_t>(step));
  }
}

TEST_F(RunLogTest, NumbersThatAreNotFiniteBecomeNull) {
  RunLog log = RunLog::create(path_);
  RunRecord r = record(1);
  r.loss = std::nan("");
  r.gradient_norm = std::numeric_limits<double>::infinity();
  log.append(r);
  EXPECT_NE(read_file(path_).find("\"loss\":null"), std::string::npos);
  EXPECT_NE(read_file(path_).find("\"gradient_norm\":null"), std::string::npos);
  const RunRecord read = read_run_log(path_).at(0);
  EXPECT_TRUE(std::isnan(read.loss));
  EXPECT_TRUE(std::isnan(read.gradient_norm));
  EXPECT_FALSE(read.validation_loss.has_value());
}

TEST_F(RunLogTest, AResumedRunRepeatsNoStep) {
  write_steps(10);
  const std::string before = read_file(path_);
  {
    RunLog log = RunLog::resume(path_, 6);
    EXPECT_EQ(steps_of(path_), (Steps{1, 2, 3, 4, 5, 6}));
    log.append(record(7));
  }
  EXPECT_EQ(steps_of(path_), (Steps{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(before.starts_with(read_file(path_)));  // the kept lines are the same to the byte
  EXPECT_EQ(folder_.count(), 1);
}

TEST_F(RunLogTest, ResumingAtTheEndLeavesTheFileAlone) {
  write_steps(3);
  const auto inode = [&] {
    struct stat info {};
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return info.st_ino;
  };
  const auto before = inode();
  EXPECT_NO_THROW(static_cast<void>(RunLog::resume(path_, 3)));
  EXPECT_NO_THROW(static_cast<void>(RunLog::resume(path_, 99)));
  EXPECT_EQ(inode(), before);
}

TEST_F(RunLogTest, ResumingFromNothingMakesTheLog) {
  RunLog log = RunLog::resume(path_, 5);
  log.append(record(6));
  EXPECT_EQ(steps_of(path_), Steps{6});
  static_cast<void>(RunLog::resume(path_, 0));
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(RunLogTest, ATornLastLineIsLeftOutWhereverItWasCut) {
  write_steps(3);
  const std::string whole = read_file(path_);
  const std::size_t third = whole.find("{\"step\":3");
  for (std::size_t size = third; size + 1 < whole.size(); ++size) {
    write_file(path_, whole.substr(0, size));
    EXPECT_EQ(steps_of(path_), (Steps{1, 2})) << size;
    if (size % 16 != 0) continue;
    RunLog log = RunLog::resume(path_, 3);
    log.append(record(3));
    EXPECT_EQ(read_file(path_), whole);
  }
  write_file(path_, whole.substr(0, whole.size() - 1));  // only the newline is missing
  EXPECT_EQ(steps_of(path_), (Steps{1, 2, 3}));
  static_cast<void>(RunLog::resume(path_, 3));
  EXPECT_EQ(read_file(path_), whole);
}

TEST_F(RunLogTest, BlocksOfZerosThatAPowerCutLeftAtTheEndAreATornLine) {
  write_steps(2);
  write_file(path_, read_file(path_) + std::string(300, '\0'));
  EXPECT_EQ(steps_of(path_), (Steps{1, 2}));
}

TEST_F(RunLogTest, AnyOtherBadLineIsAnErrorThatNamesIt) {
  for (const char* bad : {"{\"step\":2", "[1]", "{\"loss\":1}", "{\"step\":1.5}", "{\"step\":null}", "{\"step\":\"2\"}",
                          "{\"step\":2,\"loss\":\"high\"}", "{\"step\":1e300}", "\xff"}) {
    write_file(path_, "{\"step\":1}\n" + std::string(bad) + "\n{\"step\":3}\n");
    expect_error(Status::corrupt, {"line 2", path_}, [&] { return read_run_log(path_); });
    expect_error(Status::corrupt, {"line 2", path_}, [&] { return RunLog::resume(path_, 1); });
  }
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  write_file(path_, "{\"step\":1, \"note\":" + deep + "}\n{\"step\":3}\n");
  expect_error(Status::corrupt, {"line 1", path_, "nested"}, [&] { return read_run_log(path_); });
}

TEST_F(RunLogTest, ADamagedLastLineIsRemovedWithAWord) {
  write_steps(3);
  const std::string whole = read_file(path_);
  std::string damaged = whole;
  damaged[whole.find("{\"step\":3")] ^= 1;
  write_file(path_, damaged);
  expect_error(Status::corrupt, {"line 3", path_}, [&] { return read_run_log(path_); });
  std::string said;
  RunLog log = RunLog::resume(path_, 2, [&](const std::string& text) { said += text; });
  EXPECT_NE(said.find("line 3 of the log " + path_), std::string::npos) << said;
  EXPECT_NE(said.find("removed"), std::string::npos) << said;
  log.append(record(3));
  log.sync();
  EXPECT_EQ(read_file(path_), whole);
  said.clear();
  static_cast<void>(RunLog::resume(path_, 3, [&](const std::string& text) { said += text; }));
  EXPECT_EQ(said, "");
}

TEST_F(RunLogTest, LogsOfOthersAreReadAsFarAsTheyGo) {
  write_file(path_, "{\"step\": 1000.0, \"loss\": 2, \"host\": \"a\", \"lr_group_1\": 0.5, \"bad\": null}\r\n\n  \n");
  const RunRecord read = read_run_log(path_).at(0);
  EXPECT_EQ(read.step, 1000);
  EXPECT_EQ(read.loss, 2);
  EXPECT_EQ(read.extra.at("lr_group_1"), 0.5);
  EXPECT_TRUE(std::isnan(read.extra.at("bad")));
  EXPECT_FALSE(read.extra.contains("host"));
}

TEST_F(RunLogTest, ANewRunDoesNotOverwriteAnOldOne) {
  write_steps(2);
  expect_error(Status::invalid_argument, {path_, "resume"}, [&] { return RunLog::create(path_); });
  EXPECT_EQ(steps_of(path_), (Steps{1, 2}));
}

TEST_F(RunLogTest, StepsMustRise) {
  write_steps(2);
  RunLog log = RunLog::resume(path_, 2);
  expect_error(Status::invalid_argument, {"step 2"}, [&] {
    log.append(record(2));
    return 0;
  });
  log.append(record(5));
  expect_error(Status::invalid_argument, {"step 4"}, [&] {
    log.append(record(4));
    return 0;
  });
  EXPECT_EQ(steps_of(path_), (Steps{1, 2, 5}));
}

TEST_F(RunLogTest, ExtraNumbersMayNotHideTheFixedOnes) {
  RunLog log = RunLog::create(path_);
  RunRecord r = record(1);
  r.extra["loss"] = 1;
  expect_error(Status::invalid_argument, {"'loss'"}, [&] {
    log.append(r);
    return 0;
  });
  r.extra = {{"\xff", 1}};
  expect_error(Status::invalid_argument, {"UTF-8"}, [&] {
    log.append(r);
    return 0;
  });
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(RunLogTest, AFullDiskLeavesWholeLines) {
  write_steps(2);
  const std::string before = read_file(path_);
  // The size limit of this process stands in for the disk: writes past it are cut short, then refused.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  RunLog log = RunLog::resume(path_, 2);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = old;
  tight.rlim_cur = before.size() + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  expect_error(Status::io, {path_}, [&] {
    log.append(record(3));
    return 0;
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(read_file(path_), before);
  log.append(record(3));
  EXPECT_EQ(steps_of(path_), (Steps{1, 2, 3}));
}

TEST_F(RunLogTest, MissingFilesAndFoldersAreNamed) {
  expect_error(Status::io, {path_}, [&] { return read_run_log(path_); });
  expect_error(Status::io, {"nowhere"}, [&] { return RunLog::create(folder_.file("nowhere/log.jsonl")); });
  expect_error(Status::io, {folder_.path()}, [&] { return read_run_log(folder_.path()); });
}

TEST(RunRecordValues, AreFoundByName) {
  RunRecord r = record(2);
  r.extra["mfu"] = 0.5;
  EXPECT_EQ(value_of(r, "step"), 2);
  EXPECT_EQ(value_of(r, "tokens"), 2000);
  EXPECT_EQ(value_of(r, "loss"), 5);
  EXPECT_EQ(value_of(r, "validation_loss"), std::nullopt);
  EXPECT_EQ(value_of(r, "learning_rate"), 1e-3);
  EXPECT_EQ(value_of(r, "gradient_norm"), 0.5);
  EXPECT_EQ(value_of(r, "seconds"), 0.2);
  EXPECT_EQ(value_of(r, "skipped"), 0);
  EXPECT_EQ(value_of(r, "mfu"), 0.5);
  EXPECT_EQ(value_of(r, "other"), std::nullopt);
  r.gradient_norm = std::nan("");
  EXPECT_EQ(value_names({r}), (std::vector<std::string>{"step", "tokens", "loss", "learning_rate", "tokens_per_second",
                                                        "seconds", "skipped", "mfu"}));
}

}  // namespace
}  // namespace qdelta::testing
