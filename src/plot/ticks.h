// Where an axis has its ticks, and what is written there.
#pragma once

#include <string>
#include <vector>

#include "plot/figure.h"

namespace qdelta::plot {

struct Tick {
  double value = 0;
  std::string label;
};

struct Ticks {
  std::vector<Tick> major;
  std::vector<double> minor;  // of logarithmic axes; no labels
  // What the labels leave out, to be written at the end of the axis: "×10⁻⁶" or "+ 3.14" or both.
  std::string note;
};

// At most `at_most` labelled ticks (though never fewer than a few hope for) from low to high: multiples of 1, 2, 2.5 or
// 5 times a power of ten.
[[nodiscard]] Ticks linear_ticks(double low, double high, int at_most, Units units);
// Powers of ten; over fewer than two of them also their multiples.
[[nodiscard]] Ticks log_ticks(double low, double high, int at_most, Units units);
[[nodiscard]] Ticks axis_ticks(Scale scale, double low, double high, int at_most, Units units);

// A number with its unit, as short as `digits` significant ones allow: "1.25M", "0.31", "−3", "2×10⁻⁷".
[[nodiscard]] std::string number_text(double value, int digits, Units units);

}  // namespace qdelta::plot
