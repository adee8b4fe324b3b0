// A run that starts from the weights of a model.
#pragma once

#include <string>
#include <vector>

#include "model/language_model.h"

namespace qdelta {

// Copies the weights of the model in `folder` into `model`, whose parameters are initialised. All tensors must be there
// with the same shapes; only the vocabulary may have grown or shrunk: tokens that both have keep their rows of the
// embeddings and the head, others start anew. Gives what a person should know about it, a line each.
[[nodiscard]] std::vector<std::string> start_from(const std::string& folder, const std::string& tokenizer,
                                                  LanguageModel& model);

}  // namespace qdelta
