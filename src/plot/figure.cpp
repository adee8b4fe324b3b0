#include "plot/figure.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/atomic_file.h"
#include "plot/legend.h"
#include "plot/palette.h"
#include "plot/panel.h"
#include "plot/panel_style.h"
#include "plot/svg_writer.h"

namespace qdelta::plot {
namespace {

constexpr int kMostSideBySide = 3;
constexpr double kFigureTitle = 16;
constexpr double kFigureTitleLine = 22;
constexpr int kSmallest = 80;  // pixels; below it there is no room for a single word

struct Grid {
  int columns = 1, rows = 1;
  double width = 0, height = 0;
};

Grid grid_of(const Figure& figure) {
  require(!figure.panels.empty(), "the figure has no panel");
  const int count = static_cast<int>(figure.panels.size());
  Grid grid;
  grid.columns = std::clamp(figure.columns > 0 ? figure.columns : std::min(count, kMostSideBySide), 1, count);
  grid.rows = (count + grid.columns - 1) / grid.columns;
  const bool one = count == 1;
  grid.width = figure.width > 0 ? figure.width : one ? 760 : std::max(760, grid.columns * 400);
  grid.height = figure.height > 0 ? figure.height : one ? 480 : grid.rows * 320 + 20;
  require(grid.width >= kSmallest && grid.height >= kSmallest,
          "a figure of {} x {} pixels has no room; {} each at least", grid.width, grid.height, kSmallest);
  return grid;
}

// One legend for all panels, where they show the same things.
bool share_legend(const Figure& figure) {
  if (figure.panels.size() < 2) return false;
  std::vector<LegendEntry> first;  // of the first panel that has any
  for (std::size_t i = 0; i < figure.panels.size() && first.empty(); ++i) first = legend_entries({&figure.panels[i]});
  if (first.empty()) return false;
  for (const Panel& panel : figure.panels) {
    const std::vector<LegendEntry> entries = legend_entries({&panel});
    for (const LegendEntry& entry : entries) {
      const auto same = std::find_if(first.begin(), first.end(), [&](const LegendEntry& other) {
        return other.series->label == entry.series->label && other.look.color == entry.look.color &&
               other.look.dash == entry.look.dash && other.look.marker == entry.look.marker &&
               other.series->kind == entry.series->kind;
      });
      if (same == first.end()) return false;
    }
  }
  return true;
}

std::string description_of(const Figure& figure) {
  if (!figure.title.empty()) return figure.title;
  const Panel& panel = figure.panels.front();
  if (!panel.title.empty()) return panel.title;
  return panel.y.label.empty() || panel.x.label.empty() ? "" : panel.y.label + " over " + panel.x.label;
}

}  // namespace

std::string svg(const Figure& figure) {
  const Grid grid = grid_of(figure);
  SvgWriter writer(grid.width, grid.height, description_of(figure));
  double top = 0;
  if (!figure.title.empty()) {
    top = kEdge;
    for (const std::string& line : wrapped(figure.title, kFigureTitle, Weight::bold, grid.width - 2 * kEdge)) {
      writer.text({grid.width / 2, top + kFigureTitle * 0.85}, line,
                  {.size = kFigureTitle, .color = kInk, .anchor = TextStyle::Anchor::middle, .weight = Weight::bold});
      top += kFigureTitleLine;
    }
    top -= 4;
  }
  const bool shared = share_legend(figure);
  if (shared) {
    std::vector<const Panel*> panels;
    for (const Panel& panel : figure.panels) panels.push_back(&panel);
    const std::vector<LegendEntry> entries = legend_entries(panels);
    const Rectangle box{kEdge, top + 8, grid.width - 2 * kEdge,
                        legend_rows(entries, grid.width - 2 * kEdge) * kLegendRow};
    draw_legend_above(writer, entries, box);
    top = box.bottom();
  }

  const auto outer_of = [&](std::size_t index) {
    const auto column = static_cast<double>(index % static_cast<std::size_t>(grid.columns));
    const auto row = static_cast<double>(index / static_cast<std::size_t>(grid.columns));
    const double width = grid.width / grid.columns;
    const double height = (grid.height - top) / grid.rows;
    return Rectangle{column * width, top + row * height, width, height};
  };
  // First what each panel needs, then the widest margins of its column and the highest of its row.
  std::vector<Margins> columns(static_cast<std::size_t>(grid.columns));
  std::vector<Margins> rows(static_cast<std::size_t>(grid.rows));
  const auto column_of = [&](std::size_t i) -> Margins& { return columns[i % columns.size()]; };
  const auto row_of = [&](std::size_t i) -> Margins& { return rows[i / columns.size()]; };
  for (std::size_t i = 0; i < figure.panels.size(); ++i) {
    const Margins margins = plan_panel(figure.panels[i], outer_of(i), !shared).margins;
    column_of(i).left = std::max(column_of(i).left, margins.left);
    column_of(i).right = std::max(column_of(i).right, margins.right);
    row_of(i).top = std::max(row_of(i).top, margins.top);
    row_of(i).bottom = std::max(row_of(i).bottom, margins.bottom);
  }
  for (std::size_t i = 0; i < figure.panels.size(); ++i) {
    const Margins at_least{column_of(i).left, column_of(i).right, row_of(i).top, row_of(i).bottom};
    draw_panel(writer, figure.panels[i], plan_panel(figure.panels[i], outer_of(i), !shared, at_least));
  }
  return writer.finished();
}

void write_svg(const Figure& figure, const std::string& path) { write_whole(path, svg(figure)); }

std::vector<double> smoothed(const std::vector<double>& values, double factor) {
  require(factor >= 0 && factor < 1, "the smoothing is {}; it must be at least 0 and less than 1", factor);
  std::vector<double> result;
  result.reserve(values.size());
  double average = 0;
  double weight = 0;  // of the values in the average; what is missing to 1 is the zero it began with
  for (const double value : values) {
    if (!std::isfinite(value)) {
      result.push_back(value);
      continue;
    }
    average = factor * average + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    result.push_back(average / weight);
  }
  return result;
}

}  // namespace qdelta::plot
