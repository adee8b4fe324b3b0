#include "eval/lambada.h"

namespace qdelta::eval {

LambadaTask::LambadaTask(std::string name, const RequestEncoder& encoder, std::span<const Record> records)
    : LikelihoodTask(std::move(name), {{"perplexity", Aggregation::perplexity}, {"acc", Aggregation::mean}}) {
  for (const Record& record : records) {
    const JsonAt at = record.at();
    const std::string text = text_at(at, "text");
    const std::size_t space = text.rfind(' ');
    if (space == std::string::npos) at.at("text").corrupt("is a single word, with nothing to predict it from");
    contexts_.push_back(text.substr(0, space));
    words_.push_back(text.substr(space));
    add({at.within([&] { return encoder.pair(contexts_.back(), words_.back()); })});
  }
}

nlohmann::json LambadaTask::shown(std::int64_t example) const {
  const auto i = static_cast<std::size_t>(example);
  // An array of one array, which nested braces would not be.
  return {{"texts", nlohmann::json::array({nlohmann::json::array({contexts_[i], words_[i]})})}};
}

nlohmann::json LambadaTask::values(std::int64_t /*example*/, std::span<const Likelihood> likelihoods) const {
  return {{"perplexity", likelihoods[0].log_likelihood}, {"acc", likelihoods[0].greedy ? 1 : 0}};
}

}  // namespace qdelta::eval
