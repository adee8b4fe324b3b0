#include "analyze/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace qdelta::analyze {

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

std::vector<double> quantiles_of(std::span<const double> values, std::span<const double> at) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> result;
  for (const double q : at) {
    if (sorted.empty()) {
      result.push_back(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    const double place = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    result.push_back(sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]));
  }
  return result;
}

Summary summary_of(std::span<const double> values) {
  constexpr std::array<double, 5> kAt{0, 0.1, 0.5, 0.9, 1};
  const std::vector<double> q = quantiles_of(values, kAt);
  return {
      static_cast<std::int64_t>(values.size()), mean_of(values), deviation_of(values), q[0], q[1], q[2], q[3], q[4]};
}

Histogram::Histogram(double low, double high, int bins) : counts(static_cast<std::size_t>(bins)) {
  for (int i = 0; i <= bins; ++i) edges.push_back(low + (high - low) * i / bins);
}

void Histogram::add(std::span<const double> values) {
  const double low = edges.front();
  const double high = edges.back();
  total += static_cast<std::int64_t>(values.size());
  for (const double value : values) {
    if (!(value >= low && value <= high)) continue;
    const double place = (value - low) / (high - low) * static_cast<double>(counts.size());
    ++counts[std::min(static_cast<std::size_t>(place), counts.size() - 1)];
  }
}

double Histogram::density(std::size_t bin) const {
  if (total == 0) return 0;
  return static_cast<double>(counts[bin]) / (static_cast<double>(total) * (edges[bin + 1] - edges[bin]));
}

Limits limits_of(std::span<const double> values, double tail) {
  const std::vector<double> q = quantiles_of(values, std::array<double, 2>{tail, 1 - tail});
  if (!std::isfinite(q[0])) return {};
  const double least = 1e-9 * std::max(1.0, std::abs(q[1]));  // all the same value: a range around it
  return q[1] - q[0] > least ? Limits{q[0], q[1]} : Limits{q[0] - 0.5, q[1] + 0.5};
}

std::vector<std::size_t> thinned(std::size_t count, std::size_t most) {
  const std::size_t step = std::max<std::size_t>(1, (count + most - 1) / most);
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < count; i += step) chosen.push_back(i);
  return chosen;
}

}  // namespace qdelta::analyze
