// The ops of kernels/layers.h, the single step of the recurrence and the sampler on a GPU: same names, same argument
// structs, the stream and the matrix library in a Context. What differs from the CPU:
//
//   Memory      every pointer is to device memory: views, and also the spans of the structs (ids, targets, loss, best,
//               offsets, slots), of which the host reads nothing but the size. So it cannot check what they hold:
//               a token id outside the table reads as NaN and gets no gradient, a target beyond the vocabulary has the
//               loss NaN, a sequence whose slot lies outside the pool has no state.
//   Types       activations and matrices are float32 or bfloat16; vectors of parameters (norm and convolution weights,
//               A_log, biases), statistics (inverse_rms, loss) and gradients of parameters are float32. rms_norm,
//               embedding and copy_rows convert: each of their views has a type of its own. In linear x, w (and dy)
//               share one type and each output has its own. In swiglu, gated_norm and short_conv all activations share
//               one. In gates each view has its own.
//   Scratch     ops that sum over rows take a workspace of at least as many bytes as their ..._workspace function says,
//               which starts at a multiple of kAlignment. Nothing is allocated.
//   Order       everything is put on context.stream(); the host waits for nothing, and all of it can be captured in a
//               graph (after one call outside, which loads the kernels and chooses the matrix products' algorithms).
//               Sums are taken in an order that the shapes fix: the same input gives the same bits.
//   Speed       rows that start at multiples of 16 bytes (in pointer and stride) take the fast paths, and vectors of
//               parameters that start at multiples of 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/context.h"
#include "kernels/layers.h"
#include "kernels/recurrence.h"
#include "kernels/sampling.h"

namespace qdelta::cuda {

void linear_forward(const Context& context, const LinearForward& args);
void linear_backward(const Context& context, const LinearBackward& args);

// Also gathers rows of any matrix: `table` may be activations.
void embedding_forward(const Context& context, const EmbeddingForward& args);
void embedding_backward(const Context& context, const EmbeddingBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t embedding_backward_workspace(const EmbeddingBackward& args);

// Rows of at most kMaxNormWidth.
inline constexpr std::int64_t kMaxNormWidth = 8192;
void rms_norm_forward(const Context& context, const RmsNormForward& args);
void rms_norm_backward(const Context& context, const RmsNormBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t rms_norm_backward_workspace(const RmsNormBackward& args);
void gated_norm_forward(const Context& context, const GatedNormForward& args);
void gated_norm_backward(const Context& context, const GatedNormBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t gated_norm_backward_workspace(const GatedNormBackward& args);

// At most kMaxConvWidth taps. The state is float32 or bfloat16.
inline constexpr std::int64_t kMaxConvWidth = 16;
void short_conv_forward(const Context& context, const ShortConvForward& args);
void short_conv_undo(const Context& context, const ShortConvUndo& args);
void short_conv_backward(const Context& context, const ShortConvBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t short_conv_backward_workspace(const ShortConvBackward& args);

void gates_forward(const Context& context, const GatesForward& args);
void gates_backward(const Context& context, const GatesBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t gates_backward_workspace(const GatesBackward& args);

void swiglu_forward(const Context& context, const SwigluForward& args);
void swiglu_backward(const Context& context, const SwigluBackward& args);

void cross_entropy(const Context& context, const CrossEntropy& args);
void top_logits(const Context& context, const TopLogits& args);

// Also converts, and with a row stride of 0 in `from` writes the same row everywhere.
void copy_rows(const Context& context, const CopyRows& args);
void add_product(const Context& context, const AddProduct& args);

// A row whose slot lies outside the pool is left out.
void gather_slots(const Context& context, const CopySlots& args);
void scatter_slots(const Context& context, const CopySlots& args);

// A sum in double, to `out` in device memory.
void sum_of_values(const Context& context, std::span<const float> values, double* out, std::span<std::byte> workspace);
[[nodiscard]] std::size_t sum_workspace();

// What clipping makes of the gradients, in device memory, so that the optimizer's step waits for nobody.
struct Clipping {
  double sum_of_squares;
  float scale;          // min(1, max_norm / (norm + 1e-6)); 1 where max_norm is 0
  std::int32_t finite;  // 0: a gradient is infinite or NaN, and the update is left out
};
void clip_gradients(const Context& context, std::span<const float> gradients, float max_norm, Clipping* out,
                    std::span<std::byte> workspace);

// AdamW in one launch. The scale is gradient_scale times that of `clipping`; where that says not finite, nothing
// changes.
struct AdamWDevice {
  AdamW args;
  const Clipping* clipping = nullptr;  // optional
  std::span<BFloat16> rounded;         // the new parameters in bfloat16; optional
};
void adamw(const Context& context, const AdamWDevice& args);

// As recurrence.h has it. K is at most 256. The index is in device memory: a row whose index lies
// outside the pool (-1, say) is left out: its output is zero and no state changes.
inline constexpr std::int64_t kMaxStepKeys = 256;
void recurrence_step(const Context& context, const RecurrenceStep& args);
void recurrence_settle(const Context& context, const RecurrenceSettle& args);
void recurrence_undo(const Context& context, const RecurrenceUndo& args);

// As sampling.h has it. A row whose slot lies outside the pool is skipped.
void sample(const Context& context, const Sample& args);

}  // namespace qdelta::cuda
