// What is compared: a token mixer, or one with something about it changed, written like
//
//   q_delta                     the name of a rule, or mamba
//   q_delta@lambda=0.5          lambda has this value instead of being learned
//   q_delta@no_decay            alpha = 1
//   q_delta@lambda=1@no_decay   both
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace qdelta::compare {

struct Variant {
  std::string name;  // as it is written; also of its folder
  std::string mixer;
  std::optional<double> fixed_lambda;
  bool no_decay = false;

  // As in a table: "Q-Delta, λ = 0.5".
  [[nodiscard]] std::string title() const;
  // The model with this mixer and these changes. Throws Error(invalid_argument) where they contradict it.
  [[nodiscard]] ModelConfig applied(const ModelConfig& base) const;
};

// Throws Error(invalid_argument) for what is no mixer, or a change that it does not know.
[[nodiscard]] Variant variant_of(std::string_view text);
// Several, with commas between; each once.
[[nodiscard]] std::vector<Variant> variants_of(std::string_view text);
// The rows of the paper's ablation of lambda: learned, 0.2, 0.5, 0.8, no decay, no gating (lambda = 1).
[[nodiscard]] std::vector<Variant> paper_ablations();

}  // namespace qdelta::compare
