// The language model: embedding, blocks, final norm, output head. Parameters are one flat array (parameters.h); running
// it is the business of a ModelRunner, which owns the memory for activations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/memory.h"
#include "kernels/layers.h"
#include "model/block.h"
#include "model/log_probabilities.h"
#include "model/model_states.h"
#include "model/parameters.h"

namespace qdelta {

class RecentTokens;

class LanguageModel {
 public:
  explicit LanguageModel(const ModelConfig& config);
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return layout_.config; }
  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<Block>& blocks() const { return layout_.blocks; }
  [[nodiscard]] std::span<float> parameters() { return {values(), static_cast<std::size_t>(layout_.size)}; }
  [[nodiscard]] std::span<const float> parameters() const {
    return {const_cast<LanguageModel*>(this)->values(), static_cast<std::size_t>(layout_.size)};
  }

 private:
  [[nodiscard]] float* values() { return reinterpret_cast<float*>(storage_.data()); }

  ParameterLayout layout_;
  AlignedBuffer storage_;
};

// The parameters of a model where a device can reach them: on the CPU they are the model's own, on a GPU copies, in
// bfloat16 as well where activations are.
class DeviceWeights {
 public:
  DeviceWeights(const LanguageModel& model, const Device& device);

  [[nodiscard]] Weights get() const;
  // For the optimizer, on a GPU only: what it updates.
  [[nodiscard]] std::span<float> values();
  [[nodiscard]] std::span<BFloat16> rounded();
  // From the model to the device, and back.
  void upload();
  void download(LanguageModel& model) const;

 private:
  const LanguageModel& model_;
  Device device_;
  DeviceBuffer values_, rounded_, constants_;
};

// Which states the sequences of a call start from and leave behind, wherever in the pool they are.
struct StateSlots {
  ModelStates* states = nullptr;  // null: start from nothing, keep nothing
  std::span<const std::int64_t> slots;
  const RecentTokens* recent = nullptr;  // of steps: what they keep beside the states
};

// What to run: `ids` of all sequences one after the other, sequence n being [offsets[n], offsets[n + 1]).
struct ModelInput {
  std::span<const std::int32_t> ids;
  std::span<const std::int64_t> offsets;
  SequencePart* part = nullptr;  // of a batch over several processes (sequence_part.h); on the CPU, without states
};

// Told during a backward that gradients are complete from this place of the flat array to its end, at falling places
// down to 0: what is done with them can begin while the backward goes on.
using GradientObserver = std::function<void(std::int64_t begin)>;

// Sees what each block has computed, as soon as it has; the views are valid during the call.
using BlockObserver = std::function<void(std::size_t layer, const BlockActivations&)>;

// Runs a model. Memory is planned per shape and kept, so that a step of a known shape allocates nothing.
class ModelRunner {
 public:
  ModelRunner(const LanguageModel& model, const Device& device, Recompute recompute = Recompute::none);
  // With weights that it shares with other runners.
  ModelRunner(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, const Device& device,
              Recompute recompute = Recompute::none);
  ~ModelRunner();
  [[nodiscard]] const LanguageModel& model() const { return model_; }
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  // logits [N, vocabulary] of every token. With `states`, starts from them and leaves the new ones.
  void logits(const ModelInput& input, const TensorView& out, const StateSlots& states = {});
  // logits [sequences, vocabulary] of each sequence's last token.
  void last_logits(const ModelInput& input, const TensorView& out, const StateSlots& states = {});
  // The same for one token of each sequence, in pieces, so that what comes between host and device happens outside:
  // prepare_steps says which states the rows continue (-1: a row without one, which counts for nothing), step_logits
  // reads the rows' tokens from device memory and leaves their logits [rows, vocabulary] there.
  void prepare_steps(const StateSlots& states);
  [[nodiscard]] TensorView step_logits(std::span<const std::int32_t> device_ids, const StateSlots& states);
  // The same for some tokens of one sequence: prepare_prompt takes them, with room for `rows` of them, which must be as
  // many chunks (kDefaultChunk); prompt_logits reads them and leaves the logits [1, vocabulary] after the last in
  // device memory. Launched once it serves other tokens and states, too, for which there was the same room.
  void prepare_prompt(std::span<const std::int32_t> ids, std::int64_t rows, const StateSlots& states);
  [[nodiscard]] TensorView prompt_logits(const StateSlots& states);
  // The loss of every token whose target is not negative (elsewhere 0); targets[n] is the token after ids[n]. `best`,
  // if not empty, receives the most likely next token of each.
  void losses(const ModelInput& input, std::span<const std::int32_t> targets, std::span<float> out,
              std::span<std::int32_t> best = {}, const StateSlots& states = {});
  // How likely the tokens are that follow those at `rows` (positions in the input, ascending). Only they pass through
  // the head, a bounded number of them at a time.
  void next_tokens(const ModelInput& input, std::span<const std::int32_t> rows, const TokenLogProbabilities& out,
                   const StateSlots& states = {});
  // The logits [rows, vocabulary] at such positions in the input of the last call that ran the blocks, at most as many
  // as a step may have rows. They are in device memory and stay there until the next call.
  [[nodiscard]] TensorView logits_at(std::span<const std::int32_t> rows);
  // Runs the blocks alone, for what happens inside them.
  void observe(const ModelInput& input, const BlockObserver& observer, const StateSlots& states = {});
  // The mean loss over targets that are not negative, adds its gradients to `gradients` in device memory. A batch in
  // several pieces passes the number of targets of the whole as `count`; 0: of this piece.
  double loss_and_gradients(const ModelInput& input, std::span<const std::int32_t> targets, std::span<float> gradients,
                            std::int64_t count = 0, const GradientObserver& observer = {});

  // Bytes of activations that training on a batch takes; needs no model.
  [[nodiscard]] static std::size_t training_bytes(const ParameterLayout& layout, const Device& device,
                                                  std::int64_t batch, std::int64_t tokens, Recompute recompute);

 private:
  class ActivationPlan;
  struct TrainingPass;
  // What the host gives to a call, where the device can read it.
  template <class T>
  class Uploaded {
   public:
    std::span<const T> operator()(const Device& device, std::span<const T> host) {
      if (device.gpu == nullptr || host.empty()) return host;
      buffer_.grow(device, host.size_bytes());
      upload(device, buffer_.data(), host.data(), host.size_bytes());
      return {reinterpret_cast<const T*>(buffer_.data()), host.size()};
    }

   private:
    DeviceBuffer buffer_;
  };

  void plan(const ModelInput& input, bool training, const StateSlots& states);
  // From ids to the normalised output of the last block, in plan_->normed; run_planned goes only up to the norm.
  void run_blocks(const ModelInput& input, bool training, const StateSlots& states);
  void run_planned(std::span<const std::int32_t> device_ids, const StateSlots& states,
                   const BlockObserver& observer = {});
  [[nodiscard]] RmsNormForward final_norm(const Weights& weights) const;
  // Losses, and best guesses where asked for, of rows of plan_->normed.
  void losses_of_rows(const TensorView& rows, std::span<const std::int32_t> targets, std::span<float> out,
                      std::span<std::int32_t> best);
  void write_logits(const TensorView& normed, const TensorView& out);
  // The rows of the normalised output that are listed, side by side.
  [[nodiscard]] TensorView gathered(std::span<const std::int32_t> rows);
  [[nodiscard]] TensorView gathered_on_device(std::span<const std::int32_t> device_rows);
  [[nodiscard]] TensorView logits_of(const TensorView& normed_rows);
  // Training: on a GPU a captured graph, as long as the same work is asked for on the same memory.
  [[nodiscard]] CapturedGraph& training_graph(const TrainingPass& pass);
  void forward_and_backward(const TrainingPass& pass, const GradientObserver& observer);
  void head_gradients(const TrainingPass& pass, const TensorView& rows, const TensorView& d_rows);
  void spread_gradients(std::span<const std::int32_t> rows);
  void backward(std::span<float> gradients, const GradientObserver& observer);
  [[nodiscard]] MixerState state_of_layer(const StateSlots& states, std::size_t layer);
  [[nodiscard]] LayerContext context(const Weights& weights);

  const LanguageModel& model_;
  std::shared_ptr<const DeviceWeights> weights_;
  Device device_;
  Recompute recompute_;
  DeviceBuffer memory_, state_copies_;
  Workspace workspace_;
  Uploaded<std::int32_t> ids_, targets_, picked_rows_;
  Uploaded<std::int64_t> offsets_, slots_;
  std::span<const std::int32_t> device_ids_, device_last_;
  std::span<const std::int64_t> device_slots_;
  std::vector<std::int64_t> step_offsets_;
  Batch batch_;
  std::unique_ptr<ActivationPlan> plan_;
  LogProbabilities log_probabilities_;
};

}  // namespace qdelta
