// The contracts of everything a language model needs around the recurrence. As in recurrence.h: one arguments struct
// per op, forward and backward side by side. Gradients of parameters are added to (+=), activations and their gradients
// are written (=) unless a field says otherwise. Matrices are [rows, columns] views whose columns are contiguous and
// whose rows may be apart, so that a slice of a wider matrix can be passed as it is. All are float32 on the CPU; which
// may be bfloat16 on a GPU, and that spans are device memory there, says kernels/cuda/layers.h.
//
// Results do not depend on the number of threads: sums over rows are taken in an order that is fixed by the shapes.
//
// Symbols: N rows (tokens of all sequences), I and O widths in and out, D model width, F width of the MLP.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/gate_activation.h"
#include "kernels/workspace.h"

namespace qdelta {

// y = add + x w^T -----------------------------------------------------------------------------------------------------
struct LinearForward {
  ConstTensorView x;    // [N, I]
  ConstTensorView w;    // [O, I]
  TensorView y;         // [N, O]
  ConstTensorView add;  // [N, O], of y's type, may be y itself; optional: 0
};
// dx = dy w (or +=),  dw += dy^T x
struct LinearBackward {
  ConstTensorView x, w, dy;
  TensorView dx;  // optional
  TensorView dw;  // optional
  bool add_dx = false;
};
void linear_forward(const Device& device, const LinearForward& args);
void linear_backward(const Device& device, const LinearBackward& args);

// y[n] = table[ids[n]] ------------------------------------------------------------------------------------------------
struct EmbeddingForward {
  std::span<const std::int32_t> ids;
  ConstTensorView table;  // [vocabulary, D]
  TensorView y;           // [N, D]
};
// dtable[ids[n]] += dy[n]
struct EmbeddingBackward {
  std::span<const std::int32_t> ids;
  ConstTensorView dy;
  TensorView dtable;
};
void embedding_forward(const Device& device, const EmbeddingForward& args);
void embedding_backward(const Device& device, const EmbeddingBackward& args, Workspace& workspace);

// y = weight x / rms,  rms = sqrt(mean x^2 + epsilon)
// -------------------------------------------------------------------
// The backward has x / rms from y, which the products after the norm keep anyway, so that x itself need not be kept. A
// weight near zero therefore counts as kLeastNormWeight, which no result can tell from zero.
inline constexpr float kLeastNormWeight = 0x1p-60F;
struct RmsNormForward {
  ConstTensorView x;       // [N, D]
  ConstTensorView weight;  // [D]
  TensorView y;            // [N, D]
  TensorView inverse_rms;  // [N], saved for the backward; optional
  float epsilon = 1e-6F;
};
// dx += ... (it joins the gradient of the residual stream),  dweight += sum_n dy x / rms
struct RmsNormBackward {
  ConstTensorView y, weight, inverse_rms, dy;  // y and inverse_rms as the forward left them
  TensorView dx, dweight;
  TensorView rounded;  // on a GPU: receives dx in bfloat16 as well; optional
};
void rms_norm_forward(const Device& device, const RmsNormForward& args);
void rms_norm_backward(const Device& device, const RmsNormBackward& args, Workspace& workspace);

// Per head of width V: y = weight x / rms . activation(gate); without a gate just the norm
// ------------------------------------
struct GatedNormForward {
  ConstTensorView x;       // [N, heads * V]
  ConstTensorView gate;    // [N, heads * V]; optional
  ConstTensorView weight;  // [V]
  TensorView y;            // [N, heads * V]
  float epsilon = 1e-6F;
  GateActivation activation = GateActivation::silu;
};
struct GatedNormBackward {
  ConstTensorView x, gate, weight, dy;
  TensorView dx, dgate;  // written
  TensorView dweight;
  float epsilon = 1e-6F;
  TensorView y;  // receives the forward's result again, may be dy itself; optional
  GateActivation activation = GateActivation::silu;
};
void gated_norm_forward(const Device& device, const GatedNormForward& args);
void gated_norm_backward(const Device& device, const GatedNormBackward& args, Workspace& workspace);

// Causal convolution over W tokens of each channel, then silu
// -----------------------------------------------------------
//   y[t][c] = silu( bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c] ),  with zeros, or `state`, before a sequence's
//   first token; before that of the first sequence alone, with `before`
struct ShortConvForward {
  ConstTensorView x;                      // [N, channels]
  ConstTensorView weight;                 // [channels, W]
  TensorView y;                           // [N, channels]
  std::span<const std::int64_t> offsets;  // sequence n is rows [offsets[n], offsets[n+1])
  TensorView state;                       // [P, W - 1, channels], read and then updated in place; optional
  std::span<const std::int64_t> slots;    // the state of each sequence; empty: sequence n has state n
  ConstTensorView bias;                   // [channels]; optional
  ConstTensorView before = {};            // [W - 1, channels], oldest first; optional, and only without a state
  // On a GPU, of a few tokens with a state in float32: receives the inputs that leave the state, so that up to
  // kEvictedRows tokens can be taken back; optional. [P, kEvictedRows + 1, channels] f32: a ring, and in the last row
  // the place of the next input, for each channel. Zeros to begin with.
  TensorView evicted = {};
};
inline constexpr std::int64_t kEvictedRows = 16;
// The states of R sequences become what they were so many tokens ago; so do the rings.
struct ShortConvUndo {
  TensorView state;    // [R, W - 1, channels]  f32
  TensorView evicted;  // [R, kEvictedRows + 1, channels]  f32
  std::int64_t tokens = 0;
};
struct ShortConvBackward {
  ConstTensorView x, weight, dy;
  TensorView dx;  // written
  TensorView dweight;
  std::span<const std::int64_t> offsets;
  ConstTensorView bias;         // [channels]; optional
  TensorView dbias;             // where there is a bias
  ConstTensorView before = {};  // as in the forward
  TensorView dbefore = {};      // [W - 1, channels], where there is `before`; written
};
void short_conv_forward(const Device& device, const ShortConvForward& args, Workspace& workspace);
void short_conv_undo(const Device& device, const ShortConvUndo& args);  // on a GPU
void short_conv_backward(const Device& device, const ShortConvBackward& args, Workspace& workspace);

// The gates of the recurrence, for each token and value head
// ------------------------------------------------------------
//   step   = softplus(a + dt_bias)          g      = -exp(A_log) step
//   beta   = factor sigmoid(b)              lambda = factor sigmoid(l + lambda_bias)
// factor is 2 where negative eigenvalues are allowed. A missing input leaves its output out: without `a` g is left
// alone.
struct GatesForward {
  ConstTensorView a, b, l;                      // [N, HV]
  ConstTensorView A_log, dt_bias, lambda_bias;  // [HV], [HV], [1]
  float constant_lambda_bias = 0.0F;            // where lambda_bias is missing
  TensorView g, beta, lambda;                   // [N, HV]
  bool step_is_beta = false;                    // Mamba2: beta = step
  float factor = 1.0F;
};
struct GatesBackward {
  GatesForward forward;  // as it was called
  ConstTensorView dg, dbeta, dlambda;
  TensorView da, db, dl;                      // written
  TensorView dA_log, ddt_bias, dlambda_bias;  // the last one optional
};
void gates_forward(const Device& device, const GatesForward& args);
void gates_backward(const Device& device, const GatesBackward& args, Workspace& workspace);

// y = silu(gate) . up
// ---------------------------------------------------------------------------------------------------
struct SwigluForward {
  ConstTensorView gate, up;  // [N, F]
  TensorView y;              // [N, F]
};
struct SwigluBackward {
  ConstTensorView gate, up, dy;
  TensorView dgate, dup;  // written
  TensorView y;           // receives the forward's result again, may be dy itself; optional
};
void swiglu_forward(const Device& device, const SwigluForward& args);
void swiglu_backward(const Device& device, const SwigluBackward& args);

// Cross-entropy of a block of logits
// ------------------------------------------------------------------------------------
//   loss[n] = log sum_v exp(logits[n][v]) - logits[n][target[n]],  0 where target[n] < 0
// `logits` is replaced by its gradient, scale (softmax - onehot), where `gradient` is set.
struct CrossEntropy {
  TensorView logits;                      // [N, vocabulary]
  std::span<const std::int32_t> targets;  // [N]
  std::span<float> loss;                  // [N]
  std::span<std::int32_t> best;           // [N]: the first of the largest logits; optional
  std::span<float> log_sum = {};          // [N]: log sum_v exp(logits[n][v]), also where target[n] < 0; optional
  bool gradient = false;
  float scale = 1.0F;
};
void cross_entropy(const Device& device, const CrossEntropy& args);

// The largest logits
// ----------------------------------------------------------------------------------------------------
// Of each row the `top` largest, the largest first, of equal ones the first. What a row with a NaN gives is not said.
struct TopLogits {
  ConstTensorView logits;          // [N, vocabulary] float32
  std::int64_t top = 1;            // at most the vocabulary
  std::span<std::int32_t> tokens;  // [N, top]: where they stand
  std::span<float> values;         // [N, top]: the logits
};
void top_logits(const Device& device, const TopLogits& args);

// AdamW over one flat array of parameters
// -------------------------------------------------------------------------------
//   m <- b1 m + (1 - b1) g s     v <- b2 v + (1 - b2) (g s)^2        s: gradient_scale, from clipping
//   p <- p - lr ( m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p )
struct AdamW {
  std::span<float> parameters, m, v;
  std::span<const float> gradients;
  float learning_rate = 1e-3F, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-15F, weight_decay = 0.1F;
  float gradient_scale = 1.0F;
  std::int64_t step = 1;        // t, from 1
  std::span<BFloat16> rounded;  // on a GPU: receives the new parameters in bfloat16 as well; optional
  // Of each kDecayGroup parameters, whether they decay (1) or not (0); missing: all do.
  static constexpr std::int64_t kDecayGroup = 16;
  std::span<const std::uint8_t> decays;
};
void adamw(const Device& device, const AdamW& args);
// The same with the gradients clipped to a norm of max_norm, all of them together (0: as they are), and left out where
// one of them is not finite. Gives their norm. On a GPU the update does not wait for it.
[[nodiscard]] double clipped_adamw(const Device& device, const AdamW& args, float max_norm, Workspace& workspace);

// to = from (or +=), row by row. With a row stride of 0 in `from` all rows are the same one.
struct CopyRows {
  ConstTensorView from;  // [N, I]
  TensorView to;
  bool add = false;
};
void copy_rows(const Device& device, const CopyRows& args);

// out += a b, element by element.
struct AddProduct {
  std::span<const float> a, b;
  std::span<float> out;
};
void add_product(const Device& device, const AddProduct& args);

// States of a pool side by side, and back to where they belong.
//   gather   rows[n] = pool[slots[n]]
//   scatter  pool[slots[n]] = rows[n]
struct CopySlots {
  TensorView pool;                      // [P, I] float32, contiguous
  std::span<const std::int64_t> slots;  // [N], of the pool, none of them twice; on a GPU in device memory
  TensorView rows;                      // [N, I] float32, contiguous
};
void gather_slots(const Device& device, const CopySlots& args);
void scatter_slots(const Device& device, const CopySlots& args);

// Sums in double; the same for any number of threads.
[[nodiscard]] double sum_of_squares(const Device& device, std::span<const float> values, Workspace& workspace);
[[nodiscard]] double sum_of_values(const Device& device, std::span<const float> values, Workspace& workspace);

}  // namespace qdelta
