#include "plot/guide.h"

#include <algorithm>

#include "plot/palette.h"
#include "plot/panel_style.h"

namespace qdelta::plot {
namespace {

constexpr double kWidestLabel = 0.6;  // of the plot

std::vector<Rectangle> level_places(const Rectangle& plot, double y, double width, double height) {
  std::vector<Rectangle> places;
  for (const double share : {1.0, 0.0, 0.5, 0.75, 0.25}) {
    const double x = plot.x + 2 + share * (plot.width - width - 2);
    if (y - height >= plot.y) places.push_back({x, y - height, width, height});
    if (y + 1 + height <= plot.bottom()) places.push_back({x, y + 1, width, height});
  }
  return places;
}

std::vector<Rectangle> upright_places(const Rectangle& plot, double x, double width, double height) {
  std::vector<Rectangle> places;
  for (const double share : {0.0, 1.0, 0.5, 0.25, 0.75}) {
    const double y = plot.y + share * (plot.height - height);
    if (x + 3 + width <= plot.right()) places.push_back({x + 3, y, width, height});
    if (x - 3 - width >= plot.x) places.push_back({x - 3 - width, y, width, height});
  }
  return places;
}

// Whether the line of a guide, which is level or upright, goes through the box. Along its edge is beside it.
bool crosses(const GuideShape& guide, const Rectangle& box) {
  return guide.from.x < box.right() && guide.to.x > box.x && guide.from.y < box.bottom() && guide.to.y > box.y;
}

void place_label(GuideShape& shape, const std::vector<Rectangle>& places, const std::vector<GuideShape>& all,
                 const Occupancy& occupancy) {
  if (shape.label.empty() || places.empty()) {
    shape.label.clear();
    return;
  }
  for (const Rectangle& place : places) {
    shape.label_box = place;
    const bool crossed = std::any_of(all.begin(), all.end(), [&](const GuideShape& g) { return crosses(g, place); });
    if (!crossed && occupancy.is_free(place)) return;
  }
  shape.label_box = places.front();
  shape.label_on_data = true;
}

}  // namespace

std::vector<GuideShape> place_guides(const Panel& panel, const Plane& plane, Occupancy& occupancy) {
  std::vector<GuideShape> shapes;
  const Rectangle& plot = plane.plot;
  for (const Guide& guide : panel.guides) {
    const bool level = guide.along == Guide::Along::x;
    if (!shows(level ? plane.y_scale : plane.x_scale, guide.at)) continue;
    GuideShape shape;
    const double at = level ? plane.y(guide.at) : plane.x(guide.at);
    shape.from = level ? Point{plot.x, at} : Point{at, plot.y};
    shape.to = level ? Point{plot.right(), at} : Point{at, plot.bottom()};
    if (!plot.contains(shape.from) || !plot.contains(shape.to)) continue;
    shape.label = shortened(guide.label, kSmallText, plot.width * kWidestLabel);
    shapes.push_back(std::move(shape));
  }
  for (GuideShape& shape : shapes) {
    const double width = text_width(shape.label, kSmallText) + 4;
    const double height = kSmallText + 3;
    const bool level = shape.from.y == shape.to.y;
    place_label(
        shape,
        level ? level_places(plot, shape.from.y, width, height) : upright_places(plot, shape.from.x, width, height),
        shapes, occupancy);
    if (!shape.label.empty()) occupancy.add(shape.label_box);  // the next label keeps away from it
  }
  for (const GuideShape& shape : shapes) {
    occupancy.add(Rectangle{shape.from.x, shape.from.y, shape.to.x - shape.from.x, shape.to.y - shape.from.y});
  }
  return shapes;
}

void draw_guide_lines(SvgWriter& svg, const std::vector<GuideShape>& guides) {
  for (const GuideShape& guide : guides) svg.line(guide.from, guide.to, {kGuideLine, 1.2, 1, "5 3"});
}

void draw_guide_labels(SvgWriter& svg, const std::vector<GuideShape>& guides) {
  for (const GuideShape& guide : guides) {
    if (guide.label.empty()) continue;
    if (guide.label_on_data) svg.rectangle(guide.label_box, kPaper, 0.75);
    svg.text({guide.label_box.x + 2, guide.label_box.bottom() - 3.5}, guide.label,
             {.size = kSmallText, .color = kSoftInk});
  }
}

}  // namespace qdelta::plot
