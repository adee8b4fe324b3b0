// Ranges of axes and the way from values to positions.
#include "plot/scale.h"

#include <cmath>
#include <limits>

#include "testing.h"

namespace qdelta::plot {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Panel panel_of(std::vector<double> x, std::vector<double> y, Kind kind = Kind::line) {
  Panel panel;
  panel.series.push_back({.label = "s", .x = std::move(x), .y = std::move(y), .kind = kind});
  return panel;
}

TEST(Ranges, HoldTheDataWithAMargin) {
  const Ranges ranges = ranges_of(panel_of({10, 20}, {100, 200}));
  EXPECT_DOUBLE_EQ(ranges.x.low, 9.8);
  EXPECT_DOUBLE_EQ(ranges.x.high, 20.2);
  EXPECT_DOUBLE_EQ(ranges.y.low, 96);
  EXPECT_DOUBLE_EQ(ranges.y.high, 204);
  EXPECT_FALSE(ranges.empty);
}

TEST(Ranges, BeginAtZeroWhereItIsNear) {
  EXPECT_EQ(ranges_of(panel_of({1, 100}, {5, 6})).x.low, 0);
  EXPECT_EQ(ranges_of(panel_of({-100, -1}, {5, 6})).x.high, 0);
}

TEST(Ranges, LeaveOutWhatCannotBeShown) {
  Panel panel = panel_of({1, 2, kNotANumber, 4, 1000}, {1, kInf, 50, 2, kNotANumber});
  EXPECT_LT(ranges_of(panel).x.high, 5);
  EXPECT_LT(ranges_of(panel).y.high, 3);
  panel = panel_of({0, 1, 10}, {-5, 1, 100});
  panel.x.scale = panel.y.scale = Scale::log;
  EXPECT_GT(ranges_of(panel).x.low, 0.5);
  EXPECT_GT(ranges_of(panel).y.low, 0.5);
}

TEST(Ranges, OfNothingAreMadeUp) {
  EXPECT_TRUE(ranges_of(Panel()).empty);
  EXPECT_TRUE(ranges_of(panel_of({kNotANumber}, {1})).empty);
  EXPECT_LT(ranges_of(Panel()).y.low, ranges_of(Panel()).y.high);
}

TEST(Ranges, OfOneValueAreAroundIt) {
  const Ranges ranges = ranges_of(panel_of({5}, {-2}));
  EXPECT_LT(ranges.x.low, 5);
  EXPECT_GT(ranges.x.high, 5);
  EXPECT_LT(ranges.y.low, -2);
  EXPECT_GT(ranges.y.high, -2);
  EXPECT_LT(ranges_of(panel_of({0}, {0})).y.low, 0);
}

TEST(Ranges, SurviveTheLargestNumbers) {
  constexpr double kMax = std::numeric_limits<double>::max();
  for (const Scale scale : {Scale::linear, Scale::log}) {
    Panel panel = panel_of({1e-320, kMax}, {-kMax, kMax});
    panel.x.scale = scale;
    const Ranges ranges = ranges_of(panel);
    EXPECT_TRUE(std::isfinite(ranges.x.low) && std::isfinite(ranges.x.high));
    EXPECT_TRUE(std::isfinite(ranges.y.high - ranges.y.low));
    EXPECT_LT(ranges.x.low, ranges.x.high);
  }
}

TEST(Ranges, HoldSpreadsAndGuides) {
  Panel panel = panel_of({10, 20}, {100, 200});
  panel.series[0].low = {50, kNotANumber};
  panel.series[0].high = {120, 300};
  panel.guides.push_back({Guide::Along::y, 40, ""});
  EXPECT_LT(ranges_of(panel).y.low, 50);
  EXPECT_GT(ranges_of(panel).y.high, 300);
  EXPECT_GT(ranges_of(panel).x.high, 40);
}

TEST(Ranges, OfBarsHoldZero) {
  const Ranges ranges = ranges_of(panel_of({0, 1, 2}, {90, 95, 99}, Kind::bar));
  EXPECT_EQ(ranges.y.low, 0);
  EXPECT_DOUBLE_EQ(ranges.x.low, -0.6);
  EXPECT_DOUBLE_EQ(ranges.x.high, 2.6);
}

TEST(Ranges, GivenLimitsHold) {
  Panel panel = panel_of({1, 2}, {1, 2});
  panel.y.low = -5;
  panel.x.high = 100;
  EXPECT_EQ(ranges_of(panel).y.low, -5);
  EXPECT_EQ(ranges_of(panel).x.high, 100);
  panel.y.low = 50;  // beyond all data
  EXPECT_GT(ranges_of(panel).y.high, 50);
}

TEST(Ranges, SayWhatMakesNoSense) {
  using qdelta::testing::expect_error;
  Panel panel = panel_of({1, 2}, {1});
  expect_error(Status::invalid_argument, {"\"s\"", "2", "1"}, [&] { return ranges_of(panel); });
  panel = panel_of({1, 2}, {1, 2});
  panel.series[0].low = {1};
  panel.series[0].high = {1};
  expect_error(Status::invalid_argument, {"\"s\"", "spread"}, [&] { return ranges_of(panel); });
  panel.series[0].low = {};
  panel.series[0].high = {1, 2};
  expect_error(Status::invalid_argument, {"one side"}, [&] { return ranges_of(panel); });
  panel = panel_of({1, 2}, {1, 2});
  panel.y.low = 3;
  panel.y.high = 2;
  expect_error(Status::invalid_argument, {"y axis", "3", "2"}, [&] { return ranges_of(panel); });
  panel.y.low = -1;
  panel.y.scale = Scale::log;
  expect_error(Status::invalid_argument, {"y axis", "-1", "logarithmic"}, [&] { return ranges_of(panel); });
}

TEST(AxisMap, GoesFromEndToEnd) {
  const AxisMap linear(Scale::linear, {10, 20}, 100, 200);
  EXPECT_DOUBLE_EQ(linear(10), 100);
  EXPECT_DOUBLE_EQ(linear(15), 150);
  EXPECT_DOUBLE_EQ(linear(20), 200);
  const AxisMap log(Scale::log, {1, 100}, 0, 200);
  EXPECT_DOUBLE_EQ(log(10), 100);
  const AxisMap upwards(Scale::linear, {0, 1}, 480, 0);
  EXPECT_DOUBLE_EQ(upwards(0.25), 360);
  EXPECT_TRUE(std::isfinite(linear(1e300)));
}

}  // namespace
}  // namespace qdelta::plot
