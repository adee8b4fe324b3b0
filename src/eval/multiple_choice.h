// Questions with several answers to choose from. The model's choice is the likeliest:
//
//   acc        argmax of log p(" " + answer | question)
//   acc_norm   argmax of the same divided by the answer's length in characters
//
// and ties go to the first. In WinoGrande the choices are contexts, and the continuation is the same for all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eval/data_file.h"
#include "eval/task.h"

namespace qdelta::eval {

struct ChoiceRequest {
  std::string context, continuation;
};

struct ChoiceQuestion {
  std::vector<ChoiceRequest> requests;  // one for each choice
  std::vector<std::string> choices;     // as acc_norm measures them
  std::int64_t gold = 0;
};

// Out of a record in any of the layouts that the data set comes in. Throws with the record's place.
[[nodiscard]] ChoiceQuestion arc_question(const JsonAt& record);
[[nodiscard]] ChoiceQuestion hellaswag_question(const JsonAt& record);
[[nodiscard]] ChoiceQuestion piqa_question(const JsonAt& record);
[[nodiscard]] ChoiceQuestion winogrande_question(const JsonAt& record);
[[nodiscard]] ChoiceQuestion boolq_question(const JsonAt& record);
[[nodiscard]] ChoiceQuestion openbookqa_question(const JsonAt& record);

// HellaSwag's texts without the marks of the pages they come from.
[[nodiscard]] std::string hellaswag_cleaned(std::string_view text);

// PIQA comes with its labels in a file beside it: puts them into the records that have none. `path` is the records'.
void add_piqa_labels(std::vector<Record>& records, const std::string& path);

struct ChoiceMetrics {
  bool acc = true, acc_norm = true;
};

class ChoiceTask final : public LikelihoodTask {
 public:
  // Questions made out of these records.
  ChoiceTask(std::string name, const RequestEncoder& encoder, std::span<const Record> records,
             std::vector<ChoiceQuestion> questions, const ChoiceMetrics& metrics);

 private:
  [[nodiscard]] nlohmann::json shown(std::int64_t example) const override;
  [[nodiscard]] nlohmann::json values(std::int64_t example, std::span<const Likelihood> likelihoods) const override;

  std::vector<ChoiceQuestion> questions_;
  ChoiceMetrics measured_;
};

}  // namespace qdelta::eval
