#include "compare/comparison_figure.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <map>

#include "io/run_log.h"

namespace qdelta::compare {
namespace {

constexpr double kSmoothing = 0.9;

// The curves of a variant's runs: at each step, where they are and what they have, one of each seed.
struct Point {
  std::vector<double> tokens, losses;
};
using Curves = std::map<std::int64_t, Point>;

void add_run(const std::vector<RunRecord>& log, bool validation, Curves& curves) {
  std::vector<double> losses;
  for (const RunRecord& record : log) losses.push_back(record.loss);
  if (!validation) losses = plot::smoothed(losses, kSmoothing);
  for (std::size_t i = 0; i < log.size(); ++i) {
    if (validation && !log[i].validation_loss) continue;
    Point& point = curves[log[i].step];
    point.tokens.push_back(static_cast<double>(log[i].tokens));
    point.losses.push_back(validation ? *log[i].validation_loss : losses[i]);
  }
}

plot::Series band_of(const std::string& label, const Curves& curves, std::int64_t runs) {
  plot::Series series{.label = label};
  for (const auto& [step, point] : curves) {
    const MeanAndSpread loss = mean_and_spread(point.losses);
    if (loss.runs < runs) continue;  // where one seed stopped earlier than another, the mean would jump
    series.x.push_back(mean_and_spread(point.tokens).mean);
    series.y.push_back(loss.mean);
    if (runs < 2) continue;
    series.low.push_back(loss.mean - loss.deviation);
    series.high.push_back(loss.mean + loss.deviation);
  }
  return series;
}

// Curves that lie on each other stay visible: each is drawn over those before it, thinner than they are, and with gaps
// of its own.
void set_apart(std::vector<plot::Series>& curves) {
  constexpr double kThinnest = 1.5, kThicker = 3;  // pixels, the first curve over the last
  constexpr double kSmallest = 2.8, kLarger = 2;   // of markers
  constexpr std::array kDashes{plot::Dash::solid, plot::Dash::dashed, plot::Dash::dotted, plot::Dash::dash_dot};
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const double below =
        static_cast<double>(curves.size() - 1 - i) / std::max(1.0, static_cast<double>(curves.size() - 1));
    curves[i].dash = kDashes[i % kDashes.size()];
    curves[i].width = kThinnest + kThicker * below;
    curves[i].marker_size = kSmallest + kLarger * below;
  }
}

}  // namespace

plot::Figure comparison_figure(const std::string& out, const Table& table) {
  plot::Figure figure;
  plot::Panel curves;
  curves.title = "While training";
  curves.x.label = "tokens";
  std::vector<Score> drawn;
  std::copy_if(table.scores.begin(), table.scores.end(), std::back_inserter(drawn),
               [](const Score& score) { return score.in_figure; });
  if (drawn.empty()) drawn = table.scores;
  std::vector<plot::Panel> finals;
  for (const Score& score : drawn) {
    plot::Panel& panel = finals.emplace_back();
    panel.title = "After training";
    panel.y.label = score.title;
    panel.x.low = -0.5;
    panel.x.high = static_cast<double>(table.rows.size()) - 0.5;
    for (const Row& row : table.rows) panel.x.categories.push_back(row.variant.title());
  }
  std::map<std::string, std::vector<std::vector<RunRecord>>> logs;
  bool validation = true;
  for (const Result& result : table.results) {
    const std::string folder = run_folder(out, result.variant, result.seed);
    logs[result.variant].push_back(read_run_log((std::filesystem::path(folder) / kRunLogName).string()));
    bool has = false;
    for (const RunRecord& record : logs[result.variant].back()) has = has || record.validation_loss.has_value();
    validation = validation && has;
  }
  curves.y.label = validation ? "validation loss" : "training loss, smoothed";
  for (std::size_t place = 0; place < table.rows.size(); ++place) {
    const Row& row = table.rows[place];
    Curves own;
    for (const std::vector<RunRecord>& log : logs[row.variant.name]) add_run(log, validation, own);
    curves.series.push_back(band_of(row.variant.title(), own, row.runs));
    for (std::size_t s = 0; s < drawn.size(); ++s) {
      const auto found = row.scores.find(drawn[s].name);
      plot::Series point{.kind = plot::Kind::scatter, .color = static_cast<int>(place)};
      if (found != row.scores.end()) {
        point.x = {static_cast<double>(place)};
        point.y = {found->second.mean};
        if (found->second.runs > 1) {
          point.low = {found->second.mean - found->second.deviation};
          point.high = {found->second.mean + found->second.deviation};
        }
      }
      finals[s].series.push_back(std::move(point));
    }
  }
  set_apart(curves.series);
  figure.panels.push_back(std::move(curves));
  for (plot::Panel& panel : finals) figure.panels.push_back(std::move(panel));
  const int columns = static_cast<int>(std::min<std::size_t>(figure.panels.size(), 3));
  figure.columns = columns;
  figure.width = 520 * columns;
  figure.height = 420 * ((static_cast<int>(figure.panels.size()) + columns - 1) / columns);
  return figure;
}

}  // namespace qdelta::compare
