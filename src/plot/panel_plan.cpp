// Planning a panel. Each margin depends on texts, some of which depend on other margins; the order is
// top and bottom -> ticks of y -> left -> ticks of x -> right.
#include <algorithm>
#include <cmath>

#include "plot/panel.h"
#include "plot/panel_style.h"

namespace qdelta::plot {
namespace {

constexpr double kSlant = 0.6;  // radians, of names that are too wide to stand level
constexpr double kWidestCategory = 150;
constexpr double kNoteRoom = 15;

// Ticks in the number that fits: no label may come nearer to the next than a gap.
Ticks x_ticks(const Panel& panel, const Range& range, double width) {
  Ticks ticks;
  for (int at_most = std::clamp(static_cast<int>(width / 55), 2, 11); at_most >= 1; --at_most) {
    ticks = axis_ticks(panel.x.scale, range.low, range.high, at_most, panel.x.units);
    const AxisMap map(panel.x.scale, range, 0, width);
    bool fits = true;
    double end = -1e9;
    for (const Tick& tick : ticks.major) {
      const double half = text_width(tick.label, kTickText) / 2;
      fits = fits && map(tick.value) - half >= end;
      end = map(tick.value) + half + 12;
    }
    if (fits) break;
  }
  return ticks;
}

Ticks y_ticks(const Panel& panel, const Range& range, double height) {
  if (!panel.y.categories.empty()) {
    // As many names as there is room for, evenly.
    Ticks names;
    const std::size_t count = panel.y.categories.size();
    const auto room = static_cast<std::size_t>(std::max(1.0, height / kTickLine));
    const std::size_t step = (count + room - 1) / room;
    for (std::size_t i = 0; i < count; i += step)
      names.major.push_back({static_cast<double>(i), panel.y.categories[i]});
    return names;
  }
  const int at_most = std::clamp(static_cast<int>(height / 32), 2, 10);
  return axis_ticks(panel.y.scale, range.low, range.high, at_most, panel.y.units);
}

double widest_label(const Ticks& ticks) {
  double width = 0;
  for (const Tick& tick : ticks.major) width = std::max(width, text_width(tick.label, kTickText));
  return width;
}

// Chooses how the names of categories stand, for a plot of that width.
void plan_categories(PanelPlan& plan, const Panel& panel, double width) {
  plan.categories.clear();
  if (panel.x.categories.empty()) return;
  const double slot = width / (plan.ranges.x.high - plan.ranges.x.low);
  const double room = slot - 8;
  bool level = true;
  bool two_lines = true;
  std::vector<std::vector<std::string>> broken;
  for (const std::string& name : panel.x.categories) {
    level = level && text_width(name, kTickText) <= room;
    broken.push_back(wrapped(name, kTickText, Weight::normal, room));
    for (const std::string& line : broken.back()) two_lines = two_lines && line.find("…") == std::string::npos;
    two_lines = two_lines && broken.back().size() <= 2;
  }
  plan.category_text = level ? CategoryText::level : two_lines ? CategoryText::wrapped : CategoryText::slanted;
  if (plan.category_text == CategoryText::wrapped) {
    plan.categories = std::move(broken);
    return;
  }
  const double widest = level ? room : kWidestCategory;
  for (const std::string& name : panel.x.categories) plan.categories.push_back({shortened(name, kTickText, widest)});
}

double category_height(const PanelPlan& plan) {
  double height = kTickText;
  for (const std::vector<std::string>& lines : plan.categories) {
    if (plan.category_text == CategoryText::slanted) {
      height = std::max(height, text_width(lines[0], kTickText) * std::sin(kSlant) + kTickText);
    } else {
      height = std::max(height, static_cast<double>(lines.size()) * kTickLine - 2);
    }
  }
  return height;
}

// How far the first slanted name reaches to the left of its place.
double category_overhang(const PanelPlan& plan) {
  double overhang = 0;
  if (plan.category_text != CategoryText::slanted) return 0;
  for (const std::vector<std::string>& lines : plan.categories) {
    overhang = std::max(overhang, text_width(lines[0], kTickText) * std::cos(kSlant));
  }
  return overhang;
}

void plan_frame(PanelPlan& plan, const Panel& panel, const Margins& at_least) {
  Margins& m = plan.margins;
  const double provisional_width = plan.outer.width - std::max(at_least.left, 60.0) - std::max(at_least.right, kEdge);
  plan_categories(plan, panel, provisional_width);
  plan.title = panel.title.empty() ? std::vector<std::string>()
                                   : wrapped(panel.title, kTitleText, Weight::bold, provisional_width);

  const bool last_row_needed = !panel.x.label.empty() || !plan.x.note.empty();
  m.bottom = kTickLength + kTickGap + category_height(plan) + (last_row_needed ? kLabelGap + kLabelText : 0) + 8;
  m.top = kEdge + static_cast<double>(plan.title.size()) * kTitleLine +
          (plan.legend_rows > 0 ? plan.legend_rows * kLegendRow + 4 : 0);
  // The note of y stands above the axis, which is known only once there are ticks; their number hardly depends on it.
  const double rough_height = plan.outer.height - std::max(m.top, at_least.top) - std::max(m.bottom, at_least.bottom);
  plan.y = y_ticks(panel, plan.ranges.y, rough_height);
  if (!plan.y.note.empty()) m.top += kNoteRoom;
  m.top = std::max(m.top, at_least.top);
  m.bottom = std::max(m.bottom, at_least.bottom);

  plan.plot.y = plan.outer.y + m.top;
  plan.plot.height = std::max(plan.outer.height - m.top - m.bottom, 10.0);
  plan.y = y_ticks(panel, plan.ranges.y, plan.plot.height);
  m.left = kEdge + (panel.y.label.empty() ? 0 : kLabelText + kLabelGap) + widest_label(plan.y) + kTickLength + kTickGap;
  m.left = std::max({m.left, at_least.left, category_overhang(plan) - 10});
  const bool cells = std::any_of(panel.series.begin(), panel.series.end(),
                                 [](const Series& series) { return series.kind == Kind::heat; });
  m.right = std::max(cells ? kColorBarRoom : kEdge + 4, at_least.right);

  // Labels at the end of the x axis reach beyond it.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const double width = std::max(plan.outer.width - m.left - m.right, 10.0);
    plan.plot.x = plan.outer.x + m.left;
    plan.plot.width = width;
    if (!panel.x.categories.empty()) break;
    plan.x = x_ticks(panel, plan.ranges.x, width);
    if (plan.x.major.empty()) break;
    const AxisMap map(panel.x.scale, plan.ranges.x, 0, width);
    const Tick& last = plan.x.major.back();
    const double overflow = map(last.value) + text_width(last.label, kTickText) / 2 + 4 - width;
    if (overflow <= m.right) break;
    m.right = overflow;
  }
}

}  // namespace

PanelPlan plan_panel(const Panel& panel, const Rectangle& outer, bool own_legend, const Margins& at_least) {
  PanelPlan plan;
  plan.outer = outer;
  plan.ranges = ranges_of(panel);
  if (own_legend) plan.legend = legend_entries({&panel});
  const auto place = [&] {
    plan_frame(plan, panel, at_least);
    // The note of x, known only now, needs the row that a label would have.
    if (panel.x.label.empty() && !plan.x.note.empty()) plan_frame(plan, panel, at_least);
    const Plane plane(panel, plan.ranges, plan.plot);
    Occupancy occupancy(plan.plot);
    for (const SeriesShape& shape : shapes_of(panel, plane)) occupancy.add(shape);
    plan.guides = place_guides(panel, plane, occupancy);
    return occupancy;
  };
  const Occupancy occupancy = place();
  if (plan.legend.empty()) return plan;
  plan.legend_inside = free_place(plan.legend, occupancy, plan.plot);
  if (plan.legend_inside) return plan;
  plan.legend_rows = legend_rows(plan.legend, plan.plot.width);
  place();
  return plan;
}

}  // namespace qdelta::plot
