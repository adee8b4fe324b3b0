// A comparison's table, as text of several kinds.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "compare/comparison.h"
#include "io/csv.h"
#include "plot/text.h"

namespace qdelta::compare {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAlike = 1.02;  // models that differ by less than this count as of equal size

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

// "1.2345 ± 0.0012"; without the spread where there is one run.
std::string score_text(const Row& row, const Score& score) {
  const auto found = row.scores.find(score.name);
  if (found == row.scores.end()) return "-";
  const MeanAndSpread& value = found->second;
  const int digits = std::abs(value.mean) < 1000 ? 4 : 1;  // a perplexity may have five before the point
  return value.runs > 1 ? fmt::format("{:.{}f} ± {:.{}f}", value.mean, digits, value.deviation, digits)
                        : fmt::format("{:.{}f}", value.mean, digits);
}

// More parameters than the smallest, in percent: rules differ in their gates.
std::string excess_text(const Table& table, const Row& row) {
  std::int64_t fewest = row.parameters;
  for (const Row& other : table.rows) fewest = std::min(fewest, other.parameters);
  const double excess = 100.0 * static_cast<double>(row.parameters - fewest) / static_cast<double>(fewest);
  return fmt::format("{} (+{:.2f} %)", grouped(row.parameters), excess);
}

std::vector<std::string> heading(const Table& table) {
  std::vector<std::string> cells{"rule", "parameters", "tokens", "seeds"};
  for (const Score& score : table.scores) {
    cells.push_back(fmt::format("{} {}", score.title, score.lower_is_better ? "↓" : "↑"));
  }
  return cells;
}

std::vector<std::string> cells_of(const Table& table, const Row& row) {
  std::vector<std::string> cells{row.variant.title(), excess_text(table, row), grouped(row.tokens),
                                 std::to_string(row.runs)};
  for (const Score& score : table.scores) cells.push_back(score_text(row, score));
  return cells;
}

std::string footnote(const Table& table) {
  const auto finished = static_cast<std::int64_t>(table.results.size());
  std::string text =
      "Mean ± sample standard deviation over seeds. In brackets: parameters beyond the smallest model's.";
  std::int64_t fewest = INT64_MAX;
  std::int64_t most = 0;
  for (const Row& row : table.rows) {
    fewest = std::min(fewest, row.parameters);
    most = std::max(most, row.parameters);
  }
  if (static_cast<double>(most) > kAlike * static_cast<double>(fewest)) {
    text += fmt::format(" Models of {} and {} parameters are not of equal size: compare with care.", grouped(fewest),
                        grouped(most));
  }
  if (finished < table.planned) text += fmt::format(" {} of {} runs are finished.", finished, table.planned);
  return text;
}

std::size_t columns_of(const std::string& text) { return plot::decoded(text).size(); }

}  // namespace

std::string terminal_table(const Table& table) {
  std::vector<std::vector<std::string>> lines{heading(table)};
  for (const Row& row : table.rows) lines.push_back(cells_of(table, row));
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], columns_of(line[i]));
  }
  std::string text;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - columns_of(line[i]), ' ');
      // Names to the left, numbers to the right.
      text += i == 0 ? fmt::format("{}{}", line[i], space) : fmt::format("  {}{}", space, line[i]);
    }
    text += '\n';
  }
  return text + "\n" + footnote(table) + "\n";
}

std::string markdown_table(const Table& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
  };
  std::string text = line(heading(table));
  text += "|---|";
  for (std::size_t i = 1; i < heading(table).size(); ++i) text += "---:|";
  text += "\n";
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    std::vector<std::string> cells = cells_of(table, table.rows[i]);
    for (std::size_t s = 0; s < table.scores.size(); ++s) {
      std::string& cell = cells[cells.size() - table.scores.size() + s];
      if (table.best(table.scores[s]) == i) cell = fmt::format("**{}**", cell);
    }
    text += line(cells);
  }
  return text + "\n" + footnote(table) + "\n";
}

std::string csv_table(const Table& table) {
  Csv csv({"variant", "parameters", "tokens", "seeds", "score", "mean", "sd"});
  for (const Row& row : table.rows) {
    for (const Score& score : table.scores) {
      const auto found = row.scores.find(score.name);
      if (found == row.scores.end()) continue;
      csv.add({row.variant.name, row.parameters, row.tokens, found->second.runs, score.name, found->second.mean,
               found->second.deviation});
    }
  }
  return csv.text();
}

std::string csv_runs(const Table& table) {
  Csv csv({"variant", "seed", "parameters", "tokens", "steps", "seconds", "score", "value"});
  for (const Result& result : table.results) {
    for (const auto& [name, value] : result.scores) {
      csv.add({result.variant, std::to_string(result.seed), result.parameters, result.tokens, result.steps,
               result.seconds, name, value});
    }
  }
  return csv.text();
}

std::string json_table(const Table& table) {
  Json rows = Json::array();
  for (const Row& row : table.rows) {
    Json scores;
    for (const Score& score : table.scores) {
      const auto found = row.scores.find(score.name);
      if (found == row.scores.end()) continue;
      Json values = Json::array();
      for (const Result& result : table.results) {
        const auto own = result.scores.find(score.name);
        if (result.variant == row.variant.name && own != result.scores.end()) values.push_back(own->second);
      }
      scores[score.name] = {{"mean", found->second.mean}, {"sd", found->second.deviation}, {"values", values}};
    }
    rows.push_back({{"variant", row.variant.name},
                    {"title", row.variant.title()},
                    {"parameters", row.parameters},
                    {"tokens", row.tokens},
                    {"seeds", row.runs},
                    {"scores", scores}});
  }
  const Json json{{"finished", table.results.size()}, {"planned", table.planned}, {"rows", rows}};
  return json.dump(2) + "\n";
}

}  // namespace qdelta::compare
