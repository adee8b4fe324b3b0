// `qdelta plot`, as users call it.
#include <algorithm>
#include <filesystem>

#include "cli/cli_testing.h"
#include "io/run_log.h"
#include "plot/png.h"
#include "plot_testing.h"

namespace qdelta::testing {
namespace {

class PlotCommand : public ::testing::Test {
 protected:
  PlotCommand() {
    for (const char* name : {"first", "second"}) {
      std::filesystem::create_directories(folder_.file(name));
      RunLog log = RunLog::create(folder_.file(name) + "/" + kRunLogName);
      for (int step = 1; step <= 200; ++step) {
        RunRecord record;
        record.step = step;
        record.tokens = step * 1000;
        record.loss = 10.0 / step;
        record.seconds = step;
        log.append(record);
      }
    }
  }

  TemporaryFolder folder_;
};

TEST_F(PlotCommand, WritesAFigure) {
  const RunResult result = run_qdelta({"plot", folder_.file("first"), folder_.file("second"), "--out",
                                       folder_.file("loss.svg"), "--smooth", "0.9", "--log-y", "--x", "step"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "wrote " + folder_.file("loss.svg") + "\n");
  const std::string drawing = read_file(folder_.file("loss.svg"));
  plot::testing::expect_tidy(drawing);
  for (const char* text : {">first<", ">second<", ">step<", ">training loss<"}) {
    EXPECT_NE(drawing.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"first", "loss.svg", "second"}));
}

TEST_F(PlotCommand, TheEndingOfTheNameSaysWhatIsWritten) {
  const auto drawn = [&](const std::string& name) {
    return run_qdelta({"plot", folder_.file("first"), folder_.file("second"), "--out", folder_.file(name)});
  };
  EXPECT_EQ(drawn("capital.SVG").status, 0);
  EXPECT_TRUE(read_file(folder_.file("capital.SVG")).starts_with("<"));
  for (const char* name : {"both.jpg", "both", ".png", "both.png.gz"}) {
    expect_failure(drawn(name), 1, {"--out", name, ".svg or .png"});
    EXPECT_FALSE(std::filesystem::exists(folder_.file(name)));
  }
  for (const char* name : {"both.png", "capital.PNG"}) {
    if (plot::can_write_png()) {
      EXPECT_EQ(drawn(name).out, "wrote " + folder_.file(name) + "\n");
      EXPECT_TRUE(read_file(folder_.file(name)).starts_with("\x89PNG\r\n"));
    } else {
      expect_failure(drawn(name), 1, {name, "librsvg"});
      EXPECT_FALSE(std::filesystem::exists(folder_.file(name)));
    }
  }
}

TEST_F(PlotCommand, ShowsInTheTerminalWhereNoFileIsNamed) {
  const RunResult result = run_qdelta({"plot", folder_.file("first/log.jsonl"), "--y", "loss,seconds"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("training loss"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("time (seconds)"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("100k"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);  // it is not a terminal
  EXPECT_EQ(folder_.names().size(), 2U);
}

TEST_F(PlotCommand, DoesBothWhereAskedTo) {
  const RunResult result =
      run_qdelta({"plot", folder_.file("first"), "--terminal", "--log-x", "--out", folder_.file("a.svg")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("training loss"), std::string::npos);
  EXPECT_NE(result.out.find("wrote"), std::string::npos);
}

TEST_F(PlotCommand, SaysWhatIsWrong) {
  expect_failure(run_qdelta({"plot", folder_.file("third")}), 1, {"third", "log.jsonl"});
  expect_failure(run_qdelta({"plot", folder_.file("first"), "--y", "accuracy"}), 1, {"'accuracy'", "loss"});
  expect_failure(run_qdelta({"plot", folder_.file("first"), "--out", folder_.file("nowhere/a.svg")}), 1, {"nowhere"});
  expect_failure(run_qdelta({"plot", folder_.file("first"), "--smooth", "1"}), 2, {"--smooth"});
  expect_failure(run_qdelta({"plot"}), 2, {"runs"});
}

}  // namespace
}  // namespace qdelta::testing
