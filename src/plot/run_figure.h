// Figures of training runs, from their logs.
#pragma once

#include <string>
#include <vector>

#include "io/run_log.h"
#include "plot/figure.h"

namespace qdelta::plot {

struct NamedRun {
  std::string name;
  std::vector<RunRecord> records;
};

// Reads runs, each from its folder (which has a log.jsonl) or from the log itself. They are called by their folders;
// where two of those are the same, by as much of the path as tells them apart. Throws Error(io) where there is no log.
[[nodiscard]] std::vector<NamedRun> read_runs(const std::vector<std::string>& paths);

struct RunFigureOptions {
  std::string x = "tokens";
  std::vector<std::string> y = {"loss"};  // a panel each
  // See smoothed(); the values themselves stay visible behind. Not applied to what has no noise (the learning rate) and
  // to curves of so few points, less than 10 / (1 - smooth), that it would only delay them.
  double smooth = 0;
  bool log_x = false, log_y = false;
};

// Throws Error(invalid_argument) that lists what there is where no run has a number of that name.
[[nodiscard]] Figure figure_of(const std::vector<NamedRun>& runs, const RunFigureOptions& options);

}  // namespace qdelta::plot
