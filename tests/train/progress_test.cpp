// The live line: how it reads at any width, and what reaches a terminal, a pipe and a terminal that went away.
#include "train/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/file_descriptor.h"

namespace qdelta::testing {
namespace {

ProgressState state(std::int64_t step) {
  ProgressState s;
  s.name = "340M";
  s.step = step;
  s.total = 28'600;
  s.loss = 2.71298;
  s.validation_loss = 2.7451;
  s.learning_rate = 7.14e-4;
  s.gradient_norm = 0.3141;
  s.tokens_per_second = 812'345;
  s.fraction_of_limit = 0.41;
  s.seconds = 3600;
  return s;
}

TEST(ProgressText, Epochs) {
  ProgressState s = state(100);
  EXPECT_EQ(plain_progress_line(s).find("epoch"), std::string::npos);
  s.epoch = 1.254;
  EXPECT_NE(plain_progress_line(s).find("epoch 1.25  loss"), std::string::npos) << plain_progress_line(s);
}

TEST(ProgressText, Durations) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(185), "3m05s");
  EXPECT_EQ(duration_text(3600), "1h00m");
  EXPECT_EQ(duration_text(86'399), "23h59m");
  EXPECT_EQ(duration_text(3 * 86'400 + 4 * 3600), "3d04h");
  EXPECT_EQ(duration_text(1e12), ">30y");
  EXPECT_EQ(duration_text(std::nan("")), "?");
  EXPECT_EQ(duration_text(-1), "?");
}

TEST(ProgressText, Counts) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(812), "812");
  EXPECT_EQ(count_text(999.6), "1.00k");
  EXPECT_EQ(count_text(8123), "8.12k");
  EXPECT_EQ(count_text(81'234), "81.2k");
  EXPECT_EQ(count_text(812'345), "812k");
  EXPECT_EQ(count_text(999'600), "1.00M");
  EXPECT_EQ(count_text(1.3e9), "1.30B");
  EXPECT_EQ(count_text(1e18), "1000000T");
  EXPECT_EQ(count_text(std::nan("")), "nan");
}

TEST(ProgressText, TheTimeLeftComesFromThisSessionsSteps) {
  ProgressState s = state(7150);
  EXPECT_EQ(remaining_seconds(s), 3 * 3600);
  s.first_step = 7140;  // ten steps in an hour
  EXPECT_EQ(remaining_seconds(s), 3600.0 * 21'450 / 10);
  s.first_step = 7150;
  EXPECT_EQ(remaining_seconds(s), std::nullopt);
  s = state(28'600);
  EXPECT_EQ(remaining_seconds(s), 0);
}

TEST(ProgressText, AWideLineHasEverything) {
  EXPECT_EQ(
      progress_line(state(7150), 160, {}),
      "340M  ########------------------------   7150/28600   25%  loss 2.7130  val 2.7451  lr 7.14e-4  grad 0.314  "
      "812k tok/s  41% of limit  1h00m  3h00m left");
}

TEST(ProgressText, FitsEveryWidth) {
  const ProgressState s = state(7150);
  for (const bool color : {false, true}) {
    for (const bool unicode : {false, true}) {
      for (int columns = 1; columns <= 250; ++columns) {
        const std::string line = progress_line(s, columns, {color, unicode});
        EXPECT_LE(columns_of(line), std::max(columns - 3, 1)) << columns;
        EXPECT_EQ(line.find('\n'), std::string::npos);
      }
    }
  }
}

TEST(ProgressText, WhatMattersLeastGoesFirst) {
  const auto has = [&](int columns, const char* piece) {
    return progress_line(state(7150), columns, {}).find(piece) != std::string::npos;
  };
  const std::vector<const char*> by_importance = {"7150/28600", "loss", "left", "val"};
  int shown_before = 0;
  for (int columns = 12; columns < 160; ++columns) {
    int shown = 0;
    for (const char* piece : by_importance) {
      if (!has(columns, piece)) break;
      ++shown;
    }
    EXPECT_GE(shown, shown_before) << columns;
    shown_before = shown;
  }
  EXPECT_EQ(shown_before, 4);
  EXPECT_FALSE(has(100, "of limit"));
  EXPECT_TRUE(has(80, "##--"));
  EXPECT_FALSE(has(40, "#-"));
  EXPECT_TRUE(has(80, "loss 2.7130"));
  EXPECT_TRUE(has(80, "left"));
}

TEST(ProgressText, ColorsChangeNoColumn) {
  const ProgressState s = state(7150);
  for (const int columns : {40, 80, 120, 200}) {
    EXPECT_EQ(columns_of(progress_line(s, columns, {true, true})),
              columns_of(progress_line(s, columns, {false, false})));
  }
  EXPECT_EQ(progress_line(s, 100, {false, true}).find('\x1b'), std::string::npos);
  EXPECT_NE(progress_line(s, 100, {true, true}).find('\x1b'), std::string::npos);
}

TEST(ProgressText, LossesThatAreNotNumbersAreSaidPlainly) {
  ProgressState s = state(1);
  s.loss = std::nan("");
  s.gradient_norm = INFINITY;
  const std::string line = plain_progress_line(s);
  EXPECT_NE(line.find("loss nan"), std::string::npos);
  EXPECT_NE(line.find("grad inf"), std::string::npos);
}

TEST(ProgressText, OnlyTheEndIsAHundredPercent) {
  EXPECT_NE(plain_progress_line(state(28'599)).find(" 99%"), std::string::npos);
  EXPECT_NE(plain_progress_line(state(28'600)).find("100%"), std::string::npos);
}

TEST(ProgressText, WithoutATotalThereIsNeitherBarNorTimeLeft) {
  ProgressState s = state(7150);
  s.total = 0;
  EXPECT_EQ(progress_line(s, 160, {}).substr(0, 26), "340M  step 7150  loss 2.71");
  EXPECT_EQ(progress_line(s, 160, {}).find("left"), std::string::npos);
}

TEST(ProgressText, ColumnsOfTextWithSequences) {
  EXPECT_EQ(columns_of(""), 0);
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("━━"), 2);
  EXPECT_EQ(columns_of("\x1b[1;36ma\x1b[0m"), 1);
  EXPECT_EQ(columns_of("\x1b"), 0);
  EXPECT_EQ(columns_of("\x1b["), 0);
}

TEST(PlainPace, FirstLastValidatedAndSometimes) {
  PlainPace pace({.plain_interval = 10, .plain_every_steps = 0});
  ProgressState s = state(1);
  EXPECT_TRUE(pace.due(s, 0));
  EXPECT_FALSE(pace.due(s, 9));
  EXPECT_TRUE(pace.due(s, 10));
  s.validation_loss = 2;
  EXPECT_TRUE(pace.due(s, 11));
  EXPECT_FALSE(pace.due(s, 12));
  s.step = s.total;
  EXPECT_TRUE(pace.due(s, 13));

  PlainPace counted({.plain_interval = 1e9, .plain_every_steps = 5});
  std::vector<std::int64_t> printed;
  for (std::int64_t step = 1; step <= 12; ++step) {
    ProgressState each = state(step);
    each.total = 0;
    if (counted.due(each, static_cast<double>(step))) printed.push_back(step);
  }
  EXPECT_EQ(printed, (std::vector<std::int64_t>{1, 5, 10}));
}

// The environment as a test wants it, put back afterwards.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<std::string, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      before_.emplace_back(name, old == nullptr ? std::optional<std::string>() : old);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const char* value) {
    if (value == nullptr) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value, 1);
    }
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST(ProgressStyle, FollowsTheEnvironment) {
  {
    const Environment set{{"NO_COLOR", nullptr}, {"LC_ALL", "de_DE.UTF-8"}};
    EXPECT_TRUE(style_from_environment().color);
    EXPECT_TRUE(style_from_environment().unicode);
  }
  {
    const Environment set{{"NO_COLOR", "1"}, {"LC_ALL", "C"}};
    EXPECT_FALSE(style_from_environment().color);
    EXPECT_FALSE(style_from_environment().unicode);
  }
  {
    const Environment set{{"NO_COLOR", ""}, {"LC_ALL", ""}, {"LC_CTYPE", ""}, {"LANG", nullptr}};
    EXPECT_TRUE(style_from_environment().color);  // set but empty does not count
    EXPECT_TRUE(style_from_environment().unicode);
  }
}

// Both ends of a new terminal.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns) : ours_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    std::array<char, 128> name{};
    if (!ours_ || ::grantpt(ours_.get()) != 0 || ::unlockpt(ours_.get()) != 0 ||
        ::ptsname_r(ours_.get(), name.data(), name.size()) != 0) {
      throw std::runtime_error("no pseudo-terminal");
    }
    theirs_ = FileDescriptor(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (!theirs_) throw std::runtime_error("no pseudo-terminal");
    resize(columns);
    ::fcntl(ours_.get(), F_SETFL, O_NONBLOCK);
  }
  void resize(int columns) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 24;
    ASSERT_EQ(::ioctl(ours_.get(), TIOCSWINSZ, &size), 0);
  }
  void hang_up() { ours_.close(); }
  [[nodiscard]] int descriptor() const { return theirs_.get(); }
  // What was written since the last call.
  [[nodiscard]] std::string output() {
    std::string text;
    std::array<char, 4096> buffer{};
    for (ssize_t got = 0; (got = ::read(ours_.get(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  FileDescriptor ours_, theirs_;
};

class ProgressTerminal : public ::testing::Test {
 protected:
  const Environment environment_{{"TERM", "xterm"}, {"NO_COLOR", "1"}, {"LC_ALL", "C"}};
  PseudoTerminal terminal_{100};
  // Every update is drawn, so that a test need not wait.
  const ProgressOptions eager_{.terminal_interval = 0};
};

std::size_t count(const std::string& text, const std::string& piece) {
  std::size_t found = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size())) ++found;
  return found;
}

TEST_F(ProgressTerminal, RewritesOneLineAndLeavesTheCursorVisible) {
  {
    Progress progress(terminal_.descriptor(), eager_);
    progress.update(state(1));
    const std::string first = terminal_.output();
    EXPECT_EQ(first, "\x1b[?25l\r" + progress_line(state(1), 100, {}) + "\x1b[K\x1b[?25h");
    progress.update(state(2));
    EXPECT_EQ(count(terminal_.output(), "\n"), 0U);
  }
  EXPECT_EQ(terminal_.output(), "\x1b[?25l\r" + progress_line(state(2), 100, {}) + "\x1b[K\x1b[?25h\r\n");
}

TEST_F(ProgressTerminal, DrawsNoMoreOftenThanTheInterval) {
  Progress progress(terminal_.descriptor(), {.terminal_interval = 1000});
  for (std::int64_t step = 1; step <= 100; ++step) progress.update(state(step));
  EXPECT_EQ(count(terminal_.output(), "\r"), 1U);
  progress.finish();  // but the last state is seen
  EXPECT_NE(terminal_.output().find("100/28600"), std::string::npos);
}

TEST_F(ProgressTerminal, FollowsTheWidth) {
  Progress progress(terminal_.descriptor(), eager_);
  progress.update(state(1));
  const int before = columns_of(progress_line(state(1), 100, {}));
  static_cast<void>(terminal_.output());
  terminal_.resize(40);
  progress.update(state(2));
  // The terminal has broken the old line into pieces; the cursor was in the last.
  EXPECT_EQ(terminal_.output(), fmt::format("\x1b[?25l\r\x1b[{}A\x1b[J{}\x1b[K\x1b[?25h", (before - 1) / 40,
                                            progress_line(state(2), 40, {})));
  terminal_.resize(120);
  progress.update(state(3));
  EXPECT_EQ(terminal_.output(), "\x1b[?25l\r" + progress_line(state(3), 120, {}) + "\x1b[K\x1b[?25h");
}

TEST_F(ProgressTerminal, MessagesStayAboveTheLine) {
  Progress progress(terminal_.descriptor(), eager_);
  progress.message("before");
  EXPECT_EQ(terminal_.output(), "\r\x1b[Jbefore\r\n");
  progress.update(state(1));
  static_cast<void>(terminal_.output());
  progress.message("saved a checkpoint");
  EXPECT_EQ(terminal_.output(),
            "\r\x1b[Jsaved a checkpoint\r\n\x1b[?25l\r" + progress_line(state(1), 100, {}) + "\x1b[K\x1b[?25h");
}

TEST_F(ProgressTerminal, NamesCannotCarryEscapeSequences) {
  Progress progress(terminal_.descriptor(), eager_);
  ProgressState s = state(1);
  s.name = "a\x1b[31mb\n";
  progress.update(s);
  const std::string output = terminal_.output();
  EXPECT_EQ(output.find("\x1b[31m"), std::string::npos);
  EXPECT_EQ(count(output, "\n"), 0U);
}

TEST_F(ProgressTerminal, ATerminalThatWentAwayDoesNotEndTheRun) {
  Progress progress(terminal_.descriptor(), eager_);
  progress.update(state(1));
  terminal_.hang_up();
  for (std::int64_t step = 2; step < 5; ++step) progress.update(state(step));
  progress.message("still here");
}

TEST_F(ProgressTerminal, NothingIsDrawnWhereNothingHappened) {
  { const Progress progress(terminal_.descriptor()); }
  EXPECT_EQ(terminal_.output(), "");
}

TEST_F(ProgressTerminal, ADumbTerminalGetsPlainLines) {
  const Environment dumb{{"TERM", "dumb"}};
  Progress progress(terminal_.descriptor());
  progress.update(state(1));
  EXPECT_EQ(terminal_.output(), plain_progress_line(state(1)) + "\r\n");
}

TEST(ProgressPipe, GetsPlainLinesWithoutSequences) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  {
    Progress progress(to.get(), {.plain_interval = 1e9, .plain_every_steps = 10});
    progress.message("hello");
    for (std::int64_t step = 1; step <= 15; ++step) progress.update(state(step));
  }
  to.close();
  std::array<char, 4096> buffer{};
  const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
  ASSERT_GT(got, 0);
  std::string expected = "hello\n";
  for (const std::int64_t step : {1, 10, 15}) expected += plain_progress_line(state(step)) + "\n";
  EXPECT_EQ(std::string(buffer.data(), static_cast<std::size_t>(got)), expected);
}

}  // namespace
}  // namespace qdelta::testing
