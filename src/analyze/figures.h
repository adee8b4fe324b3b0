// Pieces that several analyses' figures are made of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "analyze/statistics.h"
#include "analyze/trace.h"
#include "plot/figure.h"

namespace qdelta::analyze {

inline constexpr int kBins = 60;
inline constexpr double kTail = 0.001;  // of the values on each side that a histogram does not show

using ByLayer = std::map<std::int64_t, std::vector<double>>;

// All values of all layers, one after the other.
[[nodiscard]] std::vector<double> together(const ByLayer& layers);

[[nodiscard]] std::string layer_label(std::int64_t layer);

// One outline per layer over the same bins; `low` and `high` override the limits taken from the values.
void add_histograms(plot::Panel& panel, const ByLayer& layers, const Limits& limits);

// A number for each head: rows are layers, columns are heads.
struct HeadValue {
  HeadName name;
  double value = 0;
};
[[nodiscard]] plot::Panel heat_panel(const std::string& title, const std::vector<HeadValue>& values);

// Of a figure with so many equal panels.
[[nodiscard]] int columns_for(std::size_t panels);

// "0.043", with as many digits as say something.
[[nodiscard]] std::string number(double value);
[[nodiscard]] std::string percent(double share);

}  // namespace qdelta::analyze
