#include "eval/recall_task.h"

#include <cmath>

namespace qdelta::eval {
namespace {

MqarOptions options_for(const MqarTask& task, std::int32_t vocabulary, std::uint64_t seed) {
  MqarOptions options;
  options.vocab_size = vocabulary;
  options.seed = seed;
  options.tasks = {task};
  options.batch_size = 1;
  options.shuffle = false;
  return options;
}

}  // namespace

RecallTask::RecallTask(std::string name, const MqarTask& task, std::int32_t vocabulary, std::uint64_t seed)
    : Task(std::move(name), {{"acc", Aggregation::mean}, {"loss", Aggregation::mean}}),
      source_(options_for(task, vocabulary, seed)) {}

nlohmann::json RecallTask::description(std::int64_t example) const {
  const TokenBatch batch = source_.batch_of(0, example);
  return {{"tokens", batch.ids}, {"targets", batch.targets}};
}

std::vector<nlohmann::json> RecallTask::run(Engine& engine, std::span<const std::int64_t> examples) const {
  std::vector<std::int32_t> ids, targets;
  for (const std::int64_t example : examples) {
    const TokenBatch batch = source_.batch_of(0, example);
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
  }
  const auto length = static_cast<std::size_t>(this->length(0));
  const Engine::Answers answers = engine.answers(ids, targets, static_cast<std::int64_t>(length));
  std::vector<nlohmann::json> results;
  for (std::size_t n = 0; n < examples.size(); ++n) {
    double right = 0;
    double loss = 0;
    double asked = 0;
    for (std::size_t i = n * length; i < (n + 1) * length; ++i) {
      if (targets[i] < 0) continue;
      asked += 1;
      right += answers.best[i] == targets[i] ? 1 : 0;
      loss += answers.loss[i];
    }
    if (!std::isfinite(loss)) {
      fail(Status::corrupt, "the model gives no number for a token: its weights or activations are not finite");
    }
    results.push_back({{"values", {{"acc", right / asked}, {"loss", loss / asked}}}});
  }
  return results;
}

}  // namespace qdelta::eval
