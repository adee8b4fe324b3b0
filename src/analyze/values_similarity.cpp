#include "analyze/values_similarity.h"

#include <cmath>

#include "analyze/figures.h"
#include "analyze/head_recurrence.h"

namespace qdelta::analyze {

void HeadSimilarity::add(const Step& s) {
  const double size = s.key_value.norm() * s.query_value.norm();
  if (size > 0) cosine.push_back(s.key_value.dot(s.query_value) / size);
}

Section values_similarity_section(const std::vector<HeadSimilarity>& heads) {
  ByLayer layers;
  std::vector<HeadValue> means;
  Csv table({"layer", "head", "tokens", "mean", "sd", "min", "q10", "median", "q90", "max"});
  for (const HeadSimilarity& head : heads) {
    const Summary s = summary_of(head.cosine);
    table.add({head.name.layer, head.name.head, s.count, s.mean, s.deviation, s.low, s.q10, s.median, s.q90, s.high});
    means.push_back({head.name, s.mean});
    auto& to = layers[head.name.layer];
    to.insert(to.end(), head.cosine.begin(), head.cosine.end());
  }
  Csv bins({"layer", "from", "to", "count", "density"});
  for (const auto& [layer, values] : layers) {
    Histogram histogram(-1, 1, kBins);
    histogram.add(values);
    for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
      bins.add({layer, histogram.edges[i], histogram.edges[i + 1], histogram.counts[i], histogram.density(i)});
    }
  }
  const std::vector<double> all = together(layers);
  std::vector<double> sizes;
  for (const double value : all) sizes.push_back(std::abs(value));
  Section section;
  section.id = "values_similarity";
  section.title = "Key-retrieved and query-conditioned values: cosine";
  section.shows =
      "Left: the cosine between what the memory answers to the key, v̂, and what it answers to the query, ô, over all "
      "tokens of a layer. Right: its mean for each head.";
  section.reading =
      "At 1 the two point the same way and the query adds nothing that the key does not already find. Around 0 they "
      "are unrelated: each sees a part of the memory that the other does not.";
  section.formula = "v̂ = S_{t−1} k,  ô = S_{t−1} q,  cos = ⟨v̂, ô⟩ / (‖v̂‖ ‖ô‖)";
  section.facts = {{"mean cosine", number(mean_of(all))}, {"mean size of the cosine", number(mean_of(sizes))}};
  section.figure.panels.resize(1);
  plot::Panel& panel = section.figure.panels[0];
  panel.title = "All tokens";
  panel.x = {.label = "cos(v̂, ô)", .low = -1.0, .high = 1.0};
  add_histograms(panel, layers, {-1, 1});
  section.figure.panels.push_back(heat_panel("Mean per head", means));
  section.tables = {{"values_similarity", std::move(table)}, {"values_similarity_bins", std::move(bins)}};
  return section;
}

}  // namespace qdelta::analyze
