// The mixer of the delta rules, h the input of a token:
//
//   q, k, v = silu(conv(q_proj(h))), ...         causal, per channel
//   g, beta, lambda                              from projections of h (kernels/layers.h), or fixed, as the rule says
//   o   = recurrence(q, k, v, g, beta, lambda)   over L2-normalised q and k (kernels/recurrence.h)
//   out = o_proj( norm(o) . a(g_proj(h)) )       an RMS norm per head; a is silu, or sigmoid
#pragma once

#include "kernels/layers.h"
#include "kernels/recurrence.h"
#include "kernels/recurrence_map.h"
#include "model/config.h"
#include "model/mixer.h"
#include "model/mixer_types.h"

namespace qdelta {

[[nodiscard]] std::unique_ptr<Mixer> make_recurrence_mixer(const MixerType& type,
                                                           std::shared_ptr<const ModelConfig> config);

// [N, width] of the device's type of activations, where nothing else is said.
struct RecurrenceActivations : MixerActivations {
  TensorView projected;        // all projections of the input, side by side
  TensorView qkv;              // after the convolution; missing where it is recomputed
  TensorView g, beta, lambda;  // [N, HV] f32; whatever where the rule does not read one
  TensorView chunk_states;     // [chunks, HV, K, V]; missing outside of training
  std::span<std::byte> saved;  // by the recurrence for its backward, likewise and where it recomputes
  TensorView o;                // of the recurrence
  // Of a part of a batch (sequence_part.h), float32:
  TensorView before;  // [conv_size - 1, q, k and v channels]: the convolution's inputs before the first sequence
  TensorView map;     // [1, HV, K, K]: M of a sequence that goes through the whole part
};

struct RecurrenceScratch : MixerScratch {
  TensorView qkv;       // where the activations do not have it
  TensorView head_out;  // the gated norm's output; in the backward its gradient, too
  TensorView d_o;       // these in training only
  TensorView d_projected, d_qkv;
  TensorView dg, dbeta, dlambda;
  TensorView d_ones;  // of the convolution that stands in where the model has none
  // Of a part of a batch, float32:
  TensorView rows_own, rows_in;  // like `before`: what goes over the cuts
  TensorView states;             // [sequences, HV, K, V]: on entry, or gradients on exit
  TensorView state_own;          // [1, HV, K, V]: what goes over a cut, S_out or dS_in
};

struct BlockActivations;
// What the recurrence of a layer has computed; null where the layer's mixer is another.
[[nodiscard]] const RecurrenceActivations* recurrence_activations(const BlockActivations& activations);

class RecurrenceMixer final : public Mixer {
 public:
  RecurrenceMixer(Rule rule, std::shared_ptr<const ModelConfig> config);

  void check() const override;
  [[nodiscard]] double approximate_parameters() const override;
  void write_config(nlohmann::ordered_json& json) const override;
  [[nodiscard]] MixerDescription description() const override;
  [[nodiscard]] double forward_flop() const override;
  [[nodiscard]] double backward_flop() const override;
  [[nodiscard]] std::vector<StateTensor> state_tensors() const override;
  [[nodiscard]] std::int64_t recent_elements(const Device& device) const override;
  void settle(const Device& device, std::span<const TensorView> pools, const TensorView& recent) const override;
  void undo(const Device& device, std::span<const TensorView> pools, const TensorView& recent,
            std::int64_t tokens) const override;
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
  using Activations = RecurrenceActivations;
  using Scratch = RecurrenceScratch;
  static constexpr std::size_t kConvPool = 0, kRecurrentPool = 1;  // the order of state_tensors()

  [[nodiscard]] std::int64_t channels() const { return 2 * config_->key_width() + config_->value_width(); }
  [[nodiscard]] bool learns_decay() const { return config_->use_decay && traits_.learns_decay; }
  [[nodiscard]] bool learns_lambda() const { return traits_.reads_lambda && !config_->fixed_lambda; }
  void place_projections(const std::string& prefix, ParameterPlacer& placer);
  void place_constants(ParameterPlacer& placer);

  [[nodiscard]] static const TensorView& qkv_of(const Activations& a, const Scratch& s) {
    return a.qkv ? a.qkv : s.qkv;
  }
  [[nodiscard]] RecurrenceInputs inputs(const Batch& batch, const Activations& a, const TensorView& qkv) const;
  [[nodiscard]] RecurrenceForward forward_args(const LayerContext& context, const Activations& a, const TensorView& qkv,
                                               const TensorView& states) const;
  // The parts of what steps keep: for the convolution, then for the recurrence.
  [[nodiscard]] std::int64_t evicted_elements() const;
  [[nodiscard]] TensorView evicted_inputs(const TensorView& recent) const;
  [[nodiscard]] TensorView recent_of_heads(const TensorView& recent) const;
  [[nodiscard]] RecurrenceStep step_args(const Activations& a, const MixerState& state) const;
  [[nodiscard]] RecurrenceBackward backward_args(const LayerContext& context, const Activations& a,
                                                 const Scratch& s) const;
  [[nodiscard]] GatesForward gates(const Weights& weights, const Activations& a) const;
  [[nodiscard]] ConstTensorView conv_weight(const Weights& weights) const;
  void fill_fixed_gates(const LayerContext& context, const Activations& a) const;
  // o from q, k, v and the gates.
  void run_recurrence(const LayerContext& context, const Activations& a, const Scratch& s,
                      const MixerState& state) const;
  // For a part of a batch: the states that the sequences begin with, or the gradients of those that they end with.
  // Missing where all are zero.
  [[nodiscard]] RecurrenceInputs inputs_of_sequence(const LayerContext& context, const Activations& a,
                                                    const TensorView& qkv, std::int64_t sequence) const;
  [[nodiscard]] TensorView carry_states(const LayerContext& context, const Activations& a, const Scratch& s) const;
  [[nodiscard]] TensorView carry_state_gradients(const LayerContext& context, const Activations& a,
                                                 const Scratch& s) const;
  // qkv from the projections.
  [[nodiscard]] ShortConvForward convolution(const LayerContext& context, const Activations& a, const TensorView& qkv,
                                             const MixerState& state) const;
  void gates_and_conv_backward(const LayerContext& context, std::span<float> gradients, const Activations& a,
                               const Scratch& s) const;
  void projections_backward(const LayerContext& context, const Backward& args, const Scratch& s) const;

  Rule rule_;
  const RuleTraits& traits_;
  std::shared_ptr<const ModelConfig> config_;

  // The projections of a token, side by side: q, k, v, then the output gate, then the gates a, b, lambda.
  Slot projections_;                                                    // [projected_, hidden]
  std::int64_t gate_at_ = -1, a_at_ = -1, b_at_ = -1, lambda_at_ = -1;  // columns; -1: none
  std::int64_t used_ = 0;                                               // columns
  std::int64_t projected_ = 0;  // rounded up: products of odd widths are slow. The rest of the rows is zero
  Slot conv_;                   // [q, k and v channels, conv_size]
  Slot A_log_, dt_bias_, lambda_bias_;
  Slot out_norm_, out_;
  // Constants: weights of a convolution of width one where the model has none, gates that no parameter makes
  // ([1, HV]), and zeros for the columns of d_projected that belong to no projection.
  Slot ones_, fixed_g_, fixed_lambda_, zeros_;
};

}  // namespace qdelta
