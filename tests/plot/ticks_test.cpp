// Ticks: where they are, and what is written there.
#include "plot/ticks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/random.h"

namespace qdelta::plot {
namespace {

using Labels = std::vector<std::string>;

Labels labels(const Ticks& ticks) {
  Labels result;
  for (const Tick& tick : ticks.major) result.push_back(tick.label);
  return result;
}
Labels linear(double low, double high, int at_most = 7, Units units = Units::count) {
  return labels(linear_ticks(low, high, at_most, units));
}
Labels log(double low, double high, int at_most = 7) { return labels(log_ticks(low, high, at_most, Units::count)); }

TEST(LinearTicks, AreRoundNumbers) {
  EXPECT_EQ(linear(0, 1), (Labels{"0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(linear(2.4, 11), (Labels{"4", "6", "8", "10"}));
  EXPECT_EQ(linear(2.4, 11, 10), (Labels{"3", "4", "5", "6", "7", "8", "9", "10", "11"}));
  EXPECT_EQ(linear(-5, 5), (Labels{"−4", "−2", "0", "2", "4"}));
  EXPECT_EQ(linear(0.9, 1.1), (Labels{"0.90", "0.95", "1.00", "1.05", "1.10"}));
}

TEST(LinearTicks, HaveUnits) {
  EXPECT_EQ(linear(0, 15e9), (Labels{"0", "2.5B", "5B", "7.5B", "10B", "12.5B", "15B"}));
  EXPECT_EQ(linear(0, 15e9, 7, Units::si), (Labels{"0", "2.5G", "5G", "7.5G", "10G", "12.5G", "15G"}));
  EXPECT_EQ(linear(0, 28'600), (Labels{"0", "5k", "10k", "15k", "20k", "25k"}));
  EXPECT_EQ(linear(0, 28'600, 7, Units::plain), (Labels{"0", "5000", "10000", "15000", "20000", "25000"}));
  EXPECT_EQ(linear(600e3, 1.3e6, 8), (Labels{"600k", "700k", "800k", "900k", "1M", "1.1M", "1.2M", "1.3M"}));
  EXPECT_EQ(linear(900, 2100), (Labels{"1000", "1200", "1400", "1600", "1800", "2000"}));
}

TEST(LinearTicks, MoveWhatTheyShareToANote) {
  const Ticks small = linear_ticks(0, 3e-5, 7, Units::count);
  EXPECT_EQ(labels(small), (Labels{"0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"}));
  EXPECT_EQ(small.note, "×10⁻⁵");
  EXPECT_DOUBLE_EQ(small.major[1].value, 5e-6);

  const Ticks shifted = linear_ticks(1e6, 1e6 + 0.1, 7, Units::count);
  EXPECT_EQ(labels(shifted), (Labels{"0", "0.02", "0.04", "0.06", "0.08", "0.10"}));
  EXPECT_EQ(shifted.note, "+ 1000000");
  EXPECT_DOUBLE_EQ(shifted.major[1].value, 1000000.02);

  const Ticks both = linear_ticks(1234.5678, 1234.5679, 7, Units::count);
  EXPECT_EQ(labels(both), (Labels{"0", "2", "4", "6", "8"}));
  EXPECT_EQ(both.note, "×10⁻⁵ + 1234.5678");

  const Ticks negative = linear_ticks(-1e6 - 3, -1e6, 4, Units::count);
  EXPECT_EQ(labels(negative), (Labels{"−3", "−2", "−1", "0"}));
  EXPECT_EQ(negative.note, "− 1000000");
}

TEST(LogTicks, ArePowersOfTen) {
  EXPECT_EQ(log(1, 1000), (Labels{"1", "10", "100", "1k"}));
  EXPECT_EQ(log(0.01, 100), (Labels{"0.01", "0.1", "1", "10", "100"}));
  EXPECT_EQ(log(1e-5, 1), (Labels{"10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰"}));
  EXPECT_EQ(log(1e-30, 1e30), (Labels{"10⁻³⁰", "10⁻²⁰", "10⁻¹⁰", "10⁰", "10¹⁰", "10²⁰", "10³⁰"}));
}

TEST(LogTicks, AreDenserWherePowersAreFew) {
  EXPECT_EQ(log(0.5, 20), (Labels{"0.5", "1", "2", "5", "10", "20"}));
  EXPECT_EQ(log(2.4, 11, 10), (Labels{"3", "4", "5", "6", "7", "8", "9", "10"}));
  EXPECT_EQ(log(40, 60), (Labels{"40", "50", "60"}));
  EXPECT_EQ(log(900, 1100), (Labels{"900", "950", "1000", "1050", "1100"}));
}

TEST(LogTicks, HaveMinorOnesBetween) {
  EXPECT_EQ(log_ticks(1, 100, 7, Units::count).minor.size() + log(1, 100).size(), 19U);  // 1 .. 9, 10 .. 90, 100
  EXPECT_TRUE(log_ticks(1, 1e20, 7, Units::count).minor.empty());
}

TEST(Ticks, OfNothingAreNone) {
  EXPECT_TRUE(linear(1, 1).empty());
  EXPECT_TRUE(linear(2, 1).empty());
  EXPECT_TRUE(log(0, 1).empty());
  EXPECT_TRUE(log(-1, 1).empty());
}

// Whatever the range: rising, within it, no more than allowed, labels all different.
TEST(Ticks, KeepTheirPromises) {
  Random random(11);
  for (int i = 0; i < 4000; ++i) {
    const bool logarithmic = random.uniform() < 0.4;
    const double size = std::pow(10, random.uniform() * 40 - 20);
    double low = logarithmic ? size : size * (random.uniform() * 2 - 1);
    double high = logarithmic ? low * std::pow(10, 0.01 + random.uniform() * 20)
                              : low + size * std::pow(10, random.uniform() * 8 - 6);
    const int at_most = static_cast<int>(random.integer(2, 11));
    const Ticks ticks = axis_ticks(logarithmic ? Scale::log : Scale::linear, low, high, at_most, Units::count);
    EXPECT_LE(static_cast<int>(ticks.major.size()), at_most) << low << " " << high;
    std::set<std::string> different;
    double before = -INFINITY;
    const double slack = (high - low) * 1e-8;
    for (const Tick& tick : ticks.major) {
      EXPECT_GT(tick.value, before);
      EXPECT_GE(tick.value, low - slack);
      EXPECT_LE(tick.value, high + slack);
      EXPECT_TRUE(different.insert(tick.label).second) << tick.label << " twice in " << low << " .. " << high;
      before = tick.value;
    }
    if (at_most >= 5) {
      EXPECT_GE(ticks.major.size(), 2U) << low << " " << high << " log " << logarithmic;
    }
  }
}

TEST(NumberText, IsShort) {
  EXPECT_EQ(number_text(0, 3, Units::count), "0");
  EXPECT_EQ(number_text(-3, 3, Units::count), "−3");
  EXPECT_EQ(number_text(1234, 3, Units::count), "1.23k");
  EXPECT_EQ(number_text(999'999, 3, Units::count), "1M");
  EXPECT_EQ(number_text(0.31415, 3, Units::count), "0.314");
  EXPECT_EQ(number_text(2e-7, 3, Units::count), "2×10⁻⁷");
  EXPECT_EQ(number_text(1e-7, 3, Units::count), "10⁻⁷");
  EXPECT_EQ(number_text(9.9999e-7, 3, Units::count), "10⁻⁶");
  EXPECT_EQ(number_text(-2.5e9, 3, Units::si), "−2.5G");
  EXPECT_EQ(number_text(std::nan(""), 3, Units::count), "nan");
}

}  // namespace
}  // namespace qdelta::plot
