#include "compare/comparison.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/folders.h"
#include "io/parse_json.h"
#include "io/regular_file.h"

namespace qdelta::compare {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kResult = "result.json";
constexpr const char* kSettings = "compare.json";

std::optional<Json> read_json(const fs::path& path) {
  const std::optional<std::string> text = read_text_file_if_there(path.string(), kSmallJson.bytes);
  if (!text) return std::nullopt;
  return parse_ordered_json(*text, path.string(), kSmallJson);
}

}  // namespace

std::string run_folder(const std::string& out, const std::string& variant, std::uint64_t seed) {
  return (fs::path(out) / "runs" / variant / fmt::format("seed-{}", seed)).string();
}

std::optional<Result> read_result(const std::string& folder) {
  const fs::path path = fs::path(folder) / kResult;
  const std::optional<Json> json = read_json(path);
  if (!json) return std::nullopt;
  try {
    Result result;
    result.variant = json->at("variant").get<std::string>();
    result.seed = json->at("seed").get<std::uint64_t>();
    result.parameters = json->at("parameters").get<std::int64_t>();
    result.tokens = json->at("tokens").get<std::int64_t>();
    result.steps = json->at("steps").get<std::int64_t>();
    result.seconds = json->at("seconds").get<double>();
    for (const auto& [name, value] : json->at("scores").items()) {
      // What was not finite stands there as null.
      result.scores[name] = value.is_null() ? std::nan("") : value.get<double>();
    }
    result.examples = json->value("examples", "");
    return result;
  } catch (const Json::exception& error) {
    fail(Status::corrupt, "{} is damaged: {}", path.string(), json_complaint(error));
  }
}

void write_result(const std::string& folder, const Result& result) {
  Json json;
  json["variant"] = result.variant;
  json["seed"] = result.seed;
  json["parameters"] = result.parameters;
  json["tokens"] = result.tokens;
  json["steps"] = result.steps;
  json["seconds"] = result.seconds;
  json["scores"] = result.scores;
  if (!result.examples.empty()) json["examples"] = result.examples;
  write_whole((fs::path(folder) / kResult).string(), json.dump(2) + "\n");
}

void claim_settings(const std::string& out, const std::map<std::string, std::string>& settings) {
  make_folders(out);
  const fs::path path = fs::path(out) / kSettings;
  const std::optional<Json> json = read_json(path);
  if (!json) {
    write_whole(path.string(), Json{{"settings", settings}}.dump(2) + "\n");
    return;
  }
  std::map<std::string, std::string> before;
  try {
    before = json->at("settings").get<std::map<std::string, std::string>>();
  } catch (const Json::exception& problem) {
    fail(Status::corrupt, "{} is damaged: {}", path.string(), json_complaint(problem));
  }
  std::string differences;
  const auto compare = [&](const std::string& name) {
    const auto value = [&](const auto& map) { return map.contains(name) ? map.at(name) : std::string("(not given)"); };
    if (value(before) == value(settings)) return;
    differences += fmt::format("\n  {}: was {}, is {}", name, value(before), value(settings));
  };
  for (const auto& [name, unused] : settings) compare(name);
  for (const auto& [name, unused] : before) {
    if (!settings.contains(name)) compare(name);
  }
  require(differences.empty(),
          "the comparison in {} was begun with other settings; its runs could not be compared with new ones:{}\nGive "
          "the old settings, or another --out.",
          out, differences);
}

MeanAndSpread mean_and_spread(const std::vector<double>& values) {
  MeanAndSpread result;
  result.runs = static_cast<std::int64_t>(values.size());
  for (const double value : values) result.mean += value / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  if (values.size() > 1) result.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return result;
}

std::optional<std::size_t> Table::best(const Score& score) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto own = rows[i].scores.find(score.name);
    if (own == rows[i].scores.end() || !std::isfinite(own->second.mean)) continue;
    const auto better = [&](double a, double b) { return score.lower_is_better ? a < b : a > b; };
    if (!found || better(own->second.mean, rows[*found].scores.at(score.name).mean)) found = i;
  }
  return found;
}

Table table_of(const std::vector<Variant>& variants, const std::vector<Score>& scores,
               const std::vector<Result>& results, std::int64_t planned) {
  Table table;
  table.results = results;
  table.planned = planned;
  for (const Score& score : scores) {
    const bool some = std::any_of(results.begin(), results.end(),
                                  [&](const Result& result) { return result.scores.contains(score.name); });
    if (some) table.scores.push_back(score);
  }
  for (const Variant& variant : variants) {
    Row row;
    row.variant = variant;
    std::map<std::string, std::vector<double>> values;
    for (const Result& result : results) {
      if (result.variant != variant.name) continue;
      ++row.runs;
      row.parameters = result.parameters;
      row.tokens = std::max(row.tokens, result.tokens);
      for (const auto& [name, value] : result.scores) values[name].push_back(value);
    }
    if (row.runs == 0) continue;
    for (const auto& [name, list] : values) row.scores[name] = mean_and_spread(list);
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace qdelta::compare
