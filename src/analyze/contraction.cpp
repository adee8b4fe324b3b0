#include "analyze/contraction.h"

#include <algorithm>
#include <cmath>

#include "analyze/figures.h"
#include "analyze/head_recurrence.h"

namespace qdelta::analyze {
namespace {

constexpr double kContracts = 2;  // beta a between 0 and this shrinks the error

}  // namespace

void HeadContraction::add(const Step& step) { beta_a.push_back(step.erase * step.alignment); }

std::vector<double> HeadContraction::factors() const {
  std::vector<double> result;
  for (const double value : beta_a) result.push_back(std::abs(1 - value));
  return result;
}

double HeadContraction::share_inside() const {
  const auto inside =
      std::count_if(beta_a.begin(), beta_a.end(), [](double value) { return value > 0 && value < kContracts; });
  return static_cast<double>(inside) / static_cast<double>(beta_a.size());
}

Section contraction_section(const std::vector<HeadContraction>& heads) {
  ByLayer values;
  ByLayer factors;
  double inside = 0;
  double count = 0;
  Csv table({"layer", "head", "tokens", "mean_beta_a", "sd_beta_a", "min_beta_a", "q10_beta_a", "median_beta_a",
             "q90_beta_a", "max_beta_a", "share_in_0_2", "mean_contraction", "max_contraction"});
  for (const HeadContraction& head : heads) {
    const std::vector<double> own = head.factors();
    const Summary a = summary_of(head.beta_a);
    const Summary f = summary_of(own);
    const double share = head.share_inside();
    table.add({head.name.layer, head.name.head, a.count, a.mean, a.deviation, a.low, a.q10, a.median, a.q90, a.high,
               share, f.mean, f.high});
    inside += share * static_cast<double>(a.count);
    count += static_cast<double>(a.count);
    auto& to_values = values[head.name.layer];
    to_values.insert(to_values.end(), head.beta_a.begin(), head.beta_a.end());
    auto& to_factors = factors[head.name.layer];
    to_factors.insert(to_factors.end(), own.begin(), own.end());
  }
  const std::vector<double> all = together(values);
  const std::vector<double> all_factors = together(factors);
  const Limits limits = limits_of(all, kTail);
  const Limits factor_limits = limits_of(all_factors, kTail);

  Csv bins({"layer", "quantity", "from", "to", "count", "density"});
  const auto add_bins = [&](const ByLayer& layers, const Limits& where, const char* name) {
    for (const auto& [layer, own] : layers) {
      Histogram histogram(where.low, where.high, kBins);
      histogram.add(own);
      for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
        bins.add({layer, name, histogram.edges[i], histogram.edges[i + 1], histogram.counts[i], histogram.density(i)});
      }
    }
  };
  add_bins(values, limits, "beta_a");
  add_bins(factors, factor_limits, "contraction");

  Section section;
  section.id = "contraction";
  section.title = "One-step contraction";
  section.shows =
      "Left: how β a is distributed over all tokens and heads of each layer. Right: the factor |1 − β a| by which one "
      "write multiplies the error of the prediction it corrects. Each figure shows all values but the outermost "
      "tenth of a percent on either side.";
  section.reading =
      "Where β a lies between 0 and 2 the factor is below 1 and the write makes its own error smaller. Near 0 a "
      "write changes little; at 1 it stores its value exactly; below 0, or above 2, it makes the error larger.";
  section.formula = "a = k·x,  x = k + λ q,  v − S_t x = (1 − β a) (v − α S_{t−1} x)";
  section.facts = {{"share of β a inside (0, 2)", percent(inside / count)},
                   {"mean of β a", number(mean_of(all))},
                   {"smallest and largest β a", number(*std::min_element(all.begin(), all.end())) + " and " +
                                                    number(*std::max_element(all.begin(), all.end()))},
                   {"mean of |1 − β a|", number(mean_of(all_factors))}};
  section.figure.panels.resize(2);
  plot::Panel& left = section.figure.panels[0];
  // Up to the end of what contracts, unless the values are so small that they would not be seen then.
  const double far = limits.high > 0.5 ? std::max(limits.high, 1.02 * kContracts) : limits.high;
  left.title = "β a per token";
  left.x = {.label = "β a", .low = std::min(0.0, limits.low), .high = far};
  add_histograms(left, values, limits);
  left.guides = {{plot::Guide::Along::y, 0, "0"}, {plot::Guide::Along::y, kContracts, "2"}};
  plot::Panel& right = section.figure.panels[1];
  right.title = "Contraction |1 − β a|";
  right.x = {.label = "|1 − β a|", .low = 0.0, .high = std::max(1.02, factor_limits.high)};
  add_histograms(right, factors, factor_limits);
  right.guides = {{plot::Guide::Along::y, 1, "1"}};
  section.tables = {{"contraction", std::move(table)}, {"contraction_bins", std::move(bins)}};
  return section;
}

}  // namespace qdelta::analyze
