// One step of decoding: sequences that come and go each read a token and get the next. On a GPU the model's step and
// the sampler are one captured graph, so that a step is one launch and no logits leave the device.
//
// Where recent tokens are kept (model/recent_tokens.h) the last tokens of a sequence are beside its state for a while:
// before anybody else reads the state, they must be settled. Until then they can be taken back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "infer/sampler.h"
#include "kernels/device.h"
#include "model/language_model.h"
#include "model/recent_tokens.h"

namespace qdelta {

class DecodeStep {
 public:
  // For at most `max_rows` sequences at a time, whose states are in `states` and `sampler`.
  DecodeStep(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states,
             Sampler& sampler, std::int64_t max_rows, bool recent_tokens = false);
  DecodeStep(const DecodeStep&) = delete;  // graphs point into it
  DecodeStep& operator=(const DecodeStep&) = delete;

  [[nodiscard]] std::size_t max_rows() const { return max_rows_; }
  // The sequence in slots[r] reads tokens[r]. On a GPU this returns before it is done.
  void launch(std::span<const std::int64_t> slots, std::span<const std::int32_t> tokens);
  // Waits for it. The tokens that follow, as many as were launched; -1 where the logits have a NaN.
  void collect(std::span<std::int32_t> tokens);
  // Both; tokens[r] is replaced by the next one.
  void run(std::span<const std::int64_t> slots, std::span<std::int32_t> tokens) {
    launch(slots, tokens);
    collect(tokens);
  }
  // Brings what steps have kept beside the state of a slot into it.
  void settle(std::int64_t slot);
  // Drops it: the state is not used any more.
  void forget(std::int64_t slot);
  // The slot becomes what it was so many tokens ago, at most `undoable`: none without recent tokens, and those of the
  // steps since `settle`, but at most kRecentTokens. With a sampler that is told as well (Sampler::start), steps go on
  // as if the tokens had never been read: what speculative decoding needs after a wrong guess.
  [[nodiscard]] std::int64_t undoable(std::int64_t slot) const { return recent_ ? recent_->undoable(slot) : 0; }
  void undo(std::int64_t slot, std::int64_t tokens);
  // The logits [rows, vocabulary] of the last step, in device memory until the next.
  [[nodiscard]] const TensorView& logits() const { return logits_; }

 private:
  // Rows of the step that so many sequences take. On a GPU there may be spare ones: to capture a graph for every number
  // of sequences would cost more.
  [[nodiscard]] std::size_t rows_for(std::size_t sequences) const;
  void set_slots(std::vector<std::int64_t> slots);
  void set_tokens(std::span<const std::int32_t> tokens);
  void capture(std::size_t rows);
  [[nodiscard]] StateSlots with_recent() { return {&states_, slots_, recent_ ? &*recent_ : nullptr}; }
  [[nodiscard]] std::span<std::int32_t> device_tokens(std::size_t rows);

  ModelRunner runner_;  // of its own: graphs point into its memory, which other calls would lay out anew
  Device device_;
  ModelStates& states_;
  std::optional<RecentTokens> recent_;
  Sampler& sampler_;
  std::size_t max_rows_;
  DeviceBuffer device_tokens_, device_slots_;
  // What the two buffers hold; negative slots are of spare rows.
  std::vector<std::int64_t> slots_;
  std::vector<std::int32_t> tokens_;
  TensorView logits_;
  struct Step {
    CapturedGraph graph;
    TensorView logits;
  };
  std::map<std::size_t, Step> steps_;  // by the number of rows
};

}  // namespace qdelta
