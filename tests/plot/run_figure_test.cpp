// Figures of runs: read from folders and files, named, in the right units.
#include "plot/run_figure.h"

#include <cmath>
#include <filesystem>

#include "cli/cli_testing.h"
#include "plot_testing.h"

namespace qdelta::plot {
namespace {

using qdelta::testing::expect_error;
using qdelta::testing::TemporaryFolder;

std::vector<RunRecord> records(int count, double seconds_each = 1) {
  std::vector<RunRecord> result;
  for (int i = 1; i <= count; ++i) {
    RunRecord record;
    record.step = i;
    record.tokens = i * 1000;
    record.loss = 10.0 / i;
    record.learning_rate = 1e-3;
    record.seconds = i * seconds_each;
    if (i % 10 == 0) record.validation_loss = 11.0 / i;
    record.extra["mfu"] = 0.4;
    result.push_back(record);
  }
  return result;
}

void write_run(const std::string& folder, int steps) {
  std::filesystem::create_directories(folder);
  RunLog log = RunLog::create(folder + "/" + kRunLogName);
  for (const RunRecord& record : records(steps)) log.append(record);
}

TEST(ReadRuns, TakesFoldersAndFiles) {
  const TemporaryFolder folder;
  write_run(folder.file("a"), 3);
  write_run(folder.file("b"), 4);
  std::filesystem::rename(folder.file("b/log.jsonl"), folder.file("b/other.jsonl"));
  const std::vector<NamedRun> runs =
      read_runs({folder.file("a"), folder.file("a/log.jsonl"), folder.file("b/other.jsonl")});
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].records.size(), 3U);
  EXPECT_EQ(runs[1].records.size(), 3U);
  EXPECT_EQ(runs[2].records.size(), 4U);
  EXPECT_EQ(read_runs({folder.file("a/")})[0].name, "a");
  EXPECT_EQ(read_runs({folder.file("b/other.jsonl")})[0].name, "other");
}

TEST(ReadRuns, NamesTellThemApart) {
  const TemporaryFolder folder;
  for (const char* name : {"one/seed-1", "two/seed-1", "two/seed-2"}) write_run(folder.file(name), 1);
  const auto names = [&](const std::vector<std::string>& paths) {
    std::vector<std::string> full;
    for (const std::string& path : paths) full.push_back(folder.file(path));
    std::vector<std::string> result;
    for (const NamedRun& run : read_runs(full)) result.push_back(run.name);
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"two/seed-1", "two/seed-2"}), (Names{"seed-1", "seed-2"}));
  EXPECT_EQ(names({"one/seed-1", "two/seed-1"}), (Names{"one/seed-1", "two/seed-1"}));
  EXPECT_EQ(names({"one/seed-1", "one/seed-1"}).size(), 2U);  // the same run twice is no error
}

TEST(ReadRuns, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  expect_error(Status::io, {folder.path(), "log.jsonl"}, [&] { return read_runs({folder.path()}); });
  expect_error(Status::io, {"nothing.jsonl"}, [&] { return read_runs({folder.file("nothing.jsonl")}); });
}

TEST(RunFigure, ShowsWhatWasAskedFor) {
  const std::vector<NamedRun> runs = {{"a", records(100)}, {"b", records(50)}};
  RunFigureOptions options;
  options.y = {"loss", "validation_loss", "mfu"};
  options.x = "step";
  options.log_y = true;
  const Figure figure = figure_of(runs, options);
  ASSERT_EQ(figure.panels.size(), 3U);
  EXPECT_EQ(figure.panels[0].y.label, "training loss");
  EXPECT_EQ(figure.panels[1].y.label, "validation loss");
  EXPECT_EQ(figure.panels[2].y.label, "mfu");
  EXPECT_EQ(figure.panels[0].y.scale, Scale::log);
  EXPECT_EQ(figure.panels[0].x.scale, Scale::linear);
  EXPECT_EQ(figure.panels[0].series[1].label, "b");
  EXPECT_EQ(figure.panels[0].series[0].x.size(), 100U);
  EXPECT_EQ(figure.panels[1].series[0].x, (std::vector<double>{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}));
  testing::expect_tidy(svg(figure));
}

TEST(RunFigure, OneRunIsNamedInTheTitle) {
  const Figure one = figure_of({{"a", records(10)}}, {});
  EXPECT_EQ(one.panels[0].title, "a");
  EXPECT_EQ(one.panels[0].series[0].label, "");
  EXPECT_EQ(one.panels[0].x.label, "tokens");
  RunFigureOptions two;
  two.y = {"loss", "mfu"};
  EXPECT_EQ(figure_of({{"a", records(10)}}, two).title, "a");
}

TEST(RunFigure, SmoothedCurvesKeepTheirValuesBehind) {
  RunFigureOptions options;
  options.smooth = 0.5;
  options.y = {"loss", "validation_loss", "learning_rate"};
  const Figure figure = figure_of({{"a", records(100)}, {"b", records(100)}}, options);
  const Panel& loss = figure.panels[0];
  ASSERT_EQ(loss.series.size(), 4U);
  EXPECT_EQ(loss.series[0].label, "");
  EXPECT_LT(loss.series[0].opacity, 0.5);
  EXPECT_EQ(loss.series[2].label, "a");
  EXPECT_EQ(loss.series[2].color, loss.series[0].color);
  EXPECT_EQ(loss.series[2].y, smoothed(loss.series[0].y, 0.5));
  EXPECT_EQ(figure.panels[1].series.size(), 2U);  // ten points only
  EXPECT_EQ(figure.panels[2].series.size(), 2U);  // no noise
}

TEST(RunFigure, TimeIsInTheUnitThatSuitsIt) {
  RunFigureOptions options;
  options.x = "seconds";
  const auto axis = [&](double each) { return figure_of({{"a", records(100, each)}}, options).panels[0]; };
  EXPECT_EQ(axis(1).x.label, "time (seconds)");
  EXPECT_EQ(axis(60).x.label, "time (minutes)");
  EXPECT_EQ(axis(60).series[0].x.back(), 100);
  EXPECT_EQ(axis(3600).x.label, "time (days)");
  EXPECT_EQ(axis(600).x.label, "time (hours)");
}

TEST(RunFigure, SaysWhatThereIs) {
  RunFigureOptions options;
  options.y = {"accuracy"};
  expect_error(Status::invalid_argument, {"'accuracy'", "loss", "validation_loss", "mfu"}, [&] {
    return figure_of({{"a", records(10)}}, options);
  });
  expect_error(Status::invalid_argument, {"no steps"}, [] { return figure_of({{"a", {}}}, {}); });
  expect_error(Status::invalid_argument, {"no run"}, [] { return figure_of({}, {}); });
  std::vector<RunRecord> uncounted = records(10);
  for (RunRecord& record : uncounted) record.tokens = 0;
  expect_error(Status::invalid_argument, {"tokens", "step"}, [&] { return figure_of({{"a", uncounted}}, {}); });
}

TEST(RunFigure, ARunThatHasNotBegunStandsBesideOthers) {
  const Figure figure = figure_of({{"a", records(10)}, {"b", {}}}, {});
  testing::expect_tidy(svg(figure));
}

}  // namespace
}  // namespace qdelta::plot
