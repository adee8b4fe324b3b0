// One block: h = norm(x);  x += mixer(h);  x += mlp(norm(x)).
//
// The mixer: projections of h; q, k, v through a short causal convolution with silu; the gates; the recurrence over
// L2-normalised q and k; an RMS norm per head, gated by silu of one more projection; the output projection.
//
// Everything is written once, against the kernels' contracts. Activations lie in memory that the caller plans; what the
// backward needs of the forward is kept there, what is cheap is computed again.
#pragma once

#include <cstdint>
#include <span>

#include "core/memory.h"
#include "kernels/kernels.h"
#include "kernels/layers.h"
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
  TensorView mixed;             // q, k, v after the convolution
  TensorView g, beta, lambda;   // [N, HV] f32
  TensorView chunk_states;      // [chunks, HV, K, V]; missing where only a forward is wanted
  TensorView o;                 // of the recurrence
  TensorView middle;            // the residual stream between mixer and MLP, f32
  TensorView mlp_inverse_rms;   // [N] f32
  TensorView gate_up;           // of the MLP

  // Takes the memory of one block; `chunks` is zero where only a forward is wanted. `x` is given by the caller.
  BlockActivations(const ModelConfig& config, const BlockLayout& layout, DType dtype, std::int64_t rows,
                   std::int64_t chunks, BumpAllocator& memory);
};

// Memory that one block after the other uses.
struct BlockScratch {
  TensorView normed;       // [N, hidden]
  TensorView head_out;     // [N, value width]: the gated norm's output, and the gradient of the recurrence's
  TensorView d_head_out;   // [N, value width]
  TensorView hidden;       // [N, mlp width]
  TensorView d_gate_up;    // [N, 2 mlp width]
  TensorView d_projected;  // [N, projected]
  TensorView d_mixed;      // [N, q, k, v]
  TensorView d_stream;     // [N, hidden]: the residual stream's gradient as activations; missing where those are f32
  TensorView dg, dbeta, dlambda;
  TensorView ones, d_ones;           // weights of a convolution of width one, where the model has no convolution
  TensorView fixed_g, fixed_lambda;  // [1, HV] f32: gates that no parameter makes
  std::span<std::byte> recurrence;   // grown as needed by the owner

  BlockScratch(const ModelConfig& config, const BlockLayout& layout, DType dtype, std::int64_t rows, bool backward,
               BumpAllocator& memory);
  // The gradient of the residual stream as activations: d_stream, kept beside `dx`, or `dx` itself.
  [[nodiscard]] ConstTensorView d_stream_of(const TensorView& dx) const { return d_stream ? d_stream : dx; }
  // Writes what is the same for all calls: ones, and gates that no parameter makes.
  void fill_constants(const Device& device, const ModelConfig& config);
};

// Where a block finds and leaves its recurrent state, for inference. Missing views: start from zeros, keep nothing.
struct BlockState {
  TensorView conv;                             // [P, conv_size - 1, channels]
  TensorView recurrent;                        // [P, HV, K, V]
  std::span<const std::int64_t> slots;         // the state of each sequence
  std::span<const std::int64_t> device_slots;  // the same, where kernels can read them
};

class Block {
 public:
  Block(const ModelConfig& config, const BlockLayout& layout) : config_(config), layout_(layout) {}

  // Reads a.x, writes the residual stream on exit to `out`.
  void forward(const Device& device, const Weights& weights, const Batch& batch, BlockActivations& a, BlockScratch& s,
               const TensorView& out, const BlockState& state) const;
  // `dx` holds the gradient of `out` and becomes that of a.x. Gradients of parameters are added to.
  void backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                const BlockActivations& a, BlockScratch& s, const TensorView& dx) const;

  // Bytes of BlockScratch::recurrence that forward and, if asked, backward need for this batch.
  [[nodiscard]] std::size_t recurrence_workspace(const Device& device, const Batch& batch, const BlockActivations& a,
                                                 BlockScratch& s, const BlockState& state, bool backward) const;

 private:
  [[nodiscard]] RecurrenceInputs recurrence_inputs(const Batch& batch, const BlockActivations& a) const;
  [[nodiscard]] RecurrenceForward recurrence_forward_args(const Device& device, const Batch& batch,
                                                          const BlockActivations& a, const TensorView& states) const;
  [[nodiscard]] RecurrenceStep recurrence_step_args(const Device& device, const BlockActivations& a,
                                                    const BlockState& state) const;
  [[nodiscard]] RecurrenceBackward recurrence_backward_args(const Device& device, const Batch& batch,
                                                            const BlockActivations& a, const BlockScratch& s) const;
  [[nodiscard]] GatesForward gates(const Weights& weights, const BlockActivations& a) const;
  void fill_fixed_gates(const Device& device, const BlockActivations& a, const BlockScratch& s) const;
  // o from q, k, v and the gates: in place on the pool of states where every sequence has one token.
  void run_recurrence(const Device& device, const Batch& batch, const BlockActivations& a, BlockScratch& s,
                      const BlockState& state) const;
  void mixer_backward(const Device& device, const Weights& weights, std::span<float> gradients, const Batch& batch,
                      const BlockActivations& a, BlockScratch& s, const TensorView& dx) const;
  void mlp_backward(const Device& device, const Weights& weights, std::span<float> gradients, const BlockActivations& a,
                    BlockScratch& s, const TensorView& dx) const;

  const ModelConfig& config_;
  const BlockLayout& layout_;
};

}  // namespace qdelta
