// Histograms, heat maps, small dots, and pictures of figures.
#include <cmath>
#include <filesystem>

#include "cli/cli_testing.h"
#include "plot/figure.h"
#include "plot/png.h"
#include "plot_testing.h"

namespace qdelta::plot {
namespace {

using qdelta::testing::expect_error;
using qdelta::testing::read_file;
using qdelta::testing::TemporaryFolder;
using testing::Element;
using testing::expect_tidy;
using testing::named;
using testing::read_svg;

Figure figure_with(Series series) {
  Figure figure;
  figure.panels.emplace_back().series.push_back(std::move(series));
  return figure;
}

TEST(HistogramKind, IsAnOutlineOverAnArea) {
  const std::string drawing =
      svg(figure_with({.label = "a", .x = {0, 1, 2, 3}, .y = {1, 4, 2, 0}, .kind = Kind::histogram}));
  expect_tidy(drawing);
  const std::vector<Element> elements = read_svg(drawing);
  const std::vector<Element> areas = named(elements, "polygon");
  ASSERT_EQ(areas.size(), 1);
  // Up, along, up, along, down, along, down: two points for each of three bins, one before and one after.
  const std::string outline = named(elements, "path").at(0).attribute("d");
  EXPECT_EQ(std::count(outline.begin(), outline.end(), 'L'), 7);
}

TEST(HistogramKind, BeginsAtZeroAndIgnoresTheEndsHeight) {
  const std::string drawing = svg(figure_with({.x = {0, 1, 2}, .y = {100, 101, 1e9}, .kind = Kind::histogram}));
  bool zero = false;
  for (const Element& text : named(read_svg(drawing), "text")) {
    zero = zero || text.text == "0";
    EXPECT_EQ(text.text.find('B'), std::string::npos) << text.text;
  }
  EXPECT_TRUE(zero);
}

TEST(HeatKind, HasACellForEachValueAndSaysWhatColorsMean) {
  Series cells{
      .x = {0, 1, 2, 0, 1, 2}, .y = {0, 0, 0, 1, 1, 1}, .z = {1, 2, 3, 4, 5, std::nan("")}, .kind = Kind::heat};
  cells.values = true;
  Figure figure = figure_with(cells);
  figure.panels[0].y.categories = {"layer 5", "layer 10"};
  figure.panels[0].x.categories = {"a", "b", "c"};
  const std::string drawing = svg(figure);
  const std::vector<Element> elements = read_svg(drawing);
  int outlined = 0;
  for (const Element& box : named(elements, "rect")) outlined += box.has("stroke") ? 1 : 0;
  EXPECT_EQ(outlined, 5);  // the value that is none has no cell
  std::vector<std::string> texts;
  for (const Element& text : named(elements, "text")) texts.push_back(text.text);
  for (const char* expected : {"layer 5", "layer 10", "a", "b", "c"}) {
    EXPECT_EQ(std::count(texts.begin(), texts.end(), expected), 1) << expected;
  }
  EXPECT_EQ(std::count(texts.begin(), texts.end(), "5"), 2);  // in its cell, and at the end of the scale
  EXPECT_EQ(std::count(texts.begin(), texts.end(), "3"), 1);
  // The lowest is light, the highest dark.
  EXPECT_NE(drawing.find("#f7fbff"), std::string::npos);
  EXPECT_NE(drawing.find("#08306b"), std::string::npos);
  expect_tidy(drawing);
}

TEST(HeatKind, ManyRowsAndOneValue) {
  Series cells{.kind = Kind::heat};
  Figure figure;
  for (int row = 0; row < 60; ++row) {
    cells.x.push_back(0);
    cells.y.push_back(row);
    cells.z.push_back(0.25);
  }
  figure = figure_with(cells);
  for (int row = 0; row < 60; ++row) figure.panels[0].y.categories.push_back(std::to_string(row));
  expect_tidy(svg(figure));
}

TEST(HeatKind, NeedsAColorForEachCell) {
  expect_error(Status::invalid_argument, {"2 cells and 1 colors"}, [] {
    return svg(figure_with({.x = {0, 1}, .y = {0, 0}, .z = {1}, .kind = Kind::heat}));
  });
}

TEST(SmallDots, HaveNoOutline) {
  Series dots{.x = {1, 2}, .y = {1, 2}, .kind = Kind::scatter};
  dots.marker = Marker::circle;
  EXPECT_TRUE(named(read_svg(svg(figure_with(dots))), "circle").at(0).has("stroke"));
  dots.marker_size = 1.5;
  EXPECT_FALSE(named(read_svg(svg(figure_with(dots))), "circle").at(0).has("stroke"));
}

// Width and height stand in the first chunk of a PNG file, big-endian.
int number_at(const std::string& bytes, std::size_t at) {
  int value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value * 256 + static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

TEST(Png, IsAPictureOfTheSizeAsked) {
  if (!can_write_png()) GTEST_SKIP() << "no librsvg here";
  const TemporaryFolder folder;
  const std::string drawing = svg(figure_with({.label = "a", .x = {0, 1, 2}, .y = {1, 4, 2}}));
  write_png(drawing, folder.file("a.png"), 1.5);
  const std::string bytes = read_file(folder.file("a.png"));
  EXPECT_TRUE(bytes.starts_with("\x89PNG\r\n"));
  EXPECT_EQ(number_at(bytes, 16), 1140);
  EXPECT_EQ(number_at(bytes, 20), 720);
}

TEST(Png, WhatIsNoDrawingLeavesNoFile) {
  if (!can_write_png()) GTEST_SKIP() << "no librsvg here";
  const TemporaryFolder folder;
  expect_error(Status::invalid_argument, {"a.png"}, [&] {
    write_png("<svg", folder.file("a.png"));
    return 0;
  });
  expect_error(Status::invalid_argument, {"pixels"}, [&] {
    write_png("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"100000\" height=\"10\"/>", folder.file("a.png"));
    return 0;
  });
  expect_error(Status::io, {"no-such"}, [&] {
    write_png(svg(figure_with({.x = {0, 1}, .y = {1, 4}})), folder.file("no-such/a.png"));
    return 0;
  });
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace qdelta::plot
