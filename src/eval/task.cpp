#include "eval/task.h"

#include <algorithm>

#include "eval/python_text.h"

namespace qdelta::eval {

std::int64_t LikelihoodTask::length(std::int64_t example) const {
  std::size_t longest = 0;
  for (const TokenPair& pair : pairs_[static_cast<std::size_t>(example)]) {
    longest = std::max(longest, pair.context.size() + pair.continuation.size());
  }
  return static_cast<std::int64_t>(longest);
}

nlohmann::json LikelihoodTask::description(std::int64_t example) const {
  nlohmann::json out = shown(example);
  for (const TokenPair& pair : pairs_[static_cast<std::size_t>(example)]) {
    out["requests"].push_back({{"context_tokens", pair.context}, {"continuation_tokens", pair.continuation}});
  }
  return out;
}

std::vector<nlohmann::json> LikelihoodTask::run(Engine& engine, std::span<const std::int64_t> examples) const {
  std::vector<const TokenPair*> asked;
  for (const std::int64_t example : examples) {
    for (const TokenPair& pair : pairs_[static_cast<std::size_t>(example)]) asked.push_back(&pair);
  }
  const std::vector<Likelihood> answers = engine.likelihoods(asked);
  std::vector<nlohmann::json> results;
  std::size_t next = 0;
  for (const std::int64_t example : examples) {
    const std::size_t count = pairs_[static_cast<std::size_t>(example)].size();
    const std::span<const Likelihood> mine = std::span(answers).subspan(next, count);
    next += count;
    nlohmann::json result;
    for (const Likelihood& answer : mine) {
      result["log_likelihoods"].push_back(answer.log_likelihood);
      result["greedy"].push_back(answer.greedy);
    }
    result["values"] = values(example, mine);
    results.push_back(std::move(result));
  }
  return results;
}

namespace {

const char* name_of(AnswerMetric metric) { return metric == AnswerMetric::contains ? "contains" : "exact_match"; }

}  // namespace

GenerationTask::GenerationTask(std::string name, const RequestEncoder& encoder, std::vector<Question> questions,
                               std::int64_t max_tokens, std::vector<std::string> stop, AnswerMetric metric)
    : Task(std::move(name), {{name_of(metric), Aggregation::mean}}),
      tokenizer_(encoder.tokenizer()),
      questions_(std::move(questions)),
      max_tokens_(max_tokens),
      stop_(std::move(stop)),
      metric_(metric) {
  for (const Question& question : questions_) {
    prompts_.push_back(encoder.encode(question.prompt));
    require(!prompts_.back().empty(), "{}: a prompt has no tokens", this->name());
  }
}

std::int64_t GenerationTask::length(std::int64_t example) const {
  return static_cast<std::int64_t>(prompts_[static_cast<std::size_t>(example)].size());
}

nlohmann::json GenerationTask::description(std::int64_t example) const {
  const Question& question = questions_[static_cast<std::size_t>(example)];
  nlohmann::json out = question.about;
  out["prompt"] = question.prompt;
  out["prompt_tokens"] = length(example);
  out["answers"] = question.answers;
  return out;
}

std::vector<nlohmann::json> GenerationTask::run(Engine& engine, std::span<const std::int64_t> examples) const {
  std::vector<Tokens> prompts;
  for (const std::int64_t example : examples) prompts.push_back(prompts_[static_cast<std::size_t>(example)]);
  const std::vector<Generated> said = engine.generate(tokenizer_, prompts, max_tokens_, stop_);
  std::vector<nlohmann::json> results;
  for (std::size_t i = 0; i < said.size(); ++i) {
    const std::vector<std::string>& answers = questions_[static_cast<std::size_t>(examples[i])].answers;
    const bool right = std::any_of(answers.begin(), answers.end(), [&](const std::string& answer) {
      return metric_ == AnswerMetric::contains ? find_any_case(said[i].text, answer) != std::string::npos
                                               : stripped(said[i].text) == stripped(answer);
    });
    results.push_back({{"text", said[i].text}, {"values", {{name_of(metric_), right ? 1 : 0}}}});
  }
  return results;
}

}  // namespace qdelta::eval
