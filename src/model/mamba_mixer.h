// Mamba's mixer (Gu and Dao, 2023), h the input of a token:
//
//   x, z = in_proj(h)                            both of the inner width
//   x    = silu(conv(x) + bias)                  causal, per channel
//   low, B, C = x_proj(x)                        of dt_rank, N and N columns
//   dt   = dt_proj(low)                          its bias and softplus are the scan's
//   out  = out_proj( scan(x, dt, B, C, z) )      kernels/selective_scan.h
#pragma once

#include "kernels/layers.h"
#include "kernels/selective_scan.h"
#include "model/config.h"
#include "model/mixer.h"
#include "model/mixer_types.h"

namespace qdelta {

[[nodiscard]] std::unique_ptr<Mixer> make_mamba_mixer(const MixerType& type, std::shared_ptr<const ModelConfig> config);

// [N, width] of the device's type of activations, where nothing else is said.
struct MambaActivations : MixerActivations {
  TensorView projected;  // x and z
  TensorView x;          // after the convolution
  TensorView low;        // dt before its last projection, B and C
  TensorView dt;
  TensorView chunk_states;  // [scan_chunks(N), states, inner width] f32; missing outside of training
  TensorView y;             // of the scan, gated
  // Of a part of a batch (sequence_part.h), float32:
  TensorView before;  // [conv_size - 1, inner width]: the convolution's inputs before the first sequence
  TensorView entry;   // [1, states, inner width]: the state that the first sequence begins with
  TensorView map;     // [1, states, inner width]: the diagonal of M of a sequence that goes through the whole part
};

struct MambaScratch : MixerScratch {
  TensorView d_projected, d_x, d_low, d_dt, d_y;  // these in training only
  // Of a part of a batch, float32:
  TensorView rows_own, rows_in;          // like `before`: what goes over the cuts
  TensorView states, d_states;           // [sequences, states, inner width]: on entry, and gradients on exit
  TensorView state_own;                  // [1, states, inner width]: what goes over a cut, h_out or dh_in
  TensorView no_input;                   // [1, inner width]: zeros
  TensorView offsets;                    // [2] i64: of one sequence
  TensorView dA_log, d_skip, d_dt_bias;  // of the parameters, where nobody wants them
};

class MambaMixer final : public Mixer {
 public:
  explicit MambaMixer(std::shared_ptr<const ModelConfig> config) : config_(std::move(config)) {}

  void check() const override;
  [[nodiscard]] double approximate_parameters() const override;
  void write_config(nlohmann::ordered_json& json) const override;
  [[nodiscard]] MixerDescription description() const override;
  [[nodiscard]] double forward_flop() const override;
  [[nodiscard]] double backward_flop() const override;
  [[nodiscard]] std::vector<StateTensor> state_tensors() const override;
  // A GPU passes states from chunk to chunk in another order than it leaves them at the end of a call.
  [[nodiscard]] bool cuts_keep_bits(const Device& device) const override { return device.gpu == nullptr; }
  void place(const std::string& prefix, ParameterPlacer& placer) override;
  [[nodiscard]] std::unique_ptr<MixerActivations> plan_activations(const Device& device, const BatchShape& shape,
                                                                   BumpAllocator& memory) const override;
  [[nodiscard]] std::unique_ptr<MixerScratch> plan_scratch(const Device& device, const BatchShape& shape,
                                                           BumpAllocator& memory) const override;
  void forward(const LayerContext& context, const Forward& args, MixerActivations& activations, MixerScratch& scratch,
               const MixerState& state) const override;
  void backward(const LayerContext& context, const Backward& args, const MixerActivations& activations,
                MixerScratch& scratch) const override;

 private:
  using Activations = MambaActivations;
  using Scratch = MambaScratch;
  static constexpr std::size_t kConvPool = 0, kRecurrentPool = 1;  // the order of state_tensors()

  [[nodiscard]] std::int64_t inner() const { return config_->inner_width(); }
  [[nodiscard]] SelectiveScanInputs inputs(const LayerContext& context, const Activations& a) const;
  [[nodiscard]] SelectiveScanForward forward_args(const LayerContext& context, const Activations& a,
                                                  const TensorView& states) const;
  [[nodiscard]] SelectiveScanBackward backward_args(const LayerContext& context, std::span<float> gradients,
                                                    const Activations& a, const Scratch& s) const;
  void run_scan(const LayerContext& context, const Activations& a, const Scratch& s, const MixerState& state) const;
  // For a part of a batch: the states that the sequences begin with (again), and the gradients of those that they end
  // with. Missing where all are zero.
  [[nodiscard]] TensorView carry_states(const LayerContext& context, const Activations& a, const Scratch& s) const;
  [[nodiscard]] static TensorView states_on_entry(const LayerContext& context, const Activations& a, const Scratch& s);
  [[nodiscard]] static std::span<const std::int64_t> one_sequence(const LayerContext& context, const Scratch& s,
                                                                  std::int64_t tokens);
  [[nodiscard]] TensorView carry_state_gradients(const LayerContext& context, std::span<float> gradients,
                                                 const Activations& a, const Scratch& s) const;

  std::shared_ptr<const ModelConfig> config_;
  Slot in_proj_;  // [2 inner width, hidden]
  Slot conv_, conv_bias_;
  Slot x_proj_, dt_proj_, dt_bias_, A_log_, skip_;
  Slot out_proj_;
};

}  // namespace qdelta
