#include "eval/harness_json.h"

#include <fmt/format.h>

#include <ctime>

namespace qdelta::eval {

nlohmann::ordered_json harness_json(std::span<const TaskResult> results, const HarnessRun& run) {
  using Json = nlohmann::ordered_json;
  Json out;
  for (const char* name :
       {"results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples"}) {
    out[name] = Json::object();
  }
  for (const TaskResult& result : results) {
    Json& mine = out["results"][result.task];
    mine["alias"] = result.task;
    for (const MetricResult& metric : result.metrics) {
      mine[metric.name + ",none"] = metric.estimate.value;
      mine[metric.name + "_stderr,none"] = metric.estimate.error ? Json(*metric.estimate.error) : Json("N/A");
      const bool higher = metric.name.find("perplexity") == std::string::npos && metric.name != "bits_per_byte";
      out["higher_is_better"][result.task][metric.name] = higher;
    }
    out["group_subtasks"][result.task] = Json::array();
    out["configs"][result.task] = {{"task", result.task}, {"num_fewshot", run.fewshot}};
    out["versions"][result.task] = run.version;
    out["n-shot"][result.task] = run.fewshot;
    out["n-samples"][result.task] = {{"original", result.examples}, {"effective", result.examples}};
  }
  out["config"] = {{"model", "qdelta"},
                   {"model_args", "pretrained=" + run.model},
                   {"batch_size", run.batch},
                   {"limit", run.limit > 0 ? Json(run.limit) : Json()},
                   {"bootstrap_iters", run.bootstrap}};
  out["date"] = static_cast<double>(std::time(nullptr));
  out["model_source"] = "qdelta";
  out["model_name"] = run.model;
  out["total_evaluation_time_seconds"] = fmt::format("{}", run.seconds);
  return out;
}

}  // namespace qdelta::eval
