#include "plot/scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "io/untrusted_text.h"

namespace qdelta::plot {
namespace {

constexpr double kLargestLogarithmic = 1e300;    // leaves room for sums and differences
constexpr double kSmallestLogarithmic = 1e-300;  // on logarithmic axes
constexpr double kFinestSpan = 1e-11;            // of the value itself: below it rounding would be drawn
constexpr double kNearZero = 0.12;               // of the span: nearer than this, an axis begins at zero
constexpr double kFarthestPosition = 1e5;

// The smallest and the largest of what it is given.
struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  [[nodiscard]] bool empty() const { return low > high; }
};

void check(const Series& series) {
  const std::string name = series.label.empty() ? "a series without a label" : "the series " + shown(series.label);
  require(series.x.size() == series.y.size(), "{} has {} values of x and {} of y; it needs as many of each", name,
          series.x.size(), series.y.size());
  for (const auto* spread : {&series.low, &series.high}) {
    require(spread->empty() || spread->size() == series.y.size(), "{} has {} values of y and a spread of {}", name,
            series.y.size(), spread->size());
  }
  require(series.low.empty() == series.high.empty(), "{} has one side of a spread without the other", name);
  require(series.kind != Kind::heat || series.z.size() == series.y.size(), "{} has {} cells and {} colors", name,
          series.y.size(), series.z.size());
}

Range widened(const Extent& data, Scale scale, double margin, bool from_zero) {
  if (scale == Scale::log) {
    const double low = std::log10(std::clamp(data.low, kSmallestLogarithmic, kLargestLogarithmic));
    const double high = std::log10(std::clamp(data.high, kSmallestLogarithmic, kLargestLogarithmic));
    const double around = high - low < kFinestSpan ? 0.5 : margin * (high - low);
    constexpr double kFarthest = 305;  // the exponents of doubles end at 308
    return {std::pow(10, std::max(low - around, -kFarthest)), std::pow(10, std::min(high + around, kFarthest))};
  }
  double low = std::clamp(data.low, -kLargestLogarithmic, kLargestLogarithmic);
  double high = std::clamp(data.high, -kLargestLogarithmic, kLargestLogarithmic);
  const double size = std::max(std::abs(low), std::abs(high));
  if (from_zero) {
    low = std::min(low, 0.0);
    high = std::max(high, 0.0);
  }
  if (high - low <= size * kFinestSpan) {
    const double around = size > 0 ? 0.1 * size : 1;
    return {low - around, high + around};
  }
  const double span = high - low;
  const bool begins_at_zero = low >= 0 && low <= kNearZero * span;
  const bool ends_at_zero = high <= 0 && -high <= kNearZero * span;
  return {begins_at_zero ? 0 : low - margin * span, ends_at_zero ? 0 : high + margin * span};
}

void apply_limits(Range& range, const Axis& axis, const char* name) {
  const bool given = axis.low.has_value() || axis.high.has_value();
  if (!given) return;
  for (const auto& limit : {axis.low, axis.high}) {
    require(!limit || shows(axis.scale, *limit), "the {} axis cannot have the limit {}{}", name, limit.value_or(0),
            axis.scale == Scale::log ? ": it is logarithmic" : "");
  }
  range.low = axis.low.value_or(range.low);
  range.high = axis.high.value_or(range.high);
  // Data that lie wholly beyond one given limit say nothing about the other.
  if (range.low >= range.high && !(axis.low && axis.high)) {
    if (axis.low)
      range.high = axis.scale == Scale::log ? range.low * 10 : range.low + std::max(1.0, std::abs(range.low));
    if (axis.high)
      range.low = axis.scale == Scale::log ? range.high / 10 : range.high - std::max(1.0, std::abs(range.high));
  }
  require(range.low < range.high, "the {} axis goes from {} to {}, which is nowhere", name, range.low, range.high);
}

}  // namespace

bool shows(Scale scale, double value) noexcept { return std::isfinite(value) && (scale == Scale::linear || value > 0); }

Ranges ranges_of(const Panel& panel) {
  Extent x;
  Extent y;
  bool bars = false;
  bool cells = false;
  bool from_zero = false;
  for (const Series& series : panel.series) {
    check(series);
    cells = cells || series.kind == Kind::heat;
    from_zero = from_zero || series.kind == Kind::bar || series.kind == Kind::histogram;
    const bool is_bar = series.kind == Kind::bar;
    bars = bars || is_bar;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!shows(panel.x.scale, series.x[i]) || !shows(panel.y.scale, series.y[i])) continue;
      x.add(series.x[i]);
      if (series.kind == Kind::histogram && i + 1 == series.x.size()) continue;  // the end of the last bin
      y.add(series.y[i]);
      if (series.low.empty()) continue;
      for (const double side : {series.low[i], series.high[i]}) {
        if (shows(panel.y.scale, side)) y.add(side);
      }
    }
  }
  Ranges ranges;
  ranges.empty = x.empty();
  for (const Guide& guide : panel.guides) {
    const bool horizontal = guide.along == Guide::Along::x;
    const Scale scale = horizontal ? panel.y.scale : panel.x.scale;
    if (shows(scale, guide.at)) (horizontal ? y : x).add(guide.at);
  }
  const auto made_up = [](Extent& extent, Scale scale) {
    if (!extent.empty()) return;
    extent.add(scale == Scale::log ? 1 : 0);
    extent.add(scale == Scale::log ? 10 : 1);
  };
  made_up(x, panel.x.scale);
  made_up(y, panel.y.scale);
  if (bars) {  // half a place of its own beside the first and the last
    if (!panel.x.categories.empty()) {
      x.add(0);
      x.add(static_cast<double>(panel.x.categories.size()) - 1);
    }
    const double beside = 0.6 * bar_spacing(panel);
    ranges.x = {x.low - beside, x.high + beside};
  } else {
    ranges.x = widened(x, panel.x.scale, 0.02, false);
  }
  ranges.y = widened(y, panel.y.scale, bars ? 0.06 : 0.04, from_zero);
  if (cells) {
    ranges.x = {x.low - 0.5, x.high + 0.5};
    ranges.y = {y.low - 0.5, y.high + 0.5};
  }
  apply_limits(ranges.x, panel.x, "x");
  apply_limits(ranges.y, panel.y, "y");
  return ranges;
}

double bar_spacing(const Panel& panel) {
  std::vector<double> places;
  for (const Series& series : panel.series) {
    if (series.kind != Kind::bar) continue;
    for (const double x : series.x) {
      if (std::isfinite(x)) places.push_back(x);
    }
  }
  std::sort(places.begin(), places.end());
  double spacing = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i] > places[i - 1]) spacing = std::min(spacing, places[i] - places[i - 1]);
  }
  return std::isfinite(spacing) ? spacing : 1;
}

AxisMap::AxisMap(Scale scale, const Range& range, double from, double to) : scale_(scale), from_(from) {
  const double low = scale == Scale::log ? std::log10(range.low) : range.low;
  const double high = scale == Scale::log ? std::log10(range.high) : range.high;
  origin_ = low;
  factor_ = (to - from) / (high - low);
}

double AxisMap::operator()(double value) const noexcept {
  const double at = scale_ == Scale::log ? std::log10(value) : value;
  return std::clamp(from_ + (at - origin_) * factor_, -kFarthestPosition, kFarthestPosition);
}

}  // namespace qdelta::plot
