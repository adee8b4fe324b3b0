#include "bench/baseline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "data/checked_json.h"

namespace qdelta::bench {
namespace {

// Members of a row that say what was measured, in this order; all others are results.
constexpr std::array kNames{"op", "prompt", "batch", "clients", "rate", "heads", "K", "V", "tokens"};
// Results that are compared, the first that a row has: times, and rates as times of one.
constexpr std::array kTimes{"seconds", "seconds_per_step"};
constexpr std::array kRates{"tokens_per_s"};
// What both must have alike, and what is only mentioned.
constexpr std::array kSame{"benchmark", "model", "rule", "device", "dtype", "batch", "recompute", "prompt", "tokens"};
constexpr std::array kMentioned{"version", "threads"};

std::string shown(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string name_of(const nlohmann::json& row) {
  std::vector<std::string> parts;
  for (const char* key : kNames) {
    if (row.contains(key)) parts.push_back(fmt::format("{} {}", key, shown(row.at(key))));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

double positive(const JsonAt& row, const char* key) {
  const nlohmann::json& value = row.at(key).value();
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!(number > 0) || !std::isfinite(number)) row.at(key).corrupt("is {}, expected a number above 0", value.dump());
  return number;
}

double seconds_of(const JsonAt& row) {
  for (const char* key : kTimes) {
    if (row.has(key)) return positive(row, key);
  }
  for (const char* key : kRates) {
    if (row.has(key)) return 1 / positive(row, key);
  }
  row.corrupt("there is neither {} nor {}", fmt::join(kTimes, " nor "), fmt::join(kRates, " nor "));
}

std::map<std::string, double> times_of(const JsonAt& report) {
  std::map<std::string, double> times;
  for (const char* list : {"prompts", "rows"}) {
    if (!report.has(list)) continue;
    for (const JsonAt& row : report.at(list).elements()) times[name_of(row.value())] = seconds_of(row);
  }
  if (times.empty()) report.corrupt("there are no rows: expected what an earlier qdelta bench wrote with --json");
  return times;
}

void check_alike(const nlohmann::json& now, const nlohmann::json& then, const std::string& path) {
  for (const char* key : kSame) {
    if (!now.contains(key) || !then.contains(key) || now.at(key) == then.at(key)) continue;
    fail(Status::invalid_argument, "{} has another {}, so nothing in it can be compared: {}, and now it is {}", path,
         key, shown(then.at(key)), shown(now.at(key)));
  }
}

}  // namespace

nlohmann::json read_baseline(const std::string& path) {
  nlohmann::json report = read_json_file(path);
  static_cast<void>(times_of(JsonAt(report, path)));  // before anything is measured
  return report;
}

BaselineComparison compare_with_baseline(const nlohmann::json& now, const nlohmann::json& baseline,
                                         const std::string& path) {
  check_alike(now, baseline, path);
  const std::string here = "this run";
  const std::map<std::string, double> times = times_of(JsonAt(now, here));
  const std::map<std::string, double> before = times_of(JsonAt(baseline, path));
  BaselineComparison result;
  for (const char* key : kMentioned) {
    if (!now.contains(key) || !baseline.contains(key) || now.at(key) == baseline.at(key)) continue;
    result.differences.push_back(fmt::format("{}: {} now, {} then", key, shown(now.at(key)), shown(baseline.at(key))));
  }
  // In the order in which they were measured.
  for (const char* list : {"prompts", "rows"}) {
    if (!now.contains(list)) continue;
    for (const nlohmann::json& row : now.at(list)) {
      const std::string name = name_of(row);
      const auto found = before.find(name);
      if (found == before.end()) {
        result.missing.push_back(name);
      } else {
        result.rows.push_back({name, found->second, times.at(name)});
      }
    }
  }
  for (const auto& [name, seconds] : before) {
    if (!times.contains(name)) result.not_measured.push_back(name);
  }
  if (result.rows.empty()) {
    fail(Status::invalid_argument, "{} has nothing that was measured now; it has: {}", path,
         fmt::join(result.not_measured, "; "));
  }
  return result;
}

std::vector<BaselineRow> slower_rows(const BaselineComparison& comparison, double tolerance_percent) {
  std::vector<BaselineRow> slower;
  std::copy_if(comparison.rows.begin(), comparison.rows.end(), std::back_inserter(slower),
               [&](const BaselineRow& row) { return row.ratio() > 1 + tolerance_percent / 100; });
  return slower;
}

}  // namespace qdelta::bench
