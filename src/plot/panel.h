// One panel of a figure: the room its texts need, and its drawing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plot/figure.h"
#include "plot/guide.h"
#include "plot/legend.h"
#include "plot/scale.h"
#include "plot/svg_writer.h"
#include "plot/ticks.h"

namespace qdelta::plot {

struct Margins {
  double left = 0, right = 0, top = 0, bottom = 0;
};

// How the names of categories are set.
enum class CategoryText { level, wrapped, slanted };

struct PanelPlan {
  Rectangle outer;
  Margins margins;
  Rectangle plot;
  Ranges ranges;
  Ticks x, y;
  std::vector<std::string> title;
  CategoryText category_text = CategoryText::level;
  std::vector<std::vector<std::string>> categories;  // lines of each name
  std::vector<GuideShape> guides;
  std::vector<LegendEntry> legend;
  std::optional<Rectangle> legend_inside;  // else above the plot, if there are entries
  int legend_rows = 0;
};

// Panels of one column share the wider margins, so that their axes are in line: they are planned a second time with
// margins no smaller than those. `own_legend` is false where the figure has one for all.
[[nodiscard]] PanelPlan plan_panel(const Panel& panel, const Rectangle& outer, bool own_legend,
                                   const Margins& at_least = {});
void draw_panel(SvgWriter& svg, const Panel& panel, const PanelPlan& plan);

}  // namespace qdelta::plot
