#include "plot/run_figure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace qdelta::plot {
namespace {

struct Title {
  const char* name;
  const char* title;
};
constexpr std::array<Title, 8> kTitles = {{{"loss", "training loss"},
                                           {"validation_loss", "validation loss"},
                                           {"learning_rate", "learning rate"},
                                           {"gradient_norm", "gradient norm"},
                                           {"tokens_per_second", "tokens per second"},
                                           {"seconds", "time"},
                                           {"skipped", "skipped steps"},
                                           {"step", "step"}}};

std::string title_of(const std::string& name) {
  for (const Title& title : kTitles) {
    if (name == title.name) return title.title;
  }
  std::string words = name;
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

// Time in the unit that suits its length.
struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit time_unit(double longest) {
  if (longest < 300) return {"seconds", 1};
  if (longest < 3 * 3600) return {"minutes", 60};
  if (longest < 3 * 86'400) return {"hours", 3600};
  return {"days", 86'400};
}

double largest(const std::vector<NamedRun>& runs, const std::string& name) {
  double result = 0;
  for (const NamedRun& run : runs) {
    for (const RunRecord& record : run.records) {
      const double value = value_of(record, name).value_or(0);
      if (std::isfinite(value)) result = std::max(result, value);
    }
  }
  return result;
}

// An axis for the number of that name, and what its values are to be divided by.
std::pair<Axis, double> axis_for(const std::vector<NamedRun>& runs, const std::string& name, bool log) {
  Axis axis;
  axis.label = title_of(name);
  axis.scale = log ? Scale::log : Scale::linear;
  if (name != "seconds") return {axis, 1};
  const TimeUnit unit = time_unit(largest(runs, name));
  axis.label = fmt::format("time ({})", unit.name);
  return {axis, unit.seconds};
}

void check_name(const std::vector<NamedRun>& runs, const std::string& name) {
  std::vector<std::string> known;
  for (const NamedRun& run : runs) {
    for (std::string& value : value_names(run.records)) {
      if (value == name) return;
      if (std::find(known.begin(), known.end(), value) == known.end()) known.push_back(std::move(value));
    }
  }
  require(!known.empty(), "there is nothing to plot: the log{} no steps yet", runs.size() == 1 ? " has" : "s have");
  fail(Status::invalid_argument, "there is no '{}' in the log{}; there is {}", name, runs.size() == 1 ? "" : "s",
       fmt::join(known, ", "));
}

Series series_of(const NamedRun& run, const std::string& x, double x_unit, const std::string& y, double y_unit) {
  Series series;
  for (const RunRecord& record : run.records) {
    const auto at = value_of(record, x);
    const auto value = value_of(record, y);
    if (!at || !value) continue;  // not measured at this step, which is no gap
    series.x.push_back(*at / x_unit);
    series.y.push_back(*value / y_unit);
  }
  return series;
}

// Smoothing is for noise: what is set rather than measured has none, and on few points it would only lag behind.
bool is_smoothed(const std::string& name, std::size_t points, double factor) {
  if (factor <= 0 || static_cast<double>(points) * (1 - factor) < 10) return false;
  constexpr std::array<std::string_view, 5> kExact = {"step", "tokens", "seconds", "skipped", "learning_rate"};
  return std::find(kExact.begin(), kExact.end(), name) == kExact.end();
}

Panel panel_of(const std::vector<NamedRun>& runs, const RunFigureOptions& options, const std::string& name) {
  Panel panel;
  double x_unit = 1;
  double y_unit = 1;
  std::tie(panel.x, x_unit) = axis_for(runs, options.x, options.log_x);
  std::tie(panel.y, y_unit) = axis_for(runs, name, options.log_y);
  std::vector<Series> front;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series = series_of(runs[i], options.x, x_unit, name, y_unit);
    series.color = static_cast<int>(i);
    // One run needs no legend: the title says which.
    if (runs.size() > 1) series.label = runs[i].name;
    if (is_smoothed(name, series.y.size(), options.smooth)) {
      Series raw = series;
      raw.label.clear();
      raw.opacity = 0.25;
      raw.width = 1;
      raw.marker = Marker::none;
      panel.series.push_back(std::move(raw));  // all of them behind all smooth lines
      series.y = smoothed(series.y, options.smooth);
    }
    front.push_back(std::move(series));
  }
  std::move(front.begin(), front.end(), std::back_inserter(panel.series));
  return panel;
}

// The last `count` parts of a path, "runs/a" of "/data/runs/a".
std::string last_parts(const std::filesystem::path& path, std::size_t count) {
  std::vector<std::string> parts;
  for (const auto& part : path) {
    if (part != "/" && !part.empty()) parts.push_back(part.string());
  }
  const std::size_t from = parts.size() > count ? parts.size() - count : 0;
  return fmt::format("{}", fmt::join(parts.begin() + static_cast<std::ptrdiff_t>(from), parts.end(), "/"));
}

std::vector<std::string> names_of(const std::vector<std::filesystem::path>& places) {
  std::vector<std::string> names;
  for (std::size_t count = 1; count <= 32; ++count) {
    names.clear();
    for (const auto& place : places) names.push_back(last_parts(place, count));
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) break;
  }
  return names;
}

}  // namespace

std::vector<NamedRun> read_runs(const std::vector<std::string>& paths) {
  std::vector<NamedRun> runs;
  std::vector<std::filesystem::path> places;
  for (const std::string& path : paths) {
    std::error_code error;
    const bool folder = std::filesystem::is_directory(path, error);
    const std::filesystem::path log = folder ? std::filesystem::path(path) / kRunLogName : std::filesystem::path(path);
    if (!std::filesystem::exists(log, error)) {
      fail(Status::io, "there is no {}: a run is a folder with a {}, or that file itself", log.string(), kRunLogName);
    }
    runs.push_back({"", read_run_log(log.string())});
    std::filesystem::path place = std::filesystem::absolute(log, error).lexically_normal();
    places.push_back(place.filename() == kRunLogName ? place.parent_path() : place.replace_extension());
  }
  const std::vector<std::string> names = names_of(places);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
  return runs;
}

Figure figure_of(const std::vector<NamedRun>& runs, const RunFigureOptions& options) {
  require(!runs.empty(), "there is no run to plot");
  require(!options.y.empty(), "there is nothing to plot: no number is named");
  check_name(runs, options.x);
  for (const std::string& name : options.y) check_name(runs, name);
  require(options.x != "tokens" || largest(runs, "tokens") > 0, "the logs count no tokens; use step for x");
  Figure figure;
  for (const std::string& name : options.y) figure.panels.push_back(panel_of(runs, options, name));
  if (runs.size() == 1) {
    (figure.panels.size() == 1 ? figure.panels.front().title : figure.title) = runs.front().name;
  }
  return figure;
}

}  // namespace qdelta::plot
