#include "analyze/gates.h"

#include <fmt/format.h>

#include <algorithm>

#include "analyze/figures.h"
#include "analyze/head_recurrence.h"

namespace qdelta::analyze {
namespace {

struct Gate {
  const char* symbol;
  const char* name;
  std::vector<double> HeadGates::*values;
};

bool all_ones(const std::vector<HeadGates>& heads) {
  return std::all_of(heads.begin(), heads.end(), [](const HeadGates& head) {
    return std::all_of(head.alpha.begin(), head.alpha.end(), [](double value) { return value == 1; });
  });
}

}  // namespace

void HeadGates::add(const Step& s) {
  alpha.push_back(s.alpha);
  beta.push_back(s.beta);
  lambda.push_back(s.mix);
}

Section gates_section(Rule rule, const std::vector<HeadGates>& heads) {
  std::vector<Gate> gates;
  if (!all_ones(heads)) gates.push_back({"α", "alpha", &HeadGates::alpha});
  if (traits_of(rule).reads_beta) {
    gates.push_back({traits_of(rule).beta_is_step ? "Δ (step)" : "β", "beta", &HeadGates::beta});
  }
  if (traits_of(rule).reads_lambda) gates.push_back({"λ", "lambda", &HeadGates::lambda});

  Section section;
  section.id = "gates";
  section.title = "Gates";
  section.shows =
      "Above: the mean of each gate for every head. Below: how it is distributed over the tokens of each layer.";
  section.reading =
      "α is the share of the memory that a token leaves in place: 1 keeps all, 0 forgets all. β is how strongly a "
      "token is written: 1 replaces what its key had stored. λ is how much of the query's own prediction is corrected "
      "for: at 0 the rule is Gated DeltaNet.";
  section.formula = "S_t = α S_{t−1} (I − β (k + λ q) kᵀ) + β v kᵀ";
  if (!traits_of(rule).reads_lambda) section.formula = std::string(traits_of(rule).formula);
  section.figure.columns = static_cast<int>(gates.size());
  Csv table({"layer", "head", "gate", "tokens", "mean", "sd", "min", "q10", "median", "q90", "max"});
  std::vector<plot::Panel> below;
  for (const Gate& gate : gates) {
    std::vector<HeadValue> means;
    ByLayer layers;
    for (const HeadGates& head : heads) {
      const std::vector<double>& values = head.*gate.values;
      const Summary s = summary_of(values);
      table.add({head.name.layer, head.name.head, gate.name, s.count, s.mean, s.deviation, s.low, s.q10, s.median,
                 s.q90, s.high});
      means.push_back({head.name, s.mean});
      auto& to = layers[head.name.layer];
      to.insert(to.end(), values.begin(), values.end());
    }
    section.figure.panels.push_back(heat_panel(fmt::format("{}: mean per head", gate.symbol), means));
    plot::Panel& panel = below.emplace_back();
    panel.x = {.label = gate.symbol, .units = plot::Units::plain};
    const std::vector<double> all = together(layers);
    add_histograms(panel, layers, limits_of(all, kTail));
    section.facts.emplace_back(fmt::format("mean {}", gate.symbol), number(mean_of(all)));
  }
  section.figure.panels.insert(section.figure.panels.end(), below.begin(), below.end());
  section.tables = {{"gates", std::move(table)}};
  return section;
}

}  // namespace qdelta::analyze
