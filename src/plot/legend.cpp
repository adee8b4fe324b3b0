#include "plot/legend.h"

#include <algorithm>
#include <cmath>

#include "plot/palette.h"

namespace qdelta::plot {
namespace {

constexpr double kCell = 4;
constexpr double kSample = 22;         // width of the piece of line beside a label
constexpr double kGap = 7;             // between the two
constexpr double kPadding = 6;         // of the box
constexpr double kInset = 8;           // of the box from the axes
constexpr double kBetween = 20;        // two entries of a row
constexpr double kWidestInside = 0.6;  // of the plot; a larger box belongs outside
constexpr double kWidestEntry = 260;

std::string fitted(const std::string& label, double width) {
  return shortened(label, kLegendText, std::min(width - kSample - kGap, kWidestEntry));
}

double entry_width(const LegendEntry& entry) {
  return kSample + kGap + std::min(text_width(entry.label, kLegendText), kWidestEntry);
}

double widest(const std::vector<LegendEntry>& entries) {
  double width = 0;
  for (const LegendEntry& entry : entries) width = std::max(width, entry_width(entry));
  return width;
}

void draw_entry(SvgWriter& svg, const LegendEntry& entry, double x, double middle, double width) {
  const SeriesLook& look = entry.look;
  const double opacity = entry.series->opacity;
  if (entry.series->kind == Kind::bar) {
    svg.rectangle({x + kSample - 16, middle - 5, 12, 10}, look.color, opacity);
  } else if (entry.series->kind == Kind::line || entry.series->kind == Kind::histogram) {
    if (!entry.series->low.empty() || entry.series->kind == Kind::histogram)
      svg.rectangle({x, middle - 5, kSample, 10}, look.color, 0.2);
    svg.line({x, middle}, {x + kSample, middle}, {look.color, std::max(entry.series->width, 1.5), opacity, look.dash});
  }
  draw_marker(svg, {x + kSample / 2, middle}, look.marker, std::min(3.6, entry.series->marker_size + 1), look.color,
              opacity);
  svg.text({x + kSample + kGap, middle + 4.2}, fitted(entry.label, width), {.size = kLegendText, .color = kInk});
}

// How many columns of equal width fit; entries of one row need not be equal.
struct Rows {
  int columns = 1;
  int rows = 1;
  double column_width = 0;  // 0: one row, each as wide as it is
  double total_width = 0;
};
Rows arranged(const std::vector<LegendEntry>& entries, double width) {
  Rows result;
  double total = 0;
  for (const LegendEntry& entry : entries) total += entry_width(entry) + kBetween;
  total -= kBetween;
  const int count = static_cast<int>(entries.size());
  if (total <= width) return {count, 1, 0, total};
  const double column = std::min(widest(entries), width);
  result.columns = std::clamp(static_cast<int>((width + kBetween) / (column + kBetween)), 1, count);
  result.rows = (count + result.columns - 1) / result.columns;
  result.columns = (count + result.rows - 1) / result.rows;  // as even as they can be
  result.column_width = column;
  result.total_width = result.columns * (column + kBetween) - kBetween;
  return result;
}

// Names too long to be shown whole often differ only at their ends: what they share at the beginning goes first.
void drop_common_beginning(std::vector<LegendEntry>& entries) {
  if (entries.size() < 2) return;
  double width = 0;
  std::u32string common = decoded(entries.front().label);
  for (const LegendEntry& entry : entries) {
    width = std::max(width, text_width(entry.label, kLegendText));
    const std::u32string label = decoded(entry.label);
    const auto end = std::mismatch(common.begin(), common.end(), label.begin(), label.end()).first;
    common.erase(end, common.end());
  }
  if (width <= kWidestEntry) return;
  // Whole words only, so that the rest can be read.
  const std::size_t separator = common.find_last_of(U" -_/.,");
  if (separator == std::u32string::npos) return;
  for (LegendEntry& entry : entries) entry.label = "…" + encoded(decoded(entry.label).substr(separator + 1));
}

}  // namespace

std::vector<LegendEntry> legend_entries(const std::vector<const Panel*>& panels) {
  std::vector<LegendEntry> entries;
  for (const Panel* panel : panels) {
    for (std::size_t place = 0; place < panel->series.size(); ++place) {
      const Series& series = panel->series[place];
      if (series.label.empty()) continue;
      const bool known = std::any_of(entries.begin(), entries.end(),
                                     [&](const LegendEntry& entry) { return entry.series->label == series.label; });
      if (!known) entries.push_back({series.label, &series, look_of(series, place)});
    }
  }
  drop_common_beginning(entries);
  return entries;
}

Occupancy::Occupancy(const Rectangle& plot)
    : plot_(plot),
      columns_(static_cast<int>(std::ceil(std::max(plot.width, 1.0) / kCell))),
      rows_(static_cast<int>(std::ceil(std::max(plot.height, 1.0) / kCell))),
      taken_(static_cast<std::size_t>(columns_) * static_cast<std::size_t>(rows_), 0) {}

void Occupancy::mark(double x, double y) {
  const double column = std::floor((x - plot_.x) / kCell);
  const double row = std::floor((y - plot_.y) / kCell);
  if (column < 0 || row < 0 || column >= columns_ || row >= rows_) return;
  taken_[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(column)] = 1;
}

void Occupancy::mark_line(const Point& from, const Point& to) {
  const auto inside = clipped(from, to, plot_);
  if (!inside) return;
  const auto& [begin, end] = *inside;
  const double length = std::max(std::abs(end.x - begin.x), std::abs(end.y - begin.y));
  const int steps = std::max(1, static_cast<int>(std::ceil(length / (kCell / 2))));
  for (int i = 0; i <= steps; ++i) {
    const double t = static_cast<double>(i) / steps;
    mark(begin.x + t * (end.x - begin.x), begin.y + t * (end.y - begin.y));
  }
}

void Occupancy::add(const Rectangle& box) {
  const double top = std::max(box.y, plot_.y);
  const double bottom = std::min(box.bottom(), plot_.bottom());
  for (double y = top; y < bottom + kCell / 2; y += kCell / 2) {
    mark_line({box.x, std::min(y, bottom)}, {box.right(), std::min(y, bottom)});
  }
}

void Occupancy::add(const SeriesShape& shape) {
  for (const auto* group : {&shape.lines, &shape.whiskers}) {
    for (const std::vector<Point>& line : *group) {
      for (std::size_t i = 0; i < line.size(); ++i) mark_line(line[i > 0 ? i - 1 : 0], line[i]);
    }
  }
  for (const Band& band : shape.bands) {
    for (std::size_t i = 1; i < band.upper.size(); ++i) {
      const Point& a = band.upper[i - 1];
      const Point& b = band.upper[i];
      // Beyond the plot one column is like another.
      const double width = std::min(std::abs(b.x - a.x), 4 * plot_.width);
      const int steps = std::max(1, static_cast<int>(std::ceil(width / (kCell / 2))));
      for (int s = 0; s <= steps; ++s) {
        const double t = static_cast<double>(s) / steps;
        const double x = a.x + t * (b.x - a.x);
        mark_line({x, a.y + t * (b.y - a.y)}, {x, band.lower[i - 1].y + t * (band.lower[i].y - band.lower[i - 1].y)});
      }
    }
  }
  for (const Point& at : shape.markers) add(Rectangle{at.x - 4, at.y - 4, 8, 8});
  for (const Bar& bar : shape.bars) add(bar.box);
  for (const Cell& cell : shape.cells) add(cell.box);
}

bool Occupancy::is_free(const Rectangle& box) const {
  const int left = std::max(0, static_cast<int>((box.x - plot_.x) / kCell));
  const int right = std::min(columns_ - 1, static_cast<int>((box.right() - plot_.x) / kCell));
  const int top = std::max(0, static_cast<int>((box.y - plot_.y) / kCell));
  const int bottom = std::min(rows_ - 1, static_cast<int>((box.bottom() - plot_.y) / kCell));
  for (int row = top; row <= bottom; ++row) {
    for (int column = left; column <= right; ++column) {
      if (taken_[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_) +
                 static_cast<std::size_t>(column)] != 0) {
        return false;
      }
    }
  }
  return true;
}

std::optional<Rectangle> free_place(const std::vector<LegendEntry>& entries, const Occupancy& occupancy,
                                    const Rectangle& plot) {
  const double width = widest(entries) + 2 * kPadding;
  const double height = static_cast<double>(entries.size()) * kLegendRow + 2 * kPadding - 4;
  if (width > kWidestInside * plot.width || height > kWidestInside * plot.height) return std::nullopt;
  const double left = plot.x + kInset;
  const double center = plot.center_x() - width / 2;
  const double right = plot.right() - kInset - width;
  const double top = plot.y + kInset;
  const double middle = plot.center_y() - height / 2;
  const double bottom = plot.bottom() - kInset - height;
  for (const Point& at : {Point{right, top}, Point{left, top}, Point{right, bottom}, Point{left, bottom},
                          Point{center, top}, Point{center, bottom}, Point{right, middle}, Point{left, middle}}) {
    const Rectangle box{at.x, at.y, width, height};
    if (occupancy.is_free(box)) return box;
  }
  return std::nullopt;
}

void draw_legend_inside(SvgWriter& svg, const std::vector<LegendEntry>& entries, const Rectangle& box) {
  svg.rectangle(box, kPaper, 0.85);
  double middle = box.y + kPadding - 2 + kLegendRow / 2;
  for (const LegendEntry& entry : entries) {
    draw_entry(svg, entry, box.x + kPadding, middle, box.width - 2 * kPadding);
    middle += kLegendRow;
  }
}

int legend_rows(const std::vector<LegendEntry>& entries, double width) {
  return entries.empty() ? 0 : arranged(entries, width).rows;
}

void draw_legend_above(SvgWriter& svg, const std::vector<LegendEntry>& entries, const Rectangle& box) {
  const Rows arrangement = arranged(entries, box.width);
  const double left = box.x + std::max(0.0, (box.width - arrangement.total_width) / 2);
  double x = left;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto row = static_cast<double>(i / static_cast<std::size_t>(arrangement.columns));
    const auto column = static_cast<double>(i % static_cast<std::size_t>(arrangement.columns));
    const bool equal = arrangement.column_width > 0;
    const double width = equal ? arrangement.column_width : entry_width(entries[i]);
    if (equal) x = left + column * (width + kBetween);
    draw_entry(svg, entries[i], x, box.y + kLegendRow * (row + 0.5), width);
    if (!equal) x += width + kBetween;
  }
}

}  // namespace qdelta::plot
