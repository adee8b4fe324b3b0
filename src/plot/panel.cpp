#include "plot/panel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "plot/palette.h"
#include "plot/panel_style.h"

namespace qdelta::plot {
namespace {

using Anchor = TextStyle::Anchor;

constexpr double kBandOpacity = 0.18;
constexpr double kSlantDegrees = -0.6 * 180 / std::numbers::pi;
constexpr double kBaseline = 0.36;  // of the font size: from the middle of a line of digits down to its baseline

void draw_grid(SvgWriter& svg, const Panel& panel, const PanelPlan& plan, const Plane& plane) {
  const LineStyle style{kGridLine, 1, 1, ""};
  const Rectangle& plot = plan.plot;
  for (const Tick& tick : plan.y.major) {
    const double y = plane.y(tick.value);
    svg.line({plot.x, y}, {plot.right(), y}, style);
  }
  if (!panel.x.categories.empty()) return;
  for (const Tick& tick : plan.x.major) {
    const double x = plane.x(tick.value);
    svg.line({x, plot.y}, {x, plot.bottom()}, style);
  }
}

void draw_x_axis(SvgWriter& svg, const Panel& panel, const PanelPlan& plan, const Plane& plane) {
  const Rectangle& plot = plan.plot;
  const LineStyle style{kAxisLine, 1, 1, ""};
  svg.line({plot.x, plot.bottom()}, {plot.right(), plot.bottom()}, style);
  const double text_y = plot.bottom() + kTickLength + kTickGap + kTickText * 0.8;
  const TextStyle text{.size = kTickText, .color = kSoftInk, .anchor = Anchor::middle};
  for (const double value : plan.x.minor) {
    svg.line({plane.x(value), plot.bottom()}, {plane.x(value), plot.bottom() + kTickLength / 2}, style);
  }
  for (const Tick& tick : plan.x.major) {
    const double x = plane.x(tick.value);
    svg.line({x, plot.bottom()}, {x, plot.bottom() + kTickLength}, style);
    svg.text({x, text_y}, tick.label, text);
  }
  for (std::size_t i = 0; i < plan.categories.size(); ++i) {
    const double x = plane.x(static_cast<double>(i));
    if (x < plot.x || x > plot.right()) continue;
    if (plan.category_text == CategoryText::slanted) {
      TextStyle slanted = text;
      slanted.anchor = Anchor::end;
      slanted.turn = kSlantDegrees;
      svg.text({x + 4, plot.bottom() + kTickGap + 10}, plan.categories[i][0], slanted);
      continue;
    }
    for (std::size_t line = 0; line < plan.categories[i].size(); ++line) {
      svg.text({x, text_y + static_cast<double>(line) * kTickLine}, plan.categories[i][line], text);
    }
  }
  const double label_y = plan.outer.bottom() - 9;
  double center = plot.center_x();
  double room = plot.width;
  if (!plan.x.note.empty()) {
    const double note = text_width(plan.x.note, kSmallText) + 12;
    svg.text({plot.right(), label_y}, plan.x.note, {.size = kSmallText, .color = kSoftInk, .anchor = Anchor::end});
    room -= note;
    // The label stays in the middle of the axis as long as it does not reach the note.
    if (text_width(panel.x.label, kLabelText) > plot.width - 2 * note) center = plot.x + room / 2;
  }
  if (!panel.x.label.empty() && room > 2 * kLabelText) {
    svg.text({center, label_y}, shortened(panel.x.label, kLabelText, room),
             {.size = kLabelText, .color = kInk, .anchor = Anchor::middle});
  }
}

void draw_y_axis(SvgWriter& svg, const Panel& panel, const PanelPlan& plan, const Plane& plane) {
  const Rectangle& plot = plan.plot;
  const LineStyle style{kAxisLine, 1, 1, ""};
  svg.line({plot.x, plot.y}, {plot.x, plot.bottom()}, style);
  for (const double value : plan.y.minor) {
    svg.line({plot.x - kTickLength / 2, plane.y(value)}, {plot.x, plane.y(value)}, style);
  }
  double widest = 0;
  for (const Tick& tick : plan.y.major) {
    const double y = plane.y(tick.value);
    svg.line({plot.x - kTickLength, y}, {plot.x, y}, style);
    svg.text({plot.x - kTickLength - kTickGap, y + kBaseline * kTickText}, tick.label,
             {.size = kTickText, .color = kSoftInk, .anchor = Anchor::end});
    widest = std::max(widest, text_width(tick.label, kTickText));
  }
  if (!plan.y.note.empty()) {
    svg.text({plot.x - kTickLength, plot.y - 7}, plan.y.note, {.size = kSmallText, .color = kSoftInk});
  }
  if (!panel.y.label.empty()) {
    const double x = plot.x - kTickLength - kTickGap - widest - kLabelGap;
    svg.text({x, plot.center_y()}, shortened(panel.y.label, kLabelText, plot.height),
             {.size = kLabelText, .color = kInk, .anchor = Anchor::middle, .turn = -90});
  }
}

void draw_bar_values(SvgWriter& svg, const Panel& panel, const SeriesShape& shape) {
  for (const Bar& bar : shape.bars) {
    const std::string text = number_text(bar.value, 3, panel.y.units);
    if (text_width(text, kSmallText) > bar.box.width + 8) continue;
    const double y = bar.value < 0 ? bar.box.bottom() + kSmallText + 1 : bar.box.y - 4;
    svg.text({bar.box.center_x(), y}, text, {.size = kSmallText, .color = kSoftInk, .anchor = Anchor::middle});
  }
}

std::string heat_color(double level) {
  const double at = std::clamp(level, 0.0, 1.0) * static_cast<double>(kHeat.size() - 1);
  const std::size_t below = std::min(static_cast<std::size_t>(at), kHeat.size() - 2);
  const double part = at - static_cast<double>(below);
  std::string color = "#";
  for (std::size_t c = 0; c < 3; ++c) {
    color += fmt::format("{:02x}", std::lround(kHeat[below][c] + part * (kHeat[below + 1][c] - kHeat[below][c])));
  }
  return color;
}

void draw_cells(SvgWriter& svg, const Series& series, const SeriesShape& shape) {
  for (const Cell& cell : shape.cells) {
    svg.rectangle(cell.box, heat_color(cell.level), 1, kPaper);
    const std::string text = number_text(cell.value, 3, Units::count);
    const bool fits = text_width(text, kSmallText) + 4 <= cell.box.width && kSmallText + 3 <= cell.box.height;
    if (!series.values || !fits) continue;
    svg.text({cell.box.center_x(), cell.box.center_y() + kBaseline * kSmallText}, text,
             {.size = kSmallText, .color = cell.level >= kDarkHeat ? kPaper : kInk, .anchor = Anchor::middle});
  }
}

// What the colors of a heat map mean, beside it.
void draw_color_bar(SvgWriter& svg, const SeriesShape& shape, const Rectangle& plot) {
  if (shape.cells.empty()) return;
  const auto [low, high] = std::minmax_element(shape.cells.begin(), shape.cells.end(),
                                               [](const Cell& a, const Cell& b) { return a.value < b.value; });
  constexpr int kPieces = 40;
  const double height = plot.height / kPieces;
  const double x = plot.right() + kColorBarGap;
  for (int i = 0; i < kPieces && high->value > low->value; ++i) {
    svg.rectangle({x, plot.bottom() - (i + 1) * height, kColorBarWidth, height + 0.5}, heat_color((i + 0.5) / kPieces));
  }
  const TextStyle text{.size = kSmallText, .color = kSoftInk};
  if (high->value > low->value) {
    svg.text({x + kColorBarWidth + 4, plot.y + 0.8 * kSmallText}, number_text(high->value, 3, Units::count), text);
  }
  svg.text({x + (high->value > low->value ? kColorBarWidth + 4 : 0), plot.bottom()},
           number_text(low->value, 3, Units::count), text);
}

void draw_series(SvgWriter& svg, const Series& series, const SeriesShape& shape, const SeriesLook& look) {
  for (const Bar& bar : shape.bars) svg.rectangle(bar.box, look.color, series.opacity);
  draw_cells(svg, series, shape);
  svg.lines(shape.lines, {look.color, series.width, series.opacity, look.dash});
  for (const std::vector<Point>& line : shape.lines) {
    if (line.size() == 1 && look.marker == Marker::none) {
      svg.circle(line[0], std::max(1.5, series.width * 0.8), look.color, series.opacity);
    }
  }
  svg.lines(shape.whiskers, {shape.bars.empty() ? look.color : kInk, 1.2, 1, ""});
}

}  // namespace

void draw_panel(SvgWriter& svg, const Panel& panel, const PanelPlan& plan) {
  const Plane plane(panel, plan.ranges, plan.plot);
  const std::vector<SeriesShape> shapes = shapes_of(panel, plane);
  const Rectangle& plot = plan.plot;

  double y = plan.outer.y + kEdge;
  for (const std::string& line : plan.title) {
    svg.text({plot.center_x(), y + kTitleText * 0.85}, line,
             {.size = kTitleText, .color = kInk, .anchor = Anchor::middle, .weight = Weight::bold});
    y += kTitleLine;
  }
  if (!plan.legend.empty() && !plan.legend_inside) {
    draw_legend_above(svg, plan.legend, {plot.x, y, plot.width, plan.legend_rows * kLegendRow});
  }

  draw_grid(svg, panel, plan, plane);
  // Two pixels of slack, so that a line along the edge keeps its width.
  svg.clip_begin({plot.x - 2, plot.y - 2, plot.width + 4, plot.height + 4});
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const Band& band : shapes[i].bands) {
      std::vector<Point> outline = band.upper;
      outline.insert(outline.end(), band.lower.rbegin(), band.lower.rend());
      svg.polygon(outline, look_of(panel.series[i], i).color, kBandOpacity);
    }
  }
  draw_guide_lines(svg, plan.guides);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    draw_series(svg, panel.series[i], shapes[i], look_of(panel.series[i], i));
  }
  svg.clip_end();
  const bool around_zero = plan.ranges.y.low < 0 && plan.ranges.y.high > 0;
  const bool bars = std::any_of(shapes.begin(), shapes.end(), [](const SeriesShape& s) { return !s.bars.empty(); });
  if (bars && around_zero && panel.y.scale == Scale::linear) {
    svg.line({plot.x, plane.y(0)}, {plot.right(), plane.y(0)}, {kAxisLine, 1, 1, ""});
  }
  draw_x_axis(svg, panel, plan, plane);
  draw_y_axis(svg, panel, plan, plane);
  // A marker on the edge is drawn whole.
  const Rectangle with_edge{plot.x - 1, plot.y - 1, plot.width + 2, plot.height + 2};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const SeriesLook look = look_of(panel.series[i], i);
    for (const Point& at : shapes[i].markers) {
      if (with_edge.contains(at))
        draw_marker(svg, at, look.marker, panel.series[i].marker_size, look.color, panel.series[i].opacity);
    }
    if (panel.series[i].values) draw_bar_values(svg, panel, shapes[i]);
    draw_color_bar(svg, shapes[i], plot);
  }
  draw_guide_labels(svg, plan.guides);
  if (plan.legend_inside) draw_legend_inside(svg, plan.legend, *plan.legend_inside);
  if (plan.ranges.empty) {
    svg.text({plot.center_x(), plot.center_y()}, "no data",
             {.size = kLabelText, .color = kSoftInk, .anchor = Anchor::middle});
  }
}

}  // namespace qdelta::plot
