#include "analyze/memory_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "analyze/figures.h"
#include "analyze/history.h"

namespace qdelta::analyze {
namespace {

constexpr std::int64_t kFewest = 8;  // pairs of an age before its mean counts

}  // namespace

void HeadMemory::add(const Step& s, const KeyHistory& history) {
  log_decay += std::log(s.alpha);
  ++tokens;
  if (!history.looks(s)) return;
  const std::int64_t size = history.size();
  const auto ages = static_cast<std::size_t>(size);
  if (retained.size() < ages + 1) {
    retained.resize(ages + 1);
    counted.resize(ages + 1);
  }
  for (std::int64_t tau = 0; tau < size; ++tau) {
    const auto age = static_cast<std::size_t>(size - tau);
    retained[age] += history.keys().row(tau).norm();
    ++counted[age];
  }
}

std::vector<double> HeadMemory::retention() const {
  std::vector<double> result;
  for (std::size_t age = 1; age < retained.size(); ++age) {
    // Keys have length one up to the norm's epsilon; at age 1 nothing has happened to them yet.
    result.push_back(counted[age] >= kFewest || age == 1 ? retained[age] / static_cast<double>(counted[age])
                                                         : std::numeric_limits<double>::quiet_NaN());
  }
  while (!result.empty() && std::isnan(result.back())) result.pop_back();
  return result;
}

HeadMemory::Length HeadMemory::length() const {
  const std::vector<double> r = retention();
  const double limit = 1 / std::numbers::e;
  for (std::size_t i = 0; i < r.size(); ++i) {
    if (r[i] > limit) continue;
    const auto age = static_cast<double>(i + 1);
    if (i == 0) return {age, true};
    return {age - 1 + (r[i - 1] - limit) / (r[i - 1] - r[i]), true};
  }
  return {static_cast<double>(r.size()), false};
}

double HeadMemory::decay_length() const {
  return log_decay < 0 ? -static_cast<double>(tokens) / log_decay : std::numeric_limits<double>::infinity();
}

Section memory_length_section(const std::vector<HeadMemory>& heads) {
  Csv table({"layer", "head", "memory_length", "reached", "decay_length"});
  Csv curves({"layer", "head", "age", "retention"});
  std::vector<HeadValue> lengths;
  std::map<std::int64_t, std::vector<std::vector<double>>> layers;
  std::int64_t unreached = 0;
  for (const HeadMemory& head : heads) {
    const HeadMemory::Length length = head.length();
    table.add({head.name.layer, head.name.head, length.tokens, length.reached ? "yes" : "no", head.decay_length()});
    lengths.push_back({head.name, length.tokens});
    unreached += length.reached ? 0 : 1;
    layers[head.name.layer].push_back(head.retention());
    const std::vector<double>& curve = layers[head.name.layer].back();
    for (std::size_t i = 0; i < curve.size(); ++i) {
      if (std::isfinite(curve[i])) {
        curves.add({head.name.layer, head.name.head, static_cast<std::int64_t>(i + 1), curve[i]});
      }
    }
  }
  Section section;
  section.id = "memory_length";
  section.title = "Effective memory length";
  section.shows =
      "Left: how much of a key is left after so many tokens: the length of the time-evolved key, which decay and "
      "corrections wear down. Means over the heads of a layer; the bands go from the lowest head to the highest. "
      "Right: the age at which less than 1/e is left, for each head.";
  section.reading =
      "A head whose curve falls early remembers only what was just said; one that stays high carries pairs through "
      "the whole text. Values above 1 are possible where the query's part of the correction stretches a key.";
  section.formula =
      "k̃ = (P_{τ+1} ⋯ P_{t−1})ᵀ k_τ,  P = α (I − β x kᵀ),  retention(age) = mean of ‖k̃‖ / ‖k‖,  memory length: "
      "retention = 1/e";
  section.figure.panels.resize(1);
  plot::Panel& panel = section.figure.panels[0];
  panel.title = "What is left of a key";
  panel.x = {.label = "age in tokens", .scale = plot::Scale::log};
  panel.y = {.label = "retention", .low = 0.0};
  panel.guides = {{plot::Guide::Along::x, 1 / std::numbers::e, "1/e"}};
  for (const auto& [layer, own] : layers) {
    plot::Series series{.label = layer_label(layer)};
    series.marker = plot::Marker::none;
    std::size_t longest = 0;
    for (const std::vector<double>& curve : own) longest = std::max(longest, curve.size());
    for (std::size_t i = 0; i < longest; ++i) {
      std::vector<double> sample;
      for (const std::vector<double>& curve : own) {
        if (i < curve.size() && std::isfinite(curve[i])) sample.push_back(curve[i]);
      }
      if (sample.empty()) continue;
      const auto [low, high] = std::minmax_element(sample.begin(), sample.end());
      series.x.push_back(static_cast<double>(i + 1));
      series.y.push_back(mean_of(sample));
      series.low.push_back(*low);
      series.high.push_back(*high);
    }
    panel.series.push_back(std::move(series));
  }
  section.figure.panels.push_back(heat_panel("Memory length in tokens", lengths));
  std::vector<double> all;
  for (const HeadValue& value : lengths) all.push_back(value.value);
  const Summary s = summary_of(all);
  section.facts = {{"memory length over heads: shortest, median, longest",
                    fmt::format("{}, {}, {} tokens", number(s.low), number(s.median), number(s.high))}};
  if (unreached > 0) {
    section.facts.emplace_back(
        "heads that never fall below 1/e",
        fmt::format("{} of {}; shown with the largest age that was measured", unreached, heads.size()));
  }
  section.tables = {{"memory_length", std::move(table)}, {"memory_retention", std::move(curves)}};
  return section;
}

}  // namespace qdelta::analyze
