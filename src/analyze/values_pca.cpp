#include "analyze/values_pca.h"

#include <Eigen/Eigenvalues>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analyze/figures.h"
#include "analyze/head_recurrence.h"

namespace qdelta::analyze {

void HeadPca::add(const Step& s) {
  const Eigen::Index V = s.query_value.size();
  if (count_ == 0) {
    sum_.assign(static_cast<std::size_t>(V), 0.0);
    products_.assign(static_cast<std::size_t>(V * V), 0.0);
    energy_products_ = products_;
  }
  ++count_;
  Eigen::Map<Vector>(sum_.data(), V) += s.query_value;
  Eigen::Map<Matrix>(products_.data(), V, V).noalias() += s.query_value * s.query_value.transpose();
  Eigen::Map<Matrix>(energy_products_.data(), V, V).noalias() += s.key_value * s.key_value.transpose();
}

void HeadPca::finish() {
  if (count_ == 0) return;
  const auto V = static_cast<Eigen::Index>(sum_.size());
  const auto n = static_cast<double>(count_);
  const Vector mean = Eigen::Map<const Vector>(sum_.data(), V) / n;
  const Matrix covariance = Eigen::Map<const Matrix>(products_.data(), V, V) / n - mean * mean.transpose();
  const Eigen::Map<const Matrix> keys(energy_products_.data(), V, V);
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(covariance);
  const double total_variance = std::max(covariance.trace(), 0.0);
  const double total_energy = keys.trace();
  double kept_variance = 0;
  double kept_energy = 0;
  for (Eigen::Index i = V; i-- > 0;) {  // eigenvalues rise
    const Vector direction = solver.eigenvectors().col(i);
    kept_variance += std::max(solver.eigenvalues()[i], 0.0);
    kept_energy += direction.dot(keys * direction);
    variance.push_back(total_variance > 0 ? std::min(kept_variance / total_variance, 1.0) : 0);
    energy.push_back(total_energy > 0 ? std::min(kept_energy / total_energy, 1.0) : 0);
  }
  products_.clear();
  energy_products_.clear();
}

std::int64_t rank_reaching(const std::vector<double>& shares, double share) {
  const auto found = std::find_if(shares.begin(), shares.end(), [&](double value) { return value >= share; });
  return std::min<std::int64_t>(found - shares.begin() + 1, static_cast<std::int64_t>(shares.size()));
}

Section values_pca_section(const std::vector<HeadPca>& heads) {
  struct Curves {
    std::vector<std::vector<double>> variance, energy;  // [rank][head]
  };
  std::map<std::int64_t, Curves> layers;
  Csv table({"layer", "head", "rank", "variance_of_query_values", "energy_of_key_values"});
  std::vector<double> energy_at_90;
  for (const HeadPca& head : heads) {
    Curves& to = layers[head.name.layer];
    to.variance.resize(head.variance.size());
    to.energy.resize(head.energy.size());
    for (std::size_t r = 0; r < head.variance.size(); ++r) {
      table.add({head.name.layer, head.name.head, static_cast<std::int64_t>(r + 1), head.variance[r], head.energy[r]});
      to.variance[r].push_back(head.variance[r]);
      to.energy[r].push_back(head.energy[r]);
    }
    if (head.variance.empty()) continue;
    energy_at_90.push_back(head.energy[static_cast<std::size_t>(rank_reaching(head.variance, 0.9) - 1)]);
  }
  Section section;
  section.id = "values_pca";
  section.title = "Principal directions of the query-conditioned values";
  section.shows =
      "For each rank r: the share of the variance of the query-conditioned values ô that their first r principal "
      "directions hold, and the share of the energy of the key-retrieved values v̂ that lies in the same directions. "
      "Means over the heads of a layer; the bands go from the lowest head to the highest.";
  section.reading =
      "Were both the same signal, the curves would coincide. Where the curve of v̂ runs below, the directions in which "
      "ô varies most miss part of what the key retrieves: the two complement each other.";
  section.formula =
      "U_r: the first r eigenvectors of cov(ô) with eigenvalues l_i;  variance: Σ_{i≤r} l_i / Σ l_i;  energy: Σ_t "
      "‖U_rᵀ v̂_t‖² / Σ_t ‖v̂_t‖²";
  for (const auto& [layer, curves] : layers) {
    plot::Panel& panel = section.figure.panels.emplace_back();
    panel.title = layer_label(layer);
    panel.x = {.label = "rank r", .units = plot::Units::plain};
    panel.y = {.label = "share", .low = 0.0, .high = 1.02};
    const auto add_curve = [&](const char* label, const std::vector<std::vector<double>>& ranks) {
      plot::Series series{.label = label};
      series.marker = plot::Marker::none;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        const auto [low, high] = std::minmax_element(ranks[r].begin(), ranks[r].end());
        series.x.push_back(static_cast<double>(r + 1));
        series.y.push_back(mean_of(ranks[r]));
        series.low.push_back(*low);
        series.high.push_back(*high);
      }
      panel.series.push_back(std::move(series));
    };
    add_curve("variance of ô", curves.variance);
    add_curve("energy of v̂", curves.energy);
  }
  section.figure.columns = columns_for(section.figure.panels.size());
  section.facts = {{"energy of v̂ in the directions that hold 90 % of the variance of ô, mean over heads",
                    percent(mean_of(energy_at_90))}};
  section.tables = {{"values_pca", std::move(table)}};
  return section;
}

}  // namespace qdelta::analyze
