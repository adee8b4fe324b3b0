// A series as shapes on the plane of the drawing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plot/figure.h"
#include "plot/scale.h"
#include "plot/svg_writer.h"

namespace qdelta::plot {

// Where the axes of a panel put things.
struct Plane {
  Rectangle plot;
  Scale x_scale, y_scale;
  AxisMap x, y;

  Plane(const Panel& panel, const Ranges& ranges, const Rectangle& where);
};

struct Band {
  std::vector<Point> upper, lower;  // at the same x each
};
struct Bar {
  Rectangle box;
  double value = 0;
};

struct Cell {
  Rectangle box;
  double value = 0;
  double level = 0;  // of its color, from 0 to 1 over the values of the series
};

struct SeriesShape {
  std::vector<std::vector<Point>> lines;  // without gaps; one of a single point is a point alone between gaps
  std::vector<Band> bands;
  std::vector<Point> markers;
  std::vector<std::vector<Point>> whiskers;
  std::vector<Bar> bars;
  std::vector<Cell> cells;
};

// The look of a series: its color, and what of marker and dash was left open.
struct SeriesLook {
  std::string_view color;
  Marker marker = Marker::none;
  std::string_view dash;
};
[[nodiscard]] SeriesLook look_of(const Series& series, std::size_t place);

// The shapes of all series of a panel, in their order. Lines of far more points than there are pixels are reduced to
// the first, lowest, highest and last point of each column, which draws the same.
[[nodiscard]] std::vector<SeriesShape> shapes_of(const Panel& panel, const Plane& plane);

void draw_marker(SvgWriter& svg, const Point& at, Marker marker, double size, std::string_view color, double opacity);

}  // namespace qdelta::plot
