// All analyses of a model's traces.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct AnalysisOptions {
  std::vector<std::int64_t> heads;  // of every layer; empty: all
  std::int64_t history = 512;       // tokens of a sequence over which time-evolved keys are followed
  int threads = 0;                  // 0: all
};

struct Analysis {
  std::vector<Section> sections;
  std::vector<LeftOut> left_out;
  double largest_identity_difference = 0;
};

// `progress` hears of heads that are done, from any thread, one at a time. nullopt where `stop` was raised on the way.
[[nodiscard]] std::optional<Analysis> analyse(const std::vector<LayerTrace>& traces, const AnalysisOptions& options,
                                              const std::atomic<bool>& stop,
                                              const std::function<void(std::int64_t heads)>& progress);

// Heads that analyse() goes through.
[[nodiscard]] std::int64_t head_count(const std::vector<LayerTrace>& traces, const AnalysisOptions& options);

}  // namespace qdelta::analyze
