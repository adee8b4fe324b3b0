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
// Products of at most kFewRows rows (few_rows.cu): y = after(add + before(x) w^T). Missing members are left out.
struct FewRowsProduct {
  const RmsNormForward* norm = nullptr;          // before: linear.x is its y
  const GatedNormForward* gated_norm = nullptr;  // likewise
  LinearForward linear;
  const ShortConvForward* conv = nullptr;  // after: its channels are the first outputs, which go to its y
  const SwigluForward* swiglu = nullptr;   // after: its gate and up are the halves of linear.y
};
[[nodiscard]] bool fits_few_rows(const Context& context, const FewRowsProduct& args);
void few_rows_product(const Context& context, const FewRowsProduct& args);

// The recurrence with the gates ahead of it (recurrence_step.cu).
void gated_recurrence_step(const Context& context, const GatesForward& gates, const RecurrenceStep& step);

// All between the products of a mixer, a block for each head of each row (mixer_step.cu).
[[nodiscard]] bool fits_heads_step(const Context& context, const MixerStep& args);
void heads_step(const Context& context, const MixerStep& args);

}  // namespace qdelta::cuda
