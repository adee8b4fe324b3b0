// Points and rectangles of a drawing; y grows downwards.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

namespace qdelta::plot {

struct Point {
  double x = 0, y = 0;
};

struct Rectangle {
  double x = 0, y = 0, width = 0, height = 0;

  [[nodiscard]] double right() const noexcept { return x + width; }
  [[nodiscard]] double bottom() const noexcept { return y + height; }
  [[nodiscard]] double center_x() const noexcept { return x + width / 2; }
  [[nodiscard]] double center_y() const noexcept { return y + height / 2; }
  [[nodiscard]] bool contains(const Point& point) const noexcept {
    return point.x >= x && point.x <= right() && point.y >= y && point.y <= bottom();
  }
};

// The part of a line that lies in the box: with limits given by hand, lines may go far beyond the axes.
[[nodiscard]] inline std::optional<std::pair<Point, Point>> clipped(const Point& from, const Point& to,
                                                                    const Rectangle& box) {
  double t0 = 0;
  double t1 = 1;
  const auto clip = [&](double start, double change, double low, double high) {
    if (change == 0) return start >= low && start <= high;
    t0 = std::max(t0, ((change > 0 ? low : high) - start) / change);
    t1 = std::min(t1, ((change > 0 ? high : low) - start) / change);
    return t0 <= t1;
  };
  const double dx = to.x - from.x;
  const double dy = to.y - from.y;
  if (!clip(from.x, dx, box.x, box.right()) || !clip(from.y, dy, box.y, box.bottom())) return std::nullopt;
  return std::pair{Point{from.x + t0 * dx, from.y + t0 * dy}, Point{from.x + t1 * dx, from.y + t1 * dy}};
}

}  // namespace qdelta::plot
