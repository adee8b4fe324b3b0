// Multi-query associative recall (data/mqar.h): acc is the share of the questions whose most likely answer is right,
// loss their mean loss.
#pragma once

#include <memory>
#include <string>

#include "data/mqar.h"
#include "eval/task.h"

namespace qdelta::eval {

class RecallTask final : public Task {
 public:
  // Examples of one length, with one number of pairs and of rewrites. Example i depends on these, the seed and i.
  RecallTask(std::string name, const MqarTask& task, std::int32_t vocabulary, std::uint64_t seed);

  [[nodiscard]] std::int64_t size() const override { return source_.tasks().front().examples; }
  [[nodiscard]] std::int64_t length(std::int64_t /*example*/) const override { return source_.tasks().front().length; }
  [[nodiscard]] nlohmann::json description(std::int64_t example) const override;
  [[nodiscard]] std::vector<nlohmann::json> run(Engine& engine, std::span<const std::int64_t> examples) const override;

 private:
  MqarSource source_;
};

}  // namespace qdelta::eval
