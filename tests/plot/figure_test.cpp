// Figures as SVG: whole, tidy whatever the data, and with the marks that were asked for.
#include "plot/figure.h"

#include <cmath>
#include <limits>

#include "cli/cli_testing.h"
#include "core/random.h"
#include "plot/palette.h"
#include "plot_testing.h"

namespace qdelta::plot {
namespace {

using qdelta::testing::expect_error;
using testing::box_of;
using testing::Element;
using testing::expect_tidy;
using testing::named;
using testing::read_svg;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Series falling(const std::string& label, double level, int points = 50) {
  Series series;
  series.label = label;
  for (int i = 1; i <= points; ++i) {
    series.x.push_back(i * 15e9 / points);
    series.y.push_back(level + 8 * std::exp(-6.0 * i / points));
  }
  return series;
}

Figure figure_with(int series) {
  Figure figure;
  Panel panel;
  panel.x.label = "tokens";
  panel.y.label = "loss";
  for (int i = 0; i < series; ++i) panel.series.push_back(falling("run " + std::to_string(i), 2.5 + 0.2 * i));
  figure.panels.push_back(panel);
  return figure;
}

std::vector<std::string> texts_of(const std::string& drawing) {
  std::vector<std::string> texts;
  for (const Element& text : named(read_svg(drawing), "text")) texts.push_back(text.text);
  return texts;
}
bool has_text(const std::string& drawing, const std::string& text) {
  const std::vector<std::string> texts = texts_of(drawing);
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

TEST(Figure, IsOfTheUsualSizeOnWhitePaper) {
  const std::vector<Element> elements = read_svg(svg(figure_with(1)));
  EXPECT_EQ(elements[0].name, "svg");
  EXPECT_EQ(elements[0].attribute("width"), "760");
  EXPECT_EQ(elements[0].attribute("height"), "480");
  const Element paper = named(elements, "rect").at(0);
  EXPECT_EQ(paper.attribute("width"), "760");
  EXPECT_EQ(paper.attribute("fill"), "#ffffff");
}

TEST(Figure, TheSameFigureGivesTheSameBytes) { EXPECT_EQ(svg(figure_with(3)), svg(figure_with(3))); }

TEST(Figure, HasALinePerSeriesInItsColor) {
  for (const int count : {1, 3, 8}) {
    const std::string drawing = svg(figure_with(count));
    expect_tidy(drawing);
    const std::vector<Element> paths = named(read_svg(drawing), "path");
    ASSERT_EQ(paths.size(), static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(paths[i].attribute("stroke"), kPalette[i]);
    for (int i = 0; i < count; ++i) EXPECT_TRUE(has_text(drawing, "run " + std::to_string(i)));
  }
}

TEST(Figure, BeyondTheColorsLinesAreDashed) {
  const std::vector<Element> paths = named(read_svg(svg(figure_with(10))), "path");
  EXPECT_FALSE(paths.at(7).has("stroke-dasharray"));
  EXPECT_TRUE(paths.at(8).has("stroke-dasharray"));
  EXPECT_EQ(paths.at(8).attribute("stroke"), kPalette[0]);
}

TEST(Figure, TextIsEscaped) {
  Figure figure = figure_with(2);
  figure.title = "a < b & \"c\" > 'd' \x01 \xff";
  figure.panels[0].series[0].label = "</text><script>";
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  EXPECT_TRUE(has_text(drawing, "a < b & \"c\" > 'd' \ufffd \ufffd"));
  EXPECT_TRUE(named(read_svg(drawing), "script").empty());
}

TEST(Figure, TheLegendStandsWhereNoDataAre) {
  const std::string drawing = svg(figure_with(3));
  const Element label = [&] {
    for (const Element& text : named(read_svg(drawing), "text")) {
      if (text.text == "run 0") return text;
    }
    return Element();
  }();
  const Rectangle box = box_of(label);
  EXPECT_GT(box.x, 380);  // falling curves leave the upper right free
  EXPECT_LT(box.y, 240);
}

// Noise all over the plot: the legend goes above it, and the plot begins below the legend.
TEST(Figure, TheLegendGoesOutsideWhereDataAreEverywhere) {
  Figure figure = figure_with(0);
  Random random(3);
  for (int s = 0; s < 8; ++s) {
    Series series{.label = "noise " + std::to_string(s)};
    for (int i = 0; i < 400; ++i) {
      series.x.push_back(i);
      series.y.push_back(random.uniform());
    }
    figure.panels[0].series.push_back(series);
  }
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  const std::vector<Element> elements = read_svg(drawing);
  const double plot_top = named(elements, "svg").at(1).number("y");
  for (const Element& text : named(elements, "text")) {
    if (text.text.starts_with("noise")) {
      EXPECT_LE(box_of(text).bottom(), plot_top) << text.text;
    }
  }
}

TEST(Figure, GapsBreakTheLine) {
  Figure figure = figure_with(1);
  std::vector<double>& y = figure.panels[0].series[0].y;
  y[10] = kNan;
  y[20] = std::numeric_limits<double>::infinity();
  y[22] = kNan;  // 21 stands alone
  const std::vector<Element> elements = read_svg(svg(figure));
  const std::string path = named(elements, "path").at(0).attribute("d");
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 3);
  EXPECT_EQ(named(elements, "circle").size(), 1U);
}

TEST(Figure, OnALogarithmicAxisWhatIsNotPositiveIsAGap) {
  Figure figure = figure_with(1);
  figure.panels[0].y.scale = Scale::log;
  figure.panels[0].series[0].y[10] = 0;
  figure.panels[0].series[0].y[20] = -1;
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  const std::string path = named(read_svg(drawing), "path").at(0).attribute("d");
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 3);
}

TEST(Figure, FewPointsHaveMarkersAndManyHaveNot) {
  Figure figure = figure_with(0);
  figure.panels[0].series = {falling("", 2, 10)};
  EXPECT_EQ(named(read_svg(svg(figure)), "circle").size(), 10U);
  figure.panels[0].series = {falling("", 2, 100)};
  EXPECT_EQ(named(read_svg(svg(figure)), "circle").size(), 0U);
  figure.panels[0].series[0].kind = Kind::scatter;
  EXPECT_EQ(named(read_svg(svg(figure)), "circle").size(), 100U);
}

TEST(Figure, BandsLieBehind) {
  Figure figure = figure_with(1);
  Series& series = figure.panels[0].series[0];
  for (const double y : series.y) {
    series.low.push_back(y - 0.1);
    series.high.push_back(y + 0.1);
  }
  series.low[25] = kNan;  // two pieces
  const std::string drawing = svg(figure);
  EXPECT_EQ(named(read_svg(drawing), "polygon").size(), 2U);
  EXPECT_LT(drawing.find("<polygon"), drawing.find("<path"));
}

TEST(Figure, LongRunsAreReducedButKeepTheirSpikes) {
  Figure figure = figure_with(0);
  Series series;
  for (int i = 0; i < 200'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 123'456 ? 100 : std::sin(i));
  }
  figure.panels[0].series.push_back(series);
  const std::string drawing = svg(figure);
  EXPECT_LT(drawing.size(), 80'000U);
  const std::string path = named(read_svg(drawing), "path").at(0).attribute("d");
  // The spike is the highest point: the margin of 4% below the top of the plot.
  double top = 1e9;
  for (std::size_t at = path.find(' '); at != std::string::npos; at = path.find(' ', at + 1)) {
    top = std::min(top, std::stod(path.substr(at + 1)));
  }
  const Element plot = named(read_svg(drawing), "svg").at(1);
  EXPECT_NEAR(top, plot.number("y") + 2 + (plot.number("height") - 4) * 0.04 / 1.08, 0.5);
}

TEST(Figure, BarsStandSideBySideOnZero) {
  Figure figure;
  Panel panel;
  panel.x.categories = {"one", "two", "three"};
  panel.series = {{.label = "a", .x = {0, 1, 2}, .y = {1, 2, -3}, .kind = Kind::bar, .values = true},
                  {.label = "b", .x = {0, 1, 2}, .y = {2, 3, 4}, .kind = Kind::bar}};
  figure.panels.push_back(panel);
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  std::vector<Element> first;
  std::vector<Element> second;
  for (const Element& bar : named(read_svg(drawing), "rect")) {
    if (bar.number("height") < 11) continue;  // of the legend
    if (bar.attribute("fill") == kPalette[0]) first.push_back(bar);
    if (bar.attribute("fill") == kPalette[1]) second.push_back(bar);
  }
  ASSERT_EQ(first.size(), 3U);
  ASSERT_EQ(second.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_LE(first[i].number("x") + first[i].number("width"), second[i].number("x"));
    EXPECT_NEAR(second[i].number("y") + second[i].number("height"), second[0].number("y") + second[0].number("height"),
                0.02);
  }
  EXPECT_NEAR(first[2].number("y"), first[0].number("y") + first[0].number("height"), 0.02);  // the one below zero
  for (const char* text : {"one", "two", "three", "−3", "1", "2"}) EXPECT_TRUE(has_text(drawing, text)) << text;
}

TEST(Figure, LongNamesOfCategoriesAreSlanted) {
  Figure figure;
  Panel panel;
  Series series{.kind = Kind::bar};
  for (int i = 0; i < 12; ++i) {
    panel.x.categories.push_back("a_long_name_" + std::to_string(i));
    series.x.push_back(i);
    series.y.push_back(i);
  }
  panel.series.push_back(series);
  figure.panels.push_back(panel);
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  EXPECT_NE(drawing.find("rotate(-34"), std::string::npos);
}

TEST(Figure, SeveralPanelsShareALegendAndLineUp) {
  Figure figure;
  figure.title = "Six of them";
  for (int i = 0; i < 6; ++i) {
    Panel panel = figure_with(3).panels[0];
    panel.title = "panel " + std::to_string(i);
    for (Series& series : panel.series) {
      for (double& y : series.y) y *= std::pow(10, 2 * i - 4);
    }
    figure.panels.push_back(panel);
  }
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  const std::vector<std::string> texts = texts_of(drawing);
  EXPECT_EQ(std::count(texts.begin(), texts.end(), "run 0"), 1);
  const std::vector<Element> plots = named(read_svg(drawing), "svg");
  ASSERT_EQ(plots.size(), 7U);
  EXPECT_EQ(plots[1].attribute("x"), plots[4].attribute("x"));
  EXPECT_EQ(plots[1].attribute("y"), plots[2].attribute("y"));
  EXPECT_EQ(plots[4].attribute("height"), plots[6].attribute("height"));
}

TEST(Figure, PanelsOfDifferentThingsHaveTheirOwnLegends) {
  Figure figure;
  figure.panels = {figure_with(2).panels[0], figure_with(2).panels[0]};
  figure.panels[1].series[0].label = "something else";
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  const std::vector<std::string> texts = texts_of(drawing);
  EXPECT_EQ(std::count(texts.begin(), texts.end(), "run 1"), 2);
}

TEST(Figure, GuidesHaveLabelsBesideTheData) {
  Figure figure = figure_with(2);
  figure.panels[0].guides = {{Guide::Along::x, 6, "a limit"}, {Guide::Along::y, 5e8, "end of warm-up"}};
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  EXPECT_TRUE(has_text(drawing, "a limit"));
  EXPECT_TRUE(has_text(drawing, "end of warm-up"));
}

TEST(Figure, LongTextsAreMadeToFit) {
  Figure figure = figure_with(2);
  const std::string words = "some words that go on and on without coming to any end that one could see from here ";
  figure.title = words + words;
  Panel& panel = figure.panels[0];
  panel.title = words;
  panel.x.label = panel.y.label = words + words;
  const std::string name = "qdelta-340M-fineweb-edu-15B-tokens-lr-1e-3-warm-up-1024-batch-512-seed-";
  panel.series[0].label = name + "1";
  panel.series[1].label = name + "2";
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  EXPECT_TRUE(has_text(drawing, "…1"));  // what tells them apart is kept
  EXPECT_TRUE(has_text(drawing, "…2"));
}

TEST(Figure, ExponentsAreRaisedInAnyFont) {
  Figure figure = figure_with(1);
  for (double& y : figure.panels[0].series[0].y) y *= 1e-7;
  const std::string drawing = svg(figure);
  EXPECT_NE(drawing.find("×10<tspan dy=\"-0.42em\" font-size=\"72%\">−7</tspan>"), std::string::npos);
}

TEST(Figure, WithoutDataItSaysSo) {
  Figure figure;
  figure.panels.emplace_back();
  const std::string drawing = svg(figure);
  expect_tidy(drawing);
  EXPECT_TRUE(has_text(drawing, "no data"));
  expect_error(Status::invalid_argument, {"no panel"}, [] { return svg(Figure()); });
}

TEST(Figure, TooSmallAFigureIsRefused) {
  Figure figure = figure_with(1);
  figure.width = 20;
  expect_error(Status::invalid_argument, {"20"}, [&] { return svg(figure); });
}

// Any data at all: tiny, huge, flat, broken, few and many.
TEST(Figure, IsTidyWhateverTheData) {
  Random random(5);
  const int rounds = std::getenv("QDELTA_QUICK") != nullptr ? 40 : 300;
  for (int round = 0; round < rounds; ++round) {
    Figure figure;
    const auto panels = random.integer(1, 4);
    for (std::int64_t p = 0; p < panels; ++p) {
      Panel panel;
      if (random.uniform() < 0.8) panel.x.label = "tokens";
      if (random.uniform() < 0.8) panel.y.label = "loss of some kind";
      if (random.uniform() < 0.3) panel.title = "a panel";
      if (random.uniform() < 0.3) panel.x.scale = Scale::log;
      if (random.uniform() < 0.3) panel.y.scale = Scale::log;
      const double size = std::pow(10, random.uniform() * 60 - 30);
      const double offset = random.uniform() < 0.3 ? size * std::pow(10, random.uniform() * 9) : 0;
      const auto count = random.integer(0, 9);
      for (std::int64_t s = 0; s < count; ++s) {
        Series series;
        if (random.uniform() < 0.8) series.label = "series " + std::to_string(s);
        series.kind = random.uniform() < 0.2 ? Kind::scatter : Kind::line;
        const auto points = random.integer(0, 80);
        for (std::int64_t i = 0; i < points; ++i) {
          series.x.push_back(offset + size * static_cast<double>(i));
          series.y.push_back(random.uniform() < 0.05 ? kNan : offset + size * random.normal());
        }
        panel.series.push_back(series);
      }
      figure.panels.push_back(panel);
    }
    const std::string drawing = svg(figure);
    expect_tidy(drawing, "round " + std::to_string(round));
    if (::testing::Test::HasFailure()) {
      qdelta::testing::write_file(::testing::TempDir() + "/untidy.svg", drawing);
      break;
    }
  }
}

TEST(Figure, IsWrittenWholeOrNotAtAll) {
  const qdelta::testing::TemporaryFolder folder;
  const std::string path = folder.file("figure.svg");
  write_svg(figure_with(2), path);
  EXPECT_EQ(qdelta::testing::read_file(path), svg(figure_with(2)));
  Figure broken = figure_with(1);
  broken.panels[0].series[0].y.pop_back();
  expect_error(Status::invalid_argument, {"run 0"}, [&] {
    write_svg(broken, path);
    return 0;
  });
  EXPECT_EQ(qdelta::testing::read_file(path), svg(figure_with(2)));
  expect_error(Status::io, {"nowhere"}, [&] {
    write_svg(figure_with(1), folder.file("nowhere/f.svg"));
    return 0;
  });
}

// 1, then 0.5 * 1 + 0.5 * 3 of weight 0.75, ...
TEST(Smoothed, IsTensorBoardsAverage) {
  const std::vector<double> result = smoothed({1, 3, kNan, 5}, 0.5);
  EXPECT_DOUBLE_EQ(result[0], 1);
  EXPECT_DOUBLE_EQ(result[1], (0.25 * 1 + 0.5 * 3) / 0.75);
  EXPECT_TRUE(std::isnan(result[2]));
  EXPECT_DOUBLE_EQ(result[3], (0.125 * 1 + 0.25 * 3 + 0.5 * 5) / 0.875);
  EXPECT_EQ(smoothed({1, 3, 5}, 0), (std::vector<double>{1, 3, 5}));
  for (const double value : smoothed(std::vector<double>(100, 7.0), 0.99)) EXPECT_NEAR(value, 7, 1e-12);
  expect_error(Status::invalid_argument, {"1"}, [] { return smoothed({1}, 1); });
}

}  // namespace
}  // namespace qdelta::plot
