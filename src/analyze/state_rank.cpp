#include "analyze/state_rank.h"

#include <Eigen/Eigenvalues>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze/figures.h"
#include "analyze/head_recurrence.h"

namespace qdelta::analyze {
namespace {

// Singular values from the eigenvalues of the smaller of S S^T and S^T S. That loses those below 1e-7 or so of the
// largest, which no effective rank would notice; what rounding leaves in their place is taken for zero.
double effective_rank(const Matrix& state) {
  const bool wide = state.cols() > state.rows();
  const Matrix gram = wide ? Matrix(state * state.transpose()) : Matrix(state.transpose() * state);
  const Vector squares = Eigen::SelfAdjointEigenSolver<Matrix>(gram, Eigen::EigenvaluesOnly).eigenvalues();
  const double noise = squares.maxCoeff() * static_cast<double>(squares.size()) * 1e-15;
  const Vector values = (squares.array() > noise).select(squares.array().max(0.0).sqrt(), 0.0);
  const double sum = values.sum();
  if (!(sum > 0)) return 0;
  double entropy = 0;
  for (const double value : values) {
    const double p = value / sum;
    if (p > 0) entropy -= p * std::log(p);
  }
  return std::exp(entropy);
}

}  // namespace

double effective_rank(const std::vector<double>& row_major, std::int64_t width) {
  return effective_rank(
      Eigen::Map<const Matrix>(row_major.data(), static_cast<std::int64_t>(row_major.size()) / width, width));
}

// 1, 2, 3, 4, 6, 8, 12, 16, ...: two in each doubling.
bool looks_at(std::int64_t tokens) {
  std::int64_t power = 1;
  while (power * 2 <= tokens) power *= 2;
  return tokens == power || 2 * tokens == 3 * power;
}

void HeadRank::add(const Step& s) {
  if (!looks_at(s.position + 1)) return;
  at[s.position + 1].push_back({s.state.norm(), effective_rank(s.state)});
}

Section state_rank_section(const std::vector<HeadRank>& heads, std::int64_t key_dim) {
  struct Values {
    std::vector<double> norm, rank;  // one of each head: means over the sequences
  };
  std::map<std::int64_t, std::map<std::int64_t, Values>> layers;
  Csv table({"layer", "head", "tokens", "sequences", "norm", "effective_rank"});
  for (const HeadRank& head : heads) {
    for (const auto& [tokens, points] : head.at) {
      std::vector<double> norms;
      std::vector<double> ranks;
      for (const HeadRank::Point& point : points) {
        norms.push_back(point.norm);
        ranks.push_back(point.rank);
      }
      table.add({head.name.layer, head.name.head, tokens, static_cast<std::int64_t>(points.size()), mean_of(norms),
                 mean_of(ranks)});
      Values& to = layers[head.name.layer][tokens];
      to.norm.push_back(mean_of(norms));
      to.rank.push_back(mean_of(ranks));
    }
  }
  Section section;
  section.id = "state_rank";
  section.title = "Norm and effective rank of the state";
  section.shows =
      "The size of the memory ‖S‖ and the number of directions it effectively uses, as it reads. Means over the heads "
      "of a layer; the bands go from the lowest head to the highest.";
  section.reading =
      "A norm that settles means that forgetting and correcting balance writing. An effective rank far below the "
      "width of the keys leaves room for more associations; one close to it means that new ones must displace old "
      "ones.";
  section.formula = "‖S‖² = Σ s_i²,  effective rank = exp(−Σ p_i log p_i),  p_i = s_i / Σ s,  s: singular values of S";
  section.figure.panels.resize(2);
  const auto fill = [&](plot::Panel& panel, const char* label, std::vector<double> Values::*values) {
    panel.x = {.label = "tokens read", .scale = plot::Scale::log};
    panel.y = {.label = label, .low = 0.0};
    for (const auto& [layer, points] : layers) {
      plot::Series series{.label = layer_label(layer)};
      for (const auto& [tokens, own] : points) {
        const std::vector<double>& sample = own.*values;
        const auto [low, high] = std::minmax_element(sample.begin(), sample.end());
        series.x.push_back(static_cast<double>(tokens));
        series.y.push_back(mean_of(sample));
        series.low.push_back(*low);
        series.high.push_back(*high);
      }
      panel.series.push_back(std::move(series));
    }
  };
  section.figure.panels[0].title = "Norm of the state";
  fill(section.figure.panels[0], "‖S‖", &Values::norm);
  section.figure.panels[1].title = "Effective rank of the state";
  fill(section.figure.panels[1], "effective rank", &Values::rank);
  for (const auto& [layer, points] : layers) {
    const auto& [tokens, last] = *points.rbegin();
    section.facts.emplace_back(fmt::format("layer {} after {} tokens", layer, tokens),
                               fmt::format("norm {}, effective rank {} of {}", number(mean_of(last.norm)),
                                           number(mean_of(last.rank)), key_dim));
  }
  section.tables = {{"state_rank", std::move(table)}};
  return section;
}

}  // namespace qdelta::analyze
