// Plots in the terminal: they fit, and points are where they should be.
#include "plot/terminal_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/random.h"
#include "plot/text.h"

namespace qdelta::plot {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    EXPECT_NE(end, std::string::npos);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Without color sequences.
std::size_t columns_of(const std::string& line) {
  std::u32string visible;
  bool escape = false;
  for (const char32_t c : decoded(line)) {
    if (c == 0x1b) escape = true;
    if (!escape) visible.push_back(c);
    if (escape && c == U'm') escape = false;
  }
  return visible.size();
}

Series diagonal(const std::string& label = "") {
  Series series;
  series.label = label;
  for (int i = 0; i <= 100; ++i) {
    series.x.push_back(i);
    series.y.push_back(i);
  }
  return series;
}

TEST(TerminalPlot, ADiagonalGoesFromCornerToCorner) {
  const std::string plot = terminal_plot({diagonal()}, 40, 12);
  const std::vector<std::string> lines = lines_of(plot);
  ASSERT_EQ(lines.size(), 10U);  // eight rows, the axis and its labels
  EXPECT_EQ(lines[8].substr(0, 4), "    ");
  EXPECT_NE(lines[7].find("0 ┤⣠"), std::string::npos) << plot;
  EXPECT_NE(lines[0].find("⠔"), std::string::npos) << plot;
  EXPECT_LT(columns_of(lines[4]), columns_of(lines[1]));
}

TEST(TerminalPlot, FitsItsSize) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    Panel panel;
    if (random.uniform() < 0.5) panel.title = "a title";
    if (random.uniform() < 0.5) panel.x.label = "tokens";
    if (random.uniform() < 0.5) panel.y.label = "loss";
    if (random.uniform() < 0.3) panel.y.scale = Scale::log;
    if (random.uniform() < 0.3) panel.x.scale = Scale::log;
    const double size = std::pow(10, random.uniform() * 40 - 20);
    for (auto s = random.integer(0, 9); s > 0; --s) {
      Series series{.label = "series " + std::to_string(s)};
      for (auto i = random.integer(0, 50); i > 0; --i) {
        series.x.push_back(static_cast<double>(i) * size);
        series.y.push_back(random.uniform() < 0.1 ? std::nan("") : random.normal() * size);
      }
      panel.series.push_back(series);
    }
    TerminalStyle style;
    style.width = static_cast<int>(random.integer(40, 150));
    style.height = static_cast<int>(random.integer(14, 50));
    style.color = random.uniform() < 0.5;
    style.unicode = random.uniform() < 0.7;
    const std::string plot = terminal_plot(panel, style);
    for (const std::string& line : lines_of(plot)) {
      EXPECT_LE(columns_of(line), static_cast<std::size_t>(style.width)) << plot;
      if (!style.unicode) {
        EXPECT_TRUE(std::all_of(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
            << plot;
      }
    }
    EXPECT_EQ(plot.find('\x1b') != std::string::npos && !style.color, false);
  }
}

TEST(TerminalPlot, WithoutColorsSeriesHaveSigns) {
  Series other = diagonal("falling");
  for (double& y : other.y) y = 100 - y;
  Panel panel;
  panel.series = {diagonal("rising"), other};
  const std::string plot = terminal_plot(panel, {.width = 40, .height = 12});
  EXPECT_NE(plot.find("* rising   + falling"), std::string::npos) << plot;
  EXPECT_NE(lines_of(plot)[2].find('*'), std::string::npos);
  EXPECT_NE(lines_of(plot)[2].find('+'), std::string::npos);
  const std::string colored = terminal_plot(panel, {.width = 40, .height = 12, .color = true});
  EXPECT_NE(colored.find("\x1b[38;5;32m━━\x1b[0m rising"), std::string::npos) << colored;
  EXPECT_EQ(colored.find('*'), std::string::npos);
}

TEST(TerminalPlot, FaintLinesAreLeftOut) {
  Series faint = diagonal();
  faint.opacity = 0.2;
  Panel panel;
  panel.series = {faint};
  EXPECT_EQ(terminal_plot(panel, {}).find("⠔"), std::string::npos);
}

TEST(TerminalPlot, AsciiAlone) {
  Panel panel;
  panel.x.label = "Größe";
  panel.series = {diagonal()};
  for (double& y : panel.series[0].y) y = (y - 50) * 1e-9;
  const std::string plot = terminal_plot(panel, {.width = 50, .height = 14, .unicode = false});
  EXPECT_NE(plot.find("x10^-8"), std::string::npos) << plot;
  EXPECT_NE(plot.find("Gr??e"), std::string::npos) << plot;
  EXPECT_NE(plot.find("-5"), std::string::npos) << plot;
}

TEST(TerminalPlot, BarsAndCategories) {
  Panel panel;
  panel.x.categories = {"one", "two", "three"};
  panel.series = {{.label = "a", .x = {0, 1, 2}, .y = {1, 2, 3}, .kind = Kind::bar}};
  const std::string plot = terminal_plot(panel, {.width = 50, .height = 14});
  EXPECT_NE(plot.find("⣿"), std::string::npos) << plot;
  for (const char* name : {"one", "two", "three"}) EXPECT_NE(plot.find(name), std::string::npos);
}

TEST(TerminalPlot, SequencesInNamesDoNotReachTheTerminal) {
  Panel panel;
  panel.title = "a\x1b[31mb";
  panel.series = {diagonal("c\x1b]0;d\x07\n")};
  const std::string plot = terminal_plot(panel, {});
  EXPECT_EQ(plot.find('\x1b'), std::string::npos);
  EXPECT_EQ(plot.find('\x07'), std::string::npos);
}

TEST(TerminalPlot, NothingIsStillAnAxis) {
  EXPECT_FALSE(terminal_plot(std::vector<Series>(), 40, 12).empty());
  EXPECT_FALSE(terminal_plot({diagonal()}, 1, 1).empty());
}

}  // namespace
}  // namespace qdelta::plot
