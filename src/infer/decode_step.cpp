#include "infer/decode_step.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/row_blocks.h"

namespace qdelta {
DecodeStep::DecodeStep(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states,
                       Sampler& sampler, std::int64_t max_rows, bool recent_tokens)
    : runner_(model, std::move(weights), states.device()),
      device_(states.device()),
      states_(states),
      sampler_(sampler),
      max_rows_(static_cast<std::size_t>(max_rows)),
      device_tokens_(device_, max_rows_ * sizeof(std::int32_t)),
      device_slots_(device_, max_rows_ * sizeof(std::int64_t)) {
  if (recent_tokens) recent_.emplace(model.blocks(), states.count(), states.device());
  // The largest step first: its memory is enough for all others, so that what graphs point to stays where it is.
  std::vector<std::int64_t> all(max_rows_);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  set_slots(std::move(all));
}

std::size_t DecodeStep::rows_for(std::size_t sequences) const {
  if (device_.gpu == nullptr || sequences <= 2) return sequences;
  return std::min<std::size_t>(sequences <= 4 ? 4 : (sequences + 7) / 8 * 8, max_rows_);
}

void DecodeStep::set_slots(std::vector<std::int64_t> slots) {
  if (slots == slots_) return;
  slots_ = std::move(slots);
  runner_.prepare_steps(with_recent());
  upload(device_, device_slots_.data(), slots_.data(), slots_.size() * sizeof(std::int64_t));
}

void DecodeStep::set_tokens(std::span<const std::int32_t> tokens) {
  if (tokens.size() <= tokens_.size() && std::equal(tokens.begin(), tokens.end(), tokens_.begin())) return;
  tokens_.assign(tokens.begin(), tokens.end());
  upload(device_, device_tokens_.data(), tokens_.data(), tokens_.size() * sizeof(std::int32_t));
}

std::span<std::int32_t> DecodeStep::device_tokens(std::size_t rows) {
  return {reinterpret_cast<std::int32_t*>(device_tokens_.data()), rows};
}

void DecodeStep::capture(std::size_t rows) {
  const auto work = [this, rows] {
    const RowsAlone whatever_the_others;
    const TensorView logits = runner_.step_logits(device_tokens(rows), with_recent());
    sampler_.sample(logits, {reinterpret_cast<const std::int64_t*>(device_slots_.data()), rows}, device_tokens(rows));
    steps_.at(rows).logits = logits;
  };
  steps_.emplace(rows, Step{.graph = CapturedGraph(device_, work), .logits = {}});
}

void DecodeStep::launch(std::span<const std::int64_t> slots, std::span<const std::int32_t> tokens) {
  require(slots.size() == tokens.size() && slots.size() <= max_rows_, "{} tokens for {} sequences of at most {}",
          tokens.size(), slots.size(), max_rows_);
  if (slots.empty()) return;
  for (const std::int64_t slot : slots) {
    if (recent_) recent_->add(slot);
  }
  const std::size_t rows = rows_for(slots.size());
  std::vector<std::int64_t> padded(rows, -1);
  std::ranges::copy(slots, padded.begin());
  set_slots(std::move(padded));
  set_tokens(tokens);
  if (!steps_.contains(rows)) capture(rows);
  Step& step = steps_.at(rows);
  step.graph.replay();
  logits_ = step.logits;
  logits_.shape = {static_cast<std::int64_t>(slots.size()), step.logits.extent(1)};
}

void DecodeStep::collect(std::span<std::int32_t> tokens) {
  if (tokens.empty()) return;
  download(device_, tokens.data(), device_tokens_.data(), tokens.size_bytes());
  tokens_.assign(tokens.begin(), tokens.end());
}

void DecodeStep::settle(std::int64_t slot) {
  if (recent_) recent_->settle(states_, slot);
}

void DecodeStep::forget(std::int64_t slot) {
  if (recent_) recent_->forget(slot);
}

void DecodeStep::undo(std::int64_t slot, std::int64_t tokens) {
  require(tokens >= 0 && tokens <= undoable(slot), "slot {}: {} tokens to take back, of {} that can be", slot, tokens,
          undoable(slot));
  if (recent_) recent_->undo(states_, slot, tokens);
}

}  // namespace qdelta
