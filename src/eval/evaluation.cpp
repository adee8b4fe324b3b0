#include "eval/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/hash.h"

namespace qdelta::eval {

bool run_examples(const TaskList& tasks, Engine& engine, Journal& journal, const std::atomic<bool>& stop,
                  std::vector<std::vector<nlohmann::json>>& results,
                  const std::function<void(const EvaluationProgress&)>& progress) {
  results.clear();
  for (const std::unique_ptr<Task>& task : tasks) {
    const std::int64_t count = task->size();
    std::vector<nlohmann::json>& mine = results.emplace_back(static_cast<std::size_t>(count));
    std::vector<std::int64_t> open;
    for (std::int64_t i = 0; i < count; ++i) {
      const nlohmann::json* kept = journal.find(task->name(), i);
      if (kept == nullptr) open.push_back(i);
      if (kept != nullptr) mine[static_cast<std::size_t>(i)] = *kept;
    }
    std::stable_sort(open.begin(), open.end(),
                     [&](std::int64_t a, std::int64_t b) { return task->length(a) > task->length(b); });
    const std::int64_t found = count - static_cast<std::int64_t>(open.size());
    const auto batch = static_cast<std::size_t>(engine.batch());
    for (std::size_t begin = 0; begin < open.size(); begin += batch) {
      if (stop) return false;
      if (progress) progress({task->name(), found + static_cast<std::int64_t>(begin), count, found});
      const std::span<const std::int64_t> group = std::span(open).subspan(begin, std::min(batch, open.size() - begin));
      const std::vector<nlohmann::json> answers = task->run(engine, group);
      for (std::size_t i = 0; i < group.size(); ++i) {
        journal.add(task->name(), group[i], answers[i]);
        mine[static_cast<std::size_t>(group[i])] = answers[i];
      }
    }
    if (progress) progress({task->name(), count, count, found});
  }
  return true;
}

TaskResult aggregate(const Task& task, std::span<const nlohmann::json> results, const BootstrapOptions& bootstrap) {
  TaskResult out;
  out.task = task.name();
  out.examples = task.size();
  for (const Metric& metric : task.metrics()) {
    std::vector<Sample> samples;
    for (const nlohmann::json& result : results) {
      const nlohmann::json& value = result.at("values").at(metric.name);
      const bool weighted = value.is_array();
      samples.push_back(
          {weighted ? value.at(0).get<double>() : value.get<double>(), weighted ? value.at(1).get<double>() : 1.0});
    }
    out.metrics.push_back({metric.name, aggregate(metric.aggregation, samples, bootstrap)});
  }
  return out;
}

std::string hash_of(const TaskList& tasks) {
  std::uint64_t hash = 0;
  for (const std::unique_ptr<Task>& task : tasks) {
    for (std::int64_t i = 0; i < task->size(); ++i) {
      hash = hash_texts({std::to_string(hash), task->name(), task->description(i).dump()});
    }
  }
  return fmt::format("{:016x}", hash);
}

namespace {

// Perplexities of models that know nothing are large.
std::string number_text(double value) {
  return std::abs(value) < 1e5 ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
}

}  // namespace

std::string table_of(std::span<const TaskResult> results) {
  std::size_t task_width = 4;
  std::size_t metric_width = 6;
  for (const TaskResult& result : results) {
    task_width = std::max(task_width, result.task.size());
    for (const MetricResult& metric : result.metrics) metric_width = std::max(metric_width, metric.name.size());
  }
  std::string out = fmt::format("{:<{}}  {:>8}  {:<{}}  {:>12}  {:>10}\n", "task", task_width, "examples", "metric",
                                metric_width, "value", "std. error");
  for (const TaskResult& result : results) {
    for (const MetricResult& metric : result.metrics) {
      const std::string error = metric.estimate.error ? number_text(*metric.estimate.error) : "-";
      out += fmt::format("{:<{}}  {:>8}  {:<{}}  {:>12}  {:>10}\n", result.task, task_width, result.examples,
                         metric.name, metric_width, number_text(metric.estimate.value), error);
    }
  }
  return out;
}

nlohmann::ordered_json json_of(std::span<const TaskResult> results) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const TaskResult& result : results) {
    nlohmann::ordered_json& mine = out[result.task];
    mine["examples"] = result.examples;
    for (const MetricResult& metric : result.metrics) {
      mine[metric.name] = metric.estimate.value;
      nlohmann::ordered_json& error = mine[metric.name + "_stderr"];
      if (metric.estimate.error) error = *metric.estimate.error;
    }
  }
  return out;
}

std::string example_line(const Task& task, std::int64_t index, const nlohmann::json* result) {
  nlohmann::ordered_json line{{"task", task.name()}, {"index", index}};
  const nlohmann::json description = task.description(index);  // outlives the loop over its items
  for (const auto& [key, value] : description.items()) line[key] = value;
  if (result != nullptr) {
    for (const auto& [key, value] : result->items()) line[key] = value;
  }
  return line.dump() + "\n";
}

}  // namespace qdelta::eval
