// A task: examples, what is asked about each, and what comes out of it.
//
// The result of an example is a JSON object. Its member "values" has a number for each metric, or [log-likelihood,
// weight] where the metric weighs; the rest is for those who want to see more. Results are kept as they are in the
// journal and in the log of examples.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/engine.h"
#include "eval/statistics.h"

namespace qdelta::eval {

struct Metric {
  std::string name;
  Aggregation aggregation = Aggregation::mean;
};

class Task {
 public:
  Task(std::string name, std::vector<Metric> metrics) : name_(std::move(name)), metrics_(std::move(metrics)) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Metric>& metrics() const { return metrics_; }

  [[nodiscard]] virtual std::int64_t size() const = 0;
  // The tokens of an example, to put examples of like length together.
  [[nodiscard]] virtual std::int64_t length(std::int64_t example) const = 0;
  // What is asked, for the log and to tell one set of examples from another.
  [[nodiscard]] virtual nlohmann::json description(std::int64_t example) const = 0;
  // Asks; a result for each.
  [[nodiscard]] virtual std::vector<nlohmann::json> run(Engine& engine,
                                                        std::span<const std::int64_t> examples) const = 0;

 private:
  std::string name_;
  std::vector<Metric> metrics_;
};

// Tasks that ask how likely texts are.
class LikelihoodTask : public Task {
 public:
  using Task::Task;

  [[nodiscard]] std::int64_t size() const final { return static_cast<std::int64_t>(pairs_.size()); }
  [[nodiscard]] std::int64_t length(std::int64_t example) const final;
  [[nodiscard]] nlohmann::json description(std::int64_t example) const final;
  [[nodiscard]] std::vector<nlohmann::json> run(Engine& engine, std::span<const std::int64_t> examples) const final;

 protected:
  void add(std::vector<TokenPair> pairs) { pairs_.push_back(std::move(pairs)); }

 private:
  // What a person would want to see of an example besides its tokens.
  [[nodiscard]] virtual nlohmann::json shown(std::int64_t example) const = 0;
  // The example's values, out of its pairs' likelihoods.
  [[nodiscard]] virtual nlohmann::json values(std::int64_t example, std::span<const Likelihood> likelihoods) const = 0;

  std::vector<std::vector<TokenPair>> pairs_;  // of each example
};

// Tasks that let the model speak and look for an answer in what it says.
// NOLINTNEXTLINE(bugprone-exception-escape): moving json checks itself, which does not throw
struct Question {
  std::string prompt;
  std::vector<std::string> answers;
  nlohmann::json about;  // for the log
};

enum class AnswerMetric {
  contains,     // 1 where one of the answers is in what it says, not regarding case
  exact_match,  // 1 where what it says is one of them, but for white space around it
};

class GenerationTask final : public Task {
 public:
  GenerationTask(std::string name, const RequestEncoder& encoder, std::vector<Question> questions,
                 std::int64_t max_tokens, std::vector<std::string> stop, AnswerMetric metric = AnswerMetric::contains);

  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(questions_.size()); }
  [[nodiscard]] std::int64_t length(std::int64_t example) const override;
  [[nodiscard]] nlohmann::json description(std::int64_t example) const override;
  [[nodiscard]] std::vector<nlohmann::json> run(Engine& engine, std::span<const std::int64_t> examples) const override;

 private:
  const Tokenizer& tokenizer_;
  std::vector<Question> questions_;
  std::vector<Tokens> prompts_;
  std::int64_t max_tokens_;
  std::vector<std::string> stop_;
  AnswerMetric metric_;
};

}  // namespace qdelta::eval
