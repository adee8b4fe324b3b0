// Results in the layout of lm-evaluation-harness's results_*.json, for tools that read those.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>

#include "eval/evaluation.h"

namespace qdelta::eval {

struct HarnessRun {
  std::string model, version;
  std::int64_t fewshot = 0, limit = 0, batch = 0, bootstrap = 0;
  double seconds = 0;
};

[[nodiscard]] nlohmann::ordered_json harness_json(std::span<const TaskResult> results, const HarnessRun& run);

}  // namespace qdelta::eval
