// Small statistics: of samples that fit in memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qdelta::analyze {

[[nodiscard]] double mean_of(std::span<const double> values);
// The sample standard deviation (n - 1); 0 for fewer than two values.
[[nodiscard]] double deviation_of(std::span<const double> values);
// With linear interpolation between neighbours; NaN where there are no values. One pass over a copy for all of them.
[[nodiscard]] std::vector<double> quantiles_of(std::span<const double> values, std::span<const double> at);

// What a table says of a sample.
struct Summary {
  std::int64_t count = 0;
  double mean = 0, deviation = 0, low = 0, q10 = 0, median = 0, q90 = 0, high = 0;
};
[[nodiscard]] Summary summary_of(std::span<const double> values);

// Equal bins over [low, high]; what lies outside is counted in none of them, but in the total. Density: the bins'
// area is the share of the values that lie inside.
struct Histogram {
  std::vector<double> edges;  // one more than bins
  std::vector<std::int64_t> counts;
  std::int64_t total = 0;

  Histogram(double low, double high, int bins);
  void add(std::span<const double> values);
  [[nodiscard]] double density(std::size_t bin) const;
};

// Limits for a histogram of several samples: all of the values but the far ends, `tail` of them on each side.
struct Limits {
  double low = 0, high = 1;
};
[[nodiscard]] Limits limits_of(std::span<const double> values, double tail);

// Every n-th of them, so that at most `most` are left.
[[nodiscard]] std::vector<std::size_t> thinned(std::size_t count, std::size_t most);

}  // namespace qdelta::analyze
