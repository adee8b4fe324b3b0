// Figures: what is to be shown. svg() turns a figure into a drawing, terminal_plot() a panel into text.
//
//   Figure figure;
//   Panel& panel = figure.panels.emplace_back();
//   panel.x = {.label = "tokens"};
//   panel.y = {.label = "loss", .scale = Scale::log};
//   panel.series.push_back({.label = "Q-Delta", .x = tokens, .y = loss});
//   write_svg(figure, "loss.svg");
//
// The same figure gives the same bytes, whenever and wherever it is drawn.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace qdelta::plot {

enum class Scale { linear, log };
enum class Units {
  count,  // 10k, 15B: thousands, millions, billions, trillions
  si,     // 10k, 15G
  plain,  // 10000
};

// Members have initializers throughout so that a few of them can be named and the rest left out.
struct Axis {
  std::string label{};
  Scale scale = Scale::linear;
  Units units = Units::count;
  // Where it begins and ends. Unless given: so that the data fit, with zero where it is near and wherever bars stand.
  std::optional<double> low{}, high{};
  std::vector<std::string> categories{};  // the names of 0, 1, 2, ...: of bars on the x axis, of cells on either
};

enum class Kind {
  line,
  scatter,
  bar,
  histogram,  // x: where each bin begins and, last, where the last one ends; y: their heights, and anything
  heat,       // a cell of color z at each (x, y), which are whole numbers
};
// `automatic`: on scatter plots and on lines of few points a shape of the series' own, else none.
enum class Marker { automatic, none, circle, square, triangle, diamond, triangle_down, cross };
// `automatic`: solid, and other patterns once the colors are used up.
enum class Dash { automatic, solid, dashed, dotted, dash_dot };

// Values that are not finite, or not positive on a logarithmic axis, are gaps: a line is broken there.
struct Series {
  std::string label{};  // in the legend; empty: not there
  std::vector<double> x{}, y{}, z{};
  Kind kind = Kind::line;
  std::vector<double> low{},
      high{};                  // the spread around each y, or empty: a band on lines, whiskers on points and bars
  std::optional<int> color{};  // of the palette, from 0; else the series' place in its panel
  Marker marker = Marker::automatic;
  Dash dash = Dash::automatic;
  double width = 1.8;        // of a line, pixels
  double marker_size = 3.8;  // half the width of a marker; small ones have no outline
  double opacity = 1;
  bool values = false;  // write its number over each bar and in each cell, where there is room
};

// A thin line across the whole panel: a limit, a published number, the end of the warm-up.
struct Guide {
  enum class Along { x, y };
  Along along = Along::x;  // x: horizontal, at a value of y
  double at = 0;
  std::string label{};
};

struct Panel {
  std::string title{};
  Axis x{}, y{};
  std::vector<Series> series{};
  std::vector<Guide> guides{};
};

struct Figure {
  std::string title{};
  std::vector<Panel> panels{};  // row by row
  int columns = 0;              // of panels; 0: up to three side by side
  int width = 0, height = 0;    // pixels; 0: 760 x 480 for one panel, and what more of them need
};

// The SVG file. Throws Error(invalid_argument) if series have coordinates of different lengths or a range is empty.
[[nodiscard]] std::string svg(const Figure& figure);
// The same into a file, whole or not at all. Throws Error(io) too.
void write_svg(const Figure& figure, const std::string& path);

// The series' own y, smoothed as TensorBoard does: an exponential moving average over the points with weight `factor`
// (0: none, towards 1: more), without the pull towards zero at the start. Gaps stay gaps.
[[nodiscard]] std::vector<double> smoothed(const std::vector<double>& values, double factor);

}  // namespace qdelta::plot
