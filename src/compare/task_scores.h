// Finished models of a comparison under the benchmarks of eval/: what each task reports, as scores of the table.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "data/tokenizer.h"
#include "eval/evaluation.h"

namespace qdelta::compare {

class TaskScores {
 public:
  // `tasks` with commas between them; none: nothing is scored. Tokenizer ("": none) and config are of any model of the
  // comparison: all have the vocabulary in common. Throws where data of a task are missing or damaged.
  TaskScores(const std::string& tasks, const eval::TaskSettings& settings, const std::string& tokenizer,
             const ModelConfig& config);

  [[nodiscard]] const std::vector<Score>& scores() const { return scores_; }
  // A hash of what is asked: results of other examples do not count.
  [[nodiscard]] const std::string& examples() const { return examples_; }
  // Nullopt where `stop` became true before the end.
  [[nodiscard]] std::optional<std::map<std::string, double>> of(
      const std::string& checkpoint, const Device& device, const std::atomic<bool>& stop,
      const std::function<void(const eval::EvaluationProgress&)>& progress) const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<eval::RequestEncoder> encoder_;
  eval::TaskList tasks_;
  std::vector<Score> scores_;
  std::string examples_;
};

}  // namespace qdelta::compare
