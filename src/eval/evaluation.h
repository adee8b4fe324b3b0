// An evaluation: every example of every task asked, and the results put together.
#pragma once

#include <nlohmann/json.hpp>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "eval/engine.h"
#include "eval/journal.h"
#include "eval/statistics.h"
#include "eval/tasks.h"

namespace qdelta::eval {

struct MetricResult {
  std::string name;
  Estimate estimate;
};

struct TaskResult {
  std::string task;
  std::int64_t examples = 0;
  std::vector<MetricResult> metrics;
};

// How far it has come.
struct EvaluationProgress {
  const std::string& task;
  std::int64_t done, total, found;  // examples of the task; `found` were in the journal
};

// Asks all examples that the journal does not have, the longest first, in groups of the engine's batch. False where
// `stop` became true before the end.
[[nodiscard]] bool run_examples(const TaskList& tasks, Engine& engine, Journal& journal, const std::atomic<bool>& stop,
                                std::vector<std::vector<nlohmann::json>>& results,
                                const std::function<void(const EvaluationProgress&)>& progress);

// `results` are those of the task's examples, in their order.
[[nodiscard]] TaskResult aggregate(const Task& task, std::span<const nlohmann::json> results,
                                   const BootstrapOptions& bootstrap);

// A hash of what all examples ask.
[[nodiscard]] std::string hash_of(const TaskList& tasks);

// For people: a line for each metric.
[[nodiscard]] std::string table_of(std::span<const TaskResult> results);
// {"task": {"acc": 0.5, "acc_stderr": 0.01, "examples": 100}, ...}
[[nodiscard]] nlohmann::ordered_json json_of(std::span<const TaskResult> results);
// One line of JSON for each example: the task, the index, what was asked, and the result where there is one.
[[nodiscard]] std::string example_line(const Task& task, std::int64_t index, const nlohmann::json* result);

}  // namespace qdelta::eval
