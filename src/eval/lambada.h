// LAMBADA: the last word of a passage, which nobody guesses from its sentence alone.
//
//   acc          whether greedy decoding gives the word
//   perplexity   exp(-mean log p(" " + word | all before it))
#pragma once

#include <string>
#include <vector>

#include "eval/data_file.h"
#include "eval/task.h"

namespace qdelta::eval {

class LambadaTask final : public LikelihoodTask {
 public:
  LambadaTask(std::string name, const RequestEncoder& encoder, std::span<const Record> records);

 private:
  [[nodiscard]] nlohmann::json shown(std::int64_t example) const override;
  [[nodiscard]] nlohmann::json values(std::int64_t example, std::span<const Likelihood> likelihoods) const override;

  std::vector<std::string> contexts_, words_;
};

}  // namespace qdelta::eval
