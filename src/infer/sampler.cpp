#include "infer/sampler.h"

#include <vector>

#include "core/error.h"

namespace qdelta {

Sampler::Sampler(const Device& device, std::int64_t slots, std::int64_t vocabulary)
    : device_(device),
      slots_(slots),
      vocabulary_(vocabulary),
      states_(device, static_cast<std::size_t>(slots) * sizeof(SamplingState)),
      seen_(device, static_cast<std::size_t>(slots * seen_words(vocabulary)) * sizeof(std::uint32_t)),
      drawn_(device, seen_.size()),
      bias_(device, static_cast<std::size_t>(slots * vocabulary) * sizeof(float)),
      workspace_(device) {}

void Sampler::start(std::int64_t slot, SamplingState state, std::span<const std::int32_t> seen,
                    std::span<const TokenBias> bias) {
  require(slot >= 0 && slot < slots_, "there is no slot {} in a pool of {}", slot, slots_);
  state.options.check();
  state.biased = !bias.empty();
  const auto at = static_cast<std::size_t>(slot);
  upload(device_, states_.data() + at * sizeof(SamplingState), &state, sizeof(SamplingState));
  const std::size_t bytes = static_cast<std::size_t>(seen_words(vocabulary_)) * sizeof(std::uint32_t);
  if (state.options.repetition_penalty != 1.0F) {  // else nobody asks
    std::vector<std::uint32_t> bits(bytes / sizeof(std::uint32_t));
    for (const std::int32_t token : seen) {
      if (token < 0 || token >= vocabulary_) continue;
      bits[static_cast<std::size_t>(token) / 32] |= std::uint32_t{1} << (token % 32);
    }
    upload(device_, seen_.data() + at * bytes, bits.data(), bytes);
  }
  if (!state.uses_bias()) return;
  clear(device_, drawn_.data() + at * bytes, bytes);
  std::vector<float> row(static_cast<std::size_t>(vocabulary_));
  for (const TokenBias& one : bias) {
    if (one.token >= 0 && one.token < vocabulary_) row[static_cast<std::size_t>(one.token)] += one.bias;
  }
  upload(device_, bias_.data() + at * row.size() * sizeof(float), row.data(), row.size() * sizeof(float));
}

void Sampler::sample(const TensorView& logits, std::span<const std::int64_t> slots, std::span<std::int32_t> tokens) {
  const Sample args{
      .logits = logits,
      .slots = slots,
      .states = {reinterpret_cast<SamplingState*>(states_.data()), states_.size() / sizeof(SamplingState)},
      .seen = {reinterpret_cast<std::uint32_t*>(seen_.data()), seen_.size() / sizeof(std::uint32_t)},
      .bias = {reinterpret_cast<float*>(bias_.data()), bias_.size() / sizeof(float)},
      .drawn = {reinterpret_cast<std::uint32_t*>(drawn_.data()), drawn_.size() / sizeof(std::uint32_t)},
      .tokens = tokens};
  qdelta::sample(device_, args, workspace_);
}

}  // namespace qdelta
