#include "analyze/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace qdelta::analyze {

std::vector<double> together(const ByLayer& layers) {
  std::vector<double> all;
  for (const auto& [layer, values] : layers) all.insert(all.end(), values.begin(), values.end());
  return all;
}

std::string layer_label(std::int64_t layer) { return fmt::format("layer {}", layer); }

void add_histograms(plot::Panel& panel, const ByLayer& layers, const Limits& limits) {
  for (const auto& [layer, values] : layers) {
    Histogram histogram(limits.low, limits.high, kBins);
    histogram.add(values);
    plot::Series series{.label = layer_label(layer), .kind = plot::Kind::histogram};
    series.x = histogram.edges;
    for (std::size_t bin = 0; bin < histogram.counts.size(); ++bin) series.y.push_back(histogram.density(bin));
    series.y.push_back(0);
    panel.series.push_back(std::move(series));
  }
  panel.y.label = "density";
}

plot::Panel heat_panel(const std::string& title, const std::vector<HeadValue>& values) {
  plot::Panel panel;
  panel.title = title;
  panel.x.label = "head";
  panel.y.label = "layer";
  std::set<std::int64_t> layers;
  std::set<std::int64_t> heads;
  for (const HeadValue& value : values) {
    layers.insert(value.name.layer);
    heads.insert(value.name.head);
  }
  for (const std::int64_t layer : layers) panel.y.categories.push_back(std::to_string(layer));
  for (const std::int64_t head : heads) panel.x.categories.push_back(std::to_string(head));
  plot::Series cells{.kind = plot::Kind::heat, .values = true};
  for (const HeadValue& value : values) {
    cells.x.push_back(static_cast<double>(std::distance(heads.begin(), heads.find(value.name.head))));
    cells.y.push_back(static_cast<double>(std::distance(layers.begin(), layers.find(value.name.layer))));
    cells.z.push_back(value.value);
  }
  panel.series.push_back(std::move(cells));
  return panel;
}

int columns_for(std::size_t panels) {
  if (panels == 4) return 2;
  return static_cast<int>(std::min<std::size_t>(panels, 3));
}

std::string number(double value) {
  if (!std::isfinite(value)) return "none";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.2e}", value);
  return fmt::format("{:.4g}", value);
}

// Nearly all is not all: more digits where they matter.
std::string percent(double share) {
  if (share == 1 || share == 0) return fmt::format("{:.0f} %", 100 * share);
  const bool near_end = share > 0.99 || share < 0.01;
  return near_end ? fmt::format("{:.4f} %", 100 * share) : fmt::format("{:.1f} %", 100 * share);
}

}  // namespace qdelta::analyze
