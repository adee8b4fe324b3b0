// The memory of a block: what its forward leaves for its backward, what all blocks share, and where it finds its state.
// It is planned once per shape. A mixer leaves missing what it does not use.
#pragma once

#include <cstdint>
#include <span>

#include "core/memory.h"
#include "kernels/device.h"
#include "model/parameters.h"

namespace qdelta {

// The tokens of a call: N rows of all sequences together, sequence n being rows [offsets[n], offsets[n + 1]).
struct Batch {
  std::span<const std::int64_t> offsets;
  std::span<const std::int64_t> device_offsets;  // the same, where kernels can read them

  [[nodiscard]] std::int64_t rows() const { return offsets.back(); }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  // The length of every sequence; 0 where they differ.
  [[nodiscard]] std::int64_t common_length() const;
};

// What a forward leaves for its backward. [N, width] of the device's type of activations, where nothing else is said.
struct BlockActivations {
  TensorView x;                 // the residual stream on entry, f32
  TensorView attn_inverse_rms;  // [N] f32
  TensorView projected;         // projections of the normalised x
  TensorView mixed;             // q, k, v (Mamba: x) after the convolution
  TensorView g, beta, lambda;   // [N, HV] f32; the recurrence's gates
  TensorView low;               // Mamba: dt before its last projection, B and C
  TensorView dt;                // Mamba: [N, inner width]
  TensorView chunk_states;      // as ModelConfig::recurrent_states; missing where only a forward is wanted
  std::span<std::byte> saved;   // for the backward by the recurrence
  TensorView o;                 // of the recurrence; of Mamba's scan, gated
  TensorView middle;            // the residual stream between mixer and MLP, f32
  TensorView mlp_inverse_rms;   // [N] f32
  TensorView gate_up;           // of the MLP

  // Takes the memory of one block; `chunks` (kept_states) is zero where only a forward is wanted. `x` is given by the
  // caller. What the model's mixer has no use for stays missing.
  BlockActivations(const ModelConfig& config, const BlockLayout& layout, const Device& device, std::int64_t rows,
                   std::int64_t chunks, BumpAllocator& memory);
};

// Memory that one block after the other uses.
struct BlockScratch {
  TensorView normed;       // [N, hidden]
  TensorView head_out;     // [N, value width]: the gated norm's output, and the gradient of the recurrence's
  TensorView d_head_out;   // [N, value width]; Mamba: [N, inner width]
  TensorView hidden;       // [N, mlp width]
  TensorView d_gate_up;    // [N, 2 mlp width]
  TensorView d_projected;  // [N, projected]
  TensorView d_mixed;      // as mixed
  TensorView d_low, d_dt;  // as low and dt
  TensorView d_stream;     // [N, hidden]: the residual stream's gradient as activations; missing where those are f32
  TensorView dg, dbeta, dlambda;
  TensorView ones, d_ones;           // weights of a convolution of width one, where the model has no convolution
  TensorView fixed_g, fixed_lambda;  // [1, HV] f32: gates that no parameter makes
  std::span<std::byte> workspace;    // of the mixer; grown as needed by the owner

  BlockScratch(const ModelConfig& config, const BlockLayout& layout, DType dtype, std::int64_t rows, bool backward,
               BumpAllocator& memory);
  // The gradient of the residual stream as activations: d_stream, kept beside `dx`, or `dx` itself.
  [[nodiscard]] ConstTensorView d_stream_of(const TensorView& dx) const { return d_stream ? d_stream : dx; }
  // Writes what is the same for all calls: ones, and gates that no parameter makes.
  void fill_constants(const Device& device, const ModelConfig& config) const;
};

// Where a block finds and leaves its recurrent state, for inference. Missing views: start from zeros, keep nothing.
struct BlockState {
  TensorView conv;                             // as ModelConfig::conv_states
  TensorView recurrent;                        // as ModelConfig::recurrent_states
  std::span<const std::int64_t> slots;         // the state of each sequence
  std::span<const std::int64_t> device_slots;  // the same, where kernels can read them
};

// How many states a forward over these sequences keeps in chunk_states.
[[nodiscard]] std::int64_t kept_states(const ModelConfig& config, std::span<const std::int64_t> offsets);

}  // namespace qdelta
