// A benchmark's results beside those of an earlier run, both as the JSON that --json writes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace qdelta::bench {

struct BaselineRow {
  std::string name;          // what was measured, by the members that say so: "op forward, heads 4, K 128 ..."
  double then = 0, now = 0;  // seconds

  [[nodiscard]] double ratio() const { return now / then; }
};

struct BaselineComparison {
  std::vector<BaselineRow> rows;          // that both have
  std::vector<std::string> missing;       // that the baseline lacks
  std::vector<std::string> not_measured;  // that only the baseline has
  std::vector<std::string> differences;   // in what need not agree: "threads: 2 now, 4 then"
};

// The report in a file. Throws where there is none.
[[nodiscard]] nlohmann::json read_baseline(const std::string& path);

// Throws where the two cannot be compared: another benchmark, model, device or type, or nothing that both measured.
// `path` is the baseline's, for messages.
[[nodiscard]] BaselineComparison compare_with_baseline(const nlohmann::json& now, const nlohmann::json& baseline,
                                                       const std::string& path);

// Those that take more than so many percent longer than they did.
[[nodiscard]] std::vector<BaselineRow> slower_rows(const BaselineComparison& comparison, double tolerance_percent);

}  // namespace qdelta::bench
