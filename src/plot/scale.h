// From the data to an axis: which values it spans, and where each falls.
#pragma once

#include "plot/figure.h"

namespace qdelta::plot {

struct Range {
  double low = 0, high = 1;
};

// Whether an axis can show the value at all.
[[nodiscard]] bool shows(Scale scale, double value) noexcept;

// The ranges of a panel's axes. A point counts if both its coordinates can be shown. Throws Error(invalid_argument) for
// series and limits that make no sense.
struct Ranges {
  Range x, y;
  bool empty = true;  // no point at all: the ranges are made up
};
[[nodiscard]] Ranges ranges_of(const Panel& panel);

// Maps values to positions: `low` to `from`, `high` to `to`.
class AxisMap {
 public:
  AxisMap(Scale scale, const Range& range, double from, double to);
  // Values far outside stay within what drawings can hold.
  [[nodiscard]] double operator()(double value) const noexcept;

 private:
  Scale scale_;
  double from_;
  double origin_, factor_;
};

// The smallest distance between two places of the x axis that have bars; 1 where there are not two.
[[nodiscard]] double bar_spacing(const Panel& panel);

}  // namespace qdelta::plot
