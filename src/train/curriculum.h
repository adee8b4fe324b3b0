// Sequence lengths that grow in the course of a run. The rows and their order stay the same: in a stage they are cut
// into sequences of at most so many tokens, so every token is seen as often as without a curriculum.
#pragma once

#include <cstdint>
#include <span>

#include "core/error.h"

namespace qdelta {

struct CurriculumStage {
  std::int64_t tokens = 0;  // of a sequence, at most
  std::int64_t steps = 0;
};

inline void check_curriculum(std::span<const CurriculumStage> stages) {
  for (const CurriculumStage& stage : stages) {
    require(stage.tokens > 0 && stage.steps > 0, "a curriculum has {} steps with sequences of {} tokens", stage.steps,
            stage.tokens);
  }
}

// The limit at a step, from 1; 0 after the last stage: none.
[[nodiscard]] inline std::int64_t curriculum_tokens(std::span<const CurriculumStage> stages, std::int64_t step) {
  for (const CurriculumStage& stage : stages) {
    if (step <= stage.steps) return stage.tokens;
    step -= stage.steps;
  }
  return 0;
}

}  // namespace qdelta
