// Runs that differ in one thing only, side by side: what each run gave, and means and spreads over seeds.
//
//   OUT/compare.json                      the settings that all runs share
//   OUT/runs/VARIANT/seed-N/              a training run, with its checkpoints
//   OUT/runs/VARIANT/seed-N/result.json   once it is finished and scored
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compare/variant.h"

namespace qdelta::compare {

// Something that finished models are given a number for.
struct Score {
  std::string name;   // in files
  std::string title;  // in tables
  bool lower_is_better = true;
  bool in_figure = true;  // where another says the same, a table is enough
};

struct Result {
  std::string variant;
  std::uint64_t seed = 0;
  std::int64_t parameters = 0, tokens = 0, steps = 0;
  double seconds = 0;
  std::map<std::string, double> scores;  // by Score::name; what a run has no number for is missing
  std::string examples = {};             // a hash of what tasks asked; empty: none were
};

[[nodiscard]] std::string run_folder(const std::string& out, const std::string& variant, std::uint64_t seed);
// What was written for a finished run; nullopt where it is not finished. Throws Error(corrupt) where the file is none.
[[nodiscard]] std::optional<Result> read_result(const std::string& folder);
void write_result(const std::string& folder, const Result& result);

// Remembers the settings, name and value, of the comparison in `out`, or throws Error(invalid_argument) that names
// every difference to those it was begun with.
void claim_settings(const std::string& out, const std::map<std::string, std::string>& settings);

struct MeanAndSpread {
  double mean = 0;
  double deviation = 0;  // sample standard deviation; 0 for one run
  std::int64_t runs = 0;
};
[[nodiscard]] MeanAndSpread mean_and_spread(const std::vector<double>& values);

struct Row {
  Variant variant;
  std::int64_t parameters = 0, tokens = 0;
  std::int64_t runs = 0;
  std::map<std::string, MeanAndSpread> scores;
};

struct Table {
  std::vector<Score> scores;  // those that some run has
  std::vector<Row> rows;      // in the order of the variants; those without a finished run are left out
  std::vector<Result> results;
  std::int64_t planned = 0;  // runs in all

  // The row that is best by a score, by its mean.
  [[nodiscard]] std::optional<std::size_t> best(const Score& score) const;
};

[[nodiscard]] Table table_of(const std::vector<Variant>& variants, const std::vector<Score>& scores,
                             const std::vector<Result>& results, std::int64_t planned);

// The table as text: for a terminal, in Markdown, as CSV (a row for each variant, a row for each run), as JSON.
[[nodiscard]] std::string terminal_table(const Table& table);
[[nodiscard]] std::string markdown_table(const Table& table);
[[nodiscard]] std::string csv_table(const Table& table);
[[nodiscard]] std::string csv_runs(const Table& table);
[[nodiscard]] std::string json_table(const Table& table);

}  // namespace qdelta::compare
