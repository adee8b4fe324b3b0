#include "plot/series_shape.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "plot/palette.h"

namespace qdelta::plot {
namespace {

constexpr std::size_t kMostPointsWithMarkers = 24;
constexpr double kBarGroup = 0.8;      // of the distance between two groups
constexpr double kPointsPerPixel = 4;  // more are reduced
constexpr double kWhiskerCap = 3;      // pixels to each side
constexpr double kSmallestOutlined = 2.5;

constexpr std::array<Marker, 6> kMarkers = {Marker::circle,  Marker::square,        Marker::triangle,
                                            Marker::diamond, Marker::triangle_down, Marker::cross};
constexpr std::array<std::string_view, 4> kDashes = {"", "7 4", "2 3", "8 3 2 3"};  // in the order of Dash from solid

bool rising(const std::vector<Point>& points) {
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (points[i].x < points[i - 1].x) return false;
  }
  return true;
}

// First, lowest, highest and last of every pixel column, in the order they came.
std::vector<Point> reduced(const std::vector<Point>& points) {
  std::vector<Point> kept;
  for (std::size_t begin = 0; begin < points.size();) {
    const double column = std::floor(points[begin].x);
    std::size_t end = begin;
    std::size_t lowest = begin;
    std::size_t highest = begin;
    for (; end < points.size() && std::floor(points[end].x) == column; ++end) {
      if (points[end].y < points[lowest].y) lowest = end;
      if (points[end].y > points[highest].y) highest = end;
    }
    std::array<std::size_t, 4> chosen = {begin, lowest, highest, end - 1};
    std::sort(chosen.begin(), chosen.end());
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (i == 0 || chosen[i] != chosen[i - 1]) kept.push_back(points[chosen[i]]);
    }
    begin = end;
  }
  return kept;
}

Band reduced(const Band& band) {
  Band kept;
  for (std::size_t begin = 0; begin < band.upper.size();) {
    const double column = std::floor(band.upper[begin].x);
    std::size_t end = begin;
    double high = band.upper[begin].y;
    double low = band.lower[begin].y;
    for (; end < band.upper.size() && std::floor(band.upper[end].x) == column; ++end) {
      high = std::min(high, band.upper[end].y);  // y grows downwards here
      low = std::max(low, band.lower[end].y);
    }
    kept.upper.push_back({band.upper[begin].x, high});
    kept.lower.push_back({band.upper[begin].x, low});
    begin = end;
  }
  return kept;
}

bool is_dense(std::size_t points, const Plane& plane) {
  return static_cast<double>(points) > kPointsPerPixel * plane.plot.width;
}

void add_line(SeriesShape& shape, const Series& series, const Plane& plane) {
  std::vector<Point> piece;
  Band band;
  const auto end_piece = [&] {
    if (piece.empty()) return;
    shape.lines.push_back(is_dense(piece.size(), plane) && rising(piece) ? reduced(piece) : piece);
    piece.clear();
  };
  const auto end_band = [&] {
    if (band.upper.size() > 1) {
      shape.bands.push_back(is_dense(band.upper.size(), plane) && rising(band.upper) ? reduced(band) : band);
    }
    band = {};
  };
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const bool seen = shows(plane.x_scale, series.x[i]);
    const double x = seen ? plane.x(series.x[i]) : 0;
    if (seen && shows(plane.y_scale, series.y[i])) {
      piece.push_back({x, plane.y(series.y[i])});
    } else {
      end_piece();
    }
    if (series.low.empty()) continue;
    if (seen && shows(plane.y_scale, series.low[i]) && shows(plane.y_scale, series.high[i])) {
      band.upper.push_back({x, plane.y(series.high[i])});
      band.lower.push_back({x, plane.y(series.low[i])});
    } else {
      end_band();
    }
  }
  end_piece();
  end_band();
}

void add_whisker(SeriesShape& shape, const Series& series, std::size_t i, double x, const Plane& plane) {
  if (series.low.empty() || !shows(plane.y_scale, series.low[i]) || !shows(plane.y_scale, series.high[i])) return;
  const double low = plane.y(series.low[i]);
  const double high = plane.y(series.high[i]);
  shape.whiskers.push_back({{x, low}, {x, high}});
  for (const double end : {low, high}) shape.whiskers.push_back({{x - kWhiskerCap, end}, {x + kWhiskerCap, end}});
}

// Bars of one place stand side by side: this is number `rank` of `count`.
void add_bars(SeriesShape& shape, const Series& series, const Plane& plane, double spacing, int rank, int count) {
  const double base = plane.y_scale == Scale::log ? plane.plot.bottom() : plane.y(0);
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!shows(plane.x_scale, series.x[i]) || !shows(plane.y_scale, series.y[i])) continue;
    const double width = spacing * kBarGroup / count;
    const double left = series.x[i] - spacing * kBarGroup / 2 + width * rank;
    const double from = plane.x(left);
    const double to = plane.x(left + width);
    const double gap = to - from > 8 ? 1 : 0;
    const double y = plane.y(series.y[i]);
    shape.bars.push_back({{from + gap / 2, std::min(y, base), to - from - gap, std::abs(base - y)}, series.y[i]});
    add_whisker(shape, series, i, (from + to) / 2, plane);
  }
}

// The outline of the bins, from the base line up and down to it again, and the area under it.
void add_histogram(SeriesShape& shape, const Series& series, const Plane& plane) {
  const double base = plane.y_scale == Scale::log ? plane.plot.bottom() : plane.y(0);
  std::vector<Point> outline;
  for (std::size_t i = 0; i + 1 < series.x.size(); ++i) {
    if (!shows(plane.x_scale, series.x[i]) || !shows(plane.x_scale, series.x[i + 1])) continue;
    const double from = plane.x(series.x[i]);
    const double to = plane.x(series.x[i + 1]);
    const double y = shows(plane.y_scale, series.y[i]) ? plane.y(series.y[i]) : base;
    if (outline.empty()) outline.push_back({from, base});
    outline.push_back({from, y});
    outline.push_back({to, y});
  }
  if (outline.empty()) return;
  outline.push_back({outline.back().x, base});
  Band area{outline, outline};
  for (Point& point : area.lower) point.y = base;
  shape.lines.push_back(std::move(outline));
  shape.bands.push_back(std::move(area));
}

void add_cells(SeriesShape& shape, const Series& series, const Plane& plane) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : series.z) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  for (std::size_t i = 0; i < series.z.size(); ++i) {
    if (!std::isfinite(series.z[i])) continue;
    const double left = plane.x(series.x[i] - 0.5);
    const double top = plane.y(series.y[i] + 0.5);
    const Rectangle box{left, top, plane.x(series.x[i] + 0.5) - left, plane.y(series.y[i] - 0.5) - top};
    shape.cells.push_back({box, series.z[i], high > low ? (series.z[i] - low) / (high - low) : 0.5});
  }
}

}  // namespace

Plane::Plane(const Panel& panel, const Ranges& ranges, const Rectangle& where)
    : plot(where),
      x_scale(panel.x.scale),
      y_scale(panel.y.scale),
      x(panel.x.scale, ranges.x, where.x, where.right()),
      y(panel.y.scale, ranges.y, where.bottom(), where.y) {}

SeriesLook look_of(const Series& series, std::size_t place) {
  const std::size_t index = series.color ? static_cast<std::size_t>(std::max(*series.color, 0)) : place;
  SeriesLook look;
  look.color = kPalette[index % kPalette.size()];
  look.marker = series.marker;
  if (series.marker == Marker::automatic) {
    const bool marked =
        series.kind == Kind::scatter || (series.kind == Kind::line && series.y.size() <= kMostPointsWithMarkers);
    look.marker = marked ? kMarkers[index % kMarkers.size()] : Marker::none;
  }
  const std::size_t dash =
      series.dash == Dash::automatic ? index / kPalette.size() : static_cast<std::size_t>(series.dash) - 1;
  look.dash = kDashes[dash % kDashes.size()];
  return look;
}

std::vector<SeriesShape> shapes_of(const Panel& panel, const Plane& plane) {
  int bar_series = 0;
  for (const Series& series : panel.series) bar_series += series.kind == Kind::bar ? 1 : 0;
  const double spacing = bar_series > 0 ? bar_spacing(panel) : 1;
  int rank = 0;
  std::vector<SeriesShape> shapes;
  for (std::size_t place = 0; place < panel.series.size(); ++place) {
    const Series& series = panel.series[place];
    SeriesShape& shape = shapes.emplace_back();
    if (series.kind == Kind::bar) {
      add_bars(shape, series, plane, spacing, rank++, bar_series);
      continue;
    }
    if (series.kind == Kind::histogram) add_histogram(shape, series, plane);
    if (series.kind == Kind::heat) add_cells(shape, series, plane);
    if (series.kind == Kind::histogram || series.kind == Kind::heat) continue;
    if (series.kind == Kind::line) add_line(shape, series, plane);
    if (series.kind == Kind::line && look_of(series, place).marker == Marker::none) continue;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!shows(plane.x_scale, series.x[i]) || !shows(plane.y_scale, series.y[i])) continue;
      const Point at{plane.x(series.x[i]), plane.y(series.y[i])};
      shape.markers.push_back(at);
      if (series.kind == Kind::scatter) add_whisker(shape, series, i, at.x, plane);
    }
  }
  return shapes;
}

void draw_marker(SvgWriter& svg, const Point& at, Marker marker, double size, std::string_view color, double opacity) {
  const double r = size;
  const std::string_view outline = size < kSmallestOutlined ? std::string_view() : kPaper;
  switch (marker) {
    case Marker::automatic:
    case Marker::none:
      return;
    case Marker::circle:
      return svg.circle(at, r, color, opacity, outline);
    case Marker::square:
      return svg.rectangle({at.x - 0.88 * r, at.y - 0.88 * r, 1.76 * r, 1.76 * r}, color, opacity, outline);
    case Marker::triangle:
      return svg.polygon({{at.x, at.y - 1.2 * r}, {at.x + 1.1 * r, at.y + 0.8 * r}, {at.x - 1.1 * r, at.y + 0.8 * r}},
                         color, opacity, outline);
    case Marker::triangle_down:
      return svg.polygon({{at.x, at.y + 1.2 * r}, {at.x + 1.1 * r, at.y - 0.8 * r}, {at.x - 1.1 * r, at.y - 0.8 * r}},
                         color, opacity, outline);
    case Marker::diamond:
      return svg.polygon(
          {{at.x, at.y - 1.3 * r}, {at.x + 1.1 * r, at.y}, {at.x, at.y + 1.3 * r}, {at.x - 1.1 * r, at.y}}, color,
          opacity, outline);
    case Marker::cross: {
      const double c = 0.85 * r;
      return svg.lines({{{at.x - c, at.y - c}, {at.x + c, at.y + c}}, {{at.x - c, at.y + c}, {at.x + c, at.y - c}}},
                       {color, 1.8, opacity, ""});
    }
  }
}

}  // namespace qdelta::plot
