// The steps of kernels/steps.h in fewer launches than they have ops, where the shapes allow it. false: they do not, and
// nothing was launched.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/layers.h"
#include "kernels/steps.h"

namespace qdelta::cuda {

[[nodiscard]] bool mixer_step(const Context& context, const MixerStep& args);
[[nodiscard]] bool mlp_step(const Context& context, const MlpStep& args);
[[nodiscard]] bool head_step(const Context& context, const HeadStep& args);

// What they consist of.
//
// y = after(add + before(x) w^T) of a step's rows, in bfloat16 (step_product.cuh). A row has the same bits whatever the
// rows beside it. Missing members are left out.
struct StepProduct {
  const RmsNormForward* norm = nullptr;          // before: linear.x is its y
  const GatedNormForward* gated_norm = nullptr;  // likewise
  LinearForward linear;
  const ShortConvForward* conv = nullptr;  // after: its channels are the first outputs, which go to its y
  const SwigluForward* swiglu = nullptr;   // after: its gate and up are the halves of linear.y
};
[[nodiscard]] bool fits_step_product(const Context& context, const StepProduct& args);
void step_product(const Context& context, const StepProduct& args);

inline constexpr std::int64_t kFewRows = 8;    // that one launch of few_rows.cu takes
inline constexpr std::int64_t kFusedRows = 1;  // up to here it is faster than a norm and a product of many rows

// The recurrence with the gates ahead of it (recurrence_step.cu).
void gated_recurrence_step(const Context& context, const GatesForward& gates, const RecurrenceStep& step);

}  // namespace qdelta::cuda
