// Guides: lines across the panel, with labels that look for a place beside the data.
#pragma once

#include <string>
#include <vector>

#include "plot/legend.h"
#include "plot/series_shape.h"

namespace qdelta::plot {

struct GuideShape {
  Point from, to;
  std::string label;
  Rectangle label_box;
  bool label_on_data = false;  // there was no free place
};

// Those that lie within the axes. What they take is added to `occupancy`.
[[nodiscard]] std::vector<GuideShape> place_guides(const Panel& panel, const Plane& plane, Occupancy& occupancy);

void draw_guide_lines(SvgWriter& svg, const std::vector<GuideShape>& guides);
void draw_guide_labels(SvgWriter& svg, const std::vector<GuideShape>& guides);

}  // namespace qdelta::plot
