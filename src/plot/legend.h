// The legend: its entries, and a place for it where no data are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plot/series_shape.h"

namespace qdelta::plot {

inline constexpr double kLegendText = 12;
inline constexpr double kLegendRow = 18;

struct LegendEntry {
  std::string label;
  const Series* series = nullptr;
  SeriesLook look;
};
// Of the series with labels; the first of those with the same label.
[[nodiscard]] std::vector<LegendEntry> legend_entries(const std::vector<const Panel*>& panels);

// Cells of a few pixels that data cover.
class Occupancy {
 public:
  explicit Occupancy(const Rectangle& plot);
  void add(const SeriesShape& shape);
  void add(const Rectangle& box);
  [[nodiscard]] bool is_free(const Rectangle& box) const;

 private:
  void mark(double x, double y);
  void mark_line(const Point& from, const Point& to);

  Rectangle plot_;
  int columns_, rows_;
  std::vector<char> taken_;
};

// One entry per line, in a corner or at the middle of an edge of the plot; nullopt where all of those have data.
[[nodiscard]] std::optional<Rectangle> free_place(const std::vector<LegendEntry>& entries, const Occupancy& occupancy,
                                                  const Rectangle& plot);
void draw_legend_inside(SvgWriter& svg, const std::vector<LegendEntry>& entries, const Rectangle& box);

// Side by side in as few rows as the width allows.
[[nodiscard]] int legend_rows(const std::vector<LegendEntry>& entries, double width);
void draw_legend_above(SvgWriter& svg, const std::vector<LegendEntry>& entries, const Rectangle& box);

}  // namespace qdelta::plot
