// The parameters of a model: one flat array, in which every tensor has a name and a place. Gradients and the
// optimizer's moments have the same layout, so that a step runs over flat arrays. Tensors that are used in one matrix
// product lie side by side (the projections of a block; gate and up of its MLP), so that they also are one tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "model/config.h"

namespace qdelta {

// The flat array where kernels can reach it, and a copy rounded to bfloat16 where activations are bfloat16.
struct Weights {
  std::span<const float> values;
  const BFloat16* rounded = nullptr;  // as many; null: matrices are float32, too
};

// A place in the flat array.
struct Slot {
  std::int64_t offset = -1;  // in floats; -1: this model has no such tensor
  Shape shape;

  [[nodiscard]] bool exists() const { return offset >= 0; }
  [[nodiscard]] TensorView in(std::span<float> array) const;
  [[nodiscard]] ConstTensorView in(std::span<const float> array) const;
  // Of the weights: as float32, or as activations are multiplied with it.
  [[nodiscard]] ConstTensorView in(const Weights& weights) const { return in(weights.values); }
  [[nodiscard]] ConstTensorView matrix_in(const Weights& weights) const;
};

struct NamedSlot {
  std::string name;  // as published
  Slot slot;
};

struct BlockLayout {
  Slot attn_norm, mlp_norm;
  // The projections of a token, side by side: q, k, v, then the output gate, then the gates a, b, lambda. Mamba's are x
  // and its gate z.
  Slot projections;  // [sum of widths, hidden]
  std::int64_t q_at = 0, k_at = 0, v_at = 0, gate_at = -1, a_at = -1, b_at = -1, lambda_at = -1;  // columns; -1: none
  std::int64_t projected = 0;  // their total, rounded up: products of odd widths are slow. The rest of the rows is zero
  Slot conv;                   // [q, k and v (Mamba: x) channels, conv_size]
  Slot A_log, dt_bias, lambda_bias;
  Slot conv_bias, low, dt, skip;  // Mamba: of its convolution; x_proj; dt_proj; D
  Slot out_norm, out;
  Slot gate_up;  // [2 * mlp width, hidden]
  Slot down;
};

struct ParameterLayout {
  ModelConfig config;
  Slot embeddings, final_norm, head;  // head is embeddings where the two are tied
  std::vector<BlockLayout> blocks;
  std::vector<NamedSlot> tensors;  // every tensor once, with its published name
  std::int64_t size = 0;           // floats of the flat array, with the padding between tensors

  explicit ParameterLayout(const ModelConfig& model);
  [[nodiscard]] std::int64_t parameters() const;  // without the padding
};

// Fills `values` as the published implementations do: normal with initializer_range, but norms one, A uniform in (0,
// 16), dt log-uniform in (0.001, 0.1). Mamba's A of state n is n + 1, its D one; its convolution and dt's projection
// are uniform.
void initialise(const ParameterLayout& layout, std::uint64_t seed, std::span<float> values);

}  // namespace qdelta
