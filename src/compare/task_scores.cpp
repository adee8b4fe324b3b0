#include "compare/task_scores.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/checkpoint.h"

namespace qdelta::compare {
namespace {

constexpr std::int64_t kBatch = 16;             // sequences at a time
constexpr std::int64_t kMostTokens = 2048;      // that a likelihood is taken over
constexpr eval::BootstrapOptions kNoErrors{0};  // the spread over seeds says more than an error over examples

std::string score_name(const eval::Task& task, const std::string& metric) { return task.name() + " " + metric; }

bool lower_is_better(const std::string& metric) {
  return metric.ends_with("perplexity") || metric == "bits_per_byte" || metric == "loss";
}

}  // namespace

TaskScores::TaskScores(const std::string& tasks, const eval::TaskSettings& settings, const std::string& tokenizer,
                       const ModelConfig& config) {
  if (tasks.empty()) return;
  const std::vector<const eval::TaskEntry*> entries = eval::tasks_named(tasks);
  if (std::any_of(entries.begin(), entries.end(), [](const eval::TaskEntry* entry) { return entry->reads_text; })) {
    require(!tokenizer.empty(), "--tasks {}: the models have no tokenizer to read texts with; give --tokenizer", tasks);
    tokenizer_ = load_tokenizer(tokenizer);
    encoder_ = std::make_unique<eval::RequestEncoder>(*tokenizer_, eval::Bos::automatic, kMostTokens);
  }
  tasks_ = eval::make_tasks(entries, {settings, encoder_.get(), config});
  examples_ = eval::hash_of(tasks_);
  for (const auto& task : tasks_) {
    for (const eval::Metric& metric : task->metrics()) {
      const std::string name = score_name(*task, metric.name);
      scores_.push_back({name, name, lower_is_better(metric.name), false});
    }
  }
}

std::optional<std::map<std::string, double>> TaskScores::of(
    const std::string& checkpoint, const Device& device, const std::atomic<bool>& stop,
    const std::function<void(const eval::EvaluationProgress&)>& progress) const {
  const auto model = load_model(checkpoint);
  eval::Engine engine(*model, device, kBatch);
  eval::Journal journal;  // keeps nothing: models of this size are asked again in no time
  std::vector<std::vector<nlohmann::json>> results;
  if (!eval::run_examples(tasks_, engine, journal, stop, results, progress)) return std::nullopt;
  std::map<std::string, double> scores;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    for (const eval::MetricResult& metric : eval::aggregate(*tasks_[t], results[t], kNoErrors).metrics) {
      scores[score_name(*tasks_[t], metric.name)] = metric.estimate.value;
    }
  }
  return scores;
}

}  // namespace qdelta::compare
