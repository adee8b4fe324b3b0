#include "analyze/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analyze/figures.h"
#include "analyze/head_recurrence.h"

namespace qdelta::analyze {
namespace {

constexpr std::size_t kDots = 600;  // of a layer in the scatter plot
constexpr double kRounding = 1e-9;  // relative, of sums over some thousand tokens
constexpr std::array<double, 7> kQuantiles{0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99};

Vector as_vector(const std::vector<double>& values) {
  return Eigen::Map<const Vector>(values.data(), static_cast<Eigen::Index>(values.size()));
}

void extend(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

void HeadDrift::add(const Step& s) {
  const Vector error_after = s.v - s.after;
  const double size = error_after.norm();
  position.push_back(s.position);
  error.push_back(size);
  if (s.position == 0) {
    stepwise.push_back(size);
  } else {
    const double beta_a = s.erase * s.alignment;
    const Vector dv = s.v - as_vector(v_);
    const Vector now = s.key_value + s.mix * s.query_value;  // S_{t-1} x_t
    const Vector dp = now - as_vector(after_);
    const double moved = (dv - dp + (1 - s.alpha) * now).norm();
    target.push_back(dv.norm());
    prediction.push_back(dp.norm());
    residual.push_back((dv - dp).norm());
    residual_with_decay.push_back(moved);
    stepwise.push_back(std::abs(1 - beta_a) * (stepwise.back() + moved));
    rho = std::max(rho, std::abs(1 - beta_a));
    largest_drift = std::max(largest_drift, moved);
    contracts = contracts && beta_a > 0 && beta_a < 2;
  }
  v_.assign(s.v.data(), s.v.data() + s.v.size());
  after_.assign(s.after.data(), s.after.data() + s.after.size());
}

std::vector<double> HeadDrift::theorem() const {
  std::vector<double> bound;
  if (!contracts || rho >= 1) return bound;
  double first = 0;
  for (std::size_t i = 0; i < error.size(); ++i) {
    if (position[i] == 0) first = error[i];
    const double power = std::pow(rho, static_cast<double>(position[i]));
    bound.push_back(power * first + (1 - power) / (1 - rho) * rho * largest_drift);
  }
  return bound;
}

std::int64_t HeadDrift::violations(const std::vector<double>& bound) const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < bound.size(); ++i) count += error[i] > bound[i] * (1 + kRounding) + kRounding ? 1 : 0;
  return count;
}

Section drift_section(const std::vector<HeadDrift>& heads) {
  struct Norms {
    std::vector<double> target, prediction, residual, with_decay;
  };
  std::map<std::int64_t, Norms> layers;
  for (const HeadDrift& head : heads) {
    Norms& to = layers[head.name.layer];
    extend(to.target, head.target);
    extend(to.prediction, head.prediction);
    extend(to.residual, head.residual);
    extend(to.with_decay, head.residual_with_decay);
  }

  Section section;
  section.id = "drift";
  section.title = "Drift between tokens";
  section.shows =
      "Left: each dot is a token; across, how far its target value moved since the token before, ‖Δv‖; upwards, how "
      "far the memory's prediction moved, ‖Δp‖. Right: quantiles of the three norms over all tokens.";
  section.reading =
      "Dots below the dashed line mean that the targets move more than the predictions: the residual drift r, which "
      "limits how well the memory can track, then comes mostly from the text and not from an unstable memory.";
  section.formula = "Δv = v_t − v_{t−1},  Δp = S_{t−1} (x_t − x_{t−1}),  r = Δv − Δp";
  section.figure.panels.resize(2);
  plot::Panel& dots = section.figure.panels[0];
  dots.title = "Target and prediction drift";
  dots.x.label = "‖Δv‖";
  dots.y.label = "‖Δp‖";
  plot::Panel& quantiles = section.figure.panels[1];
  quantiles.title = "Quantiles of the drift norms";
  quantiles.x.label = "quantile";
  quantiles.y.label = "norm";

  Csv table({"layer", "quantity", "tokens", "mean", "q01", "q10", "q25", "median", "q75", "q90", "q99", "max"});
  Csv scatter({"layer", "target_drift", "prediction_drift", "residual_drift", "residual_drift_with_decay"});
  Norms all;
  double end = 0;
  for (const auto& [layer, norms] : layers) {
    plot::Series series{.label = layer_label(layer), .kind = plot::Kind::scatter};
    series.marker = plot::Marker::circle;
    series.marker_size = 1.6;
    series.opacity = 0.6;
    for (const std::size_t i : thinned(norms.target.size(), kDots)) {
      series.x.push_back(norms.target[i]);
      series.y.push_back(norms.prediction[i]);
      scatter.add({layer, norms.target[i], norms.prediction[i], norms.residual[i], norms.with_decay[i]});
      end = std::max({end, norms.target[i], norms.prediction[i]});
    }
    dots.series.push_back(std::move(series));
    const auto add_row = [&, layer = layer](const char* name, const std::vector<double>& values) {
      const std::vector<double> q = quantiles_of(values, kQuantiles);
      table.add({layer, name, static_cast<std::int64_t>(values.size()), mean_of(values), q[0], q[1], q[2], q[3], q[4],
                 q[5], q[6], values.empty() ? std::nan("") : *std::max_element(values.begin(), values.end())});
    };
    add_row("target_drift", norms.target);
    add_row("prediction_drift", norms.prediction);
    add_row("residual_drift", norms.residual);
    add_row("residual_drift_with_decay", norms.with_decay);
    extend(all.target, norms.target);
    extend(all.prediction, norms.prediction);
    extend(all.residual, norms.residual);
    extend(all.with_decay, norms.with_decay);
  }
  dots.series.push_back({.label = "equal",
                         .x = {0, end},
                         .y = {0, end},
                         .color = 6,
                         .marker = plot::Marker::none,
                         .dash = plot::Dash::dashed,
                         .width = 1});
  std::vector<double> at;
  for (int percent = 1; percent <= 99; ++percent) at.push_back(percent / 100.0);
  const auto add_curve = [&](const char* label, const std::vector<double>& values) {
    quantiles.series.push_back({.label = label, .x = at, .y = quantiles_of(values, at)});
  };
  add_curve("‖Δv‖ target", all.target);
  add_curve("‖Δp‖ prediction", all.prediction);
  add_curve("‖r‖ residual", all.residual);
  std::int64_t below = 0;
  for (std::size_t i = 0; i < all.target.size(); ++i) below += all.prediction[i] < all.target[i] ? 1 : 0;
  section.facts = {
      {"mean ‖Δv‖, ‖Δp‖, ‖r‖", fmt::format("{}, {}, {}", number(mean_of(all.target)), number(mean_of(all.prediction)),
                                           number(mean_of(all.residual)))},
      {"mean ‖r‖ with what the decay takes away", number(mean_of(all.with_decay))},
      {"tokens where ‖Δp‖ < ‖Δv‖",
       percent(static_cast<double>(below) / static_cast<double>(std::max<std::size_t>(all.target.size(), 1)))}};
  section.tables = {{"drift", std::move(table)}, {"drift_scatter", std::move(scatter)}};
  return section;
}

Section bound_section(const std::vector<HeadDrift>& heads) {
  struct Position {
    std::vector<double> error, stepwise, theorem;
  };
  std::map<std::int64_t, std::map<std::int64_t, Position>> layers;
  Csv table({"layer", "head", "rho", "largest_residual_drift", "theorem_applies", "limit_of_bound", "largest_error",
             "mean_error", "tokens_above_theorem", "tokens_above_stepwise"});
  std::int64_t above = 0;
  std::int64_t applies = 0;
  for (const HeadDrift& head : heads) {
    const std::vector<double> theorem = head.theorem();
    const bool has = !theorem.empty();
    const std::int64_t over = head.violations(theorem);
    const std::int64_t over_stepwise = head.violations(head.stepwise);
    above += over + over_stepwise;
    applies += has ? 1 : 0;
    table.add({head.name.layer, head.name.head, head.rho, head.largest_drift, has ? "yes" : "no",
               has ? head.rho * head.largest_drift / (1 - head.rho) : std::nan(""),
               *std::max_element(head.error.begin(), head.error.end()), mean_of(head.error), over, over_stepwise});
    for (std::size_t i = 0; i < head.error.size(); ++i) {
      Position& to = layers[head.name.layer][head.position[i]];
      to.error.push_back(head.error[i]);
      to.stepwise.push_back(head.stepwise[i]);
      if (has) to.theorem.push_back(theorem[i]);
    }
  }
  Section section;
  section.id = "bound";
  section.title = "Measured error and the theorem's bound";
  section.shows =
      "The error ‖e‖ that remains after each write, beside two bounds on it: the stability theorem's, made of the "
      "worst contraction and the largest drift of each head, and the same proof taken step by step with each token's "
      "own numbers. Medians over the heads (and sequences) of a layer at each position.";
  section.reading =
      "No measured error may lie above a bound; how far below it lies says how much the worst case overstates. The "
      "theorem's bound exists for heads whose β a stays inside (0, 2) for every token, and is large wherever one "
      "token has β a close to 0.";
  section.formula =
      "‖e_t‖ ≤ ρᵗ ‖e_0‖ + (1 − ρᵗ) / (1 − ρ) · ρ r,   ρ = sup |1 − β a|,  r = sup ‖r_t‖;   with decay r_t = Δv − Δp + "
      "(1 − α) S_{t−1} x_t;   step by step: ‖e_t‖ ≤ B_t = |1 − β_t a_t| (B_{t−1} + ‖r_t‖)";
  Csv curve({"layer", "position", "median_error", "median_stepwise_bound", "median_theorem_bound"});
  const auto median = [](const std::vector<double>& values) {
    return quantiles_of(values, std::array<double, 1>{0.5})[0];
  };
  for (const auto& [layer, positions] : layers) {
    plot::Panel& panel = section.figure.panels.emplace_back();
    panel.title = layer_label(layer);
    panel.x.label = "position";
    panel.y = {.label = "norm", .scale = plot::Scale::log};
    plot::Series error{.label = "measured error"};
    plot::Series stepwise{.label = "bound, step by step"};
    plot::Series theorem{.label = "theorem's bound"};
    for (const auto& [position, own] : positions) {
      const double values[] = {median(own.error), median(own.stepwise), median(own.theorem)};
      curve.add({layer, position, values[0], values[1], values[2]});
      plot::Series* const lines[] = {&error, &stepwise, &theorem};
      for (std::size_t i = 0; i < 3; ++i) {
        lines[i]->x.push_back(static_cast<double>(position));
        lines[i]->y.push_back(values[i]);
      }
    }
    for (plot::Series* line : {&error, &stepwise, &theorem}) {
      line->marker = plot::Marker::none;
      line->width = 1.4;
      panel.series.push_back(std::move(*line));
    }
  }
  section.figure.columns = columns_for(section.figure.panels.size());
  section.facts = {{"heads for which the theorem applies", fmt::format("{} of {}", applies, heads.size())},
                   {"tokens whose error is above a bound", std::to_string(above)}};
  section.tables = {{"bound", std::move(table)}, {"bound_by_position", std::move(curve)}};
  return section;
}

}  // namespace qdelta::analyze
