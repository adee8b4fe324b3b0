// Which parameters decay.
#pragma once

#include <cstdint>
#include <vector>

#include "model/parameters.h"

namespace qdelta {

struct DecayedParameters {
  // all: every parameter, as the paper has it. matrices: those that inputs are multiplied with, that is no norms, no
  // biases, and of a mixer neither A_log nor dt_bias nor D.
  enum class Which { matrices, all } which = Which::matrices;
  bool embeddings = true;  // with `matrices`: the embeddings too; a head of its own is a matrix like others
};

// AdamW::decays for the flat array; empty where all decay.
[[nodiscard]] std::vector<std::uint8_t> decay_groups(const ParameterLayout& layout, const DecayedParameters& decayed);

}  // namespace qdelta
