// A comparison as a picture: how each variant's loss fell, and where it ended.
#pragma once

#include <string>

#include "compare/comparison.h"
#include "plot/figure.h"

namespace qdelta::compare {

// Reads the logs of the finished runs under `out`. The curves are the validation loss where runs have one, else the
// training loss smoothed; bands and whiskers are one standard deviation over the seeds to each side.
[[nodiscard]] plot::Figure comparison_figure(const std::string& out, const Table& table);

}  // namespace qdelta::compare
