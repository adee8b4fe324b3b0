#include "infer/device_decoder.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/layers.h"
#endif

namespace qdelta {
namespace {

#ifdef QDELTA_WITH_CUDA

constexpr std::uint64_t kFirstDraw = 1;  // draw 0 of each sequence was made from the prompt's logits, on the host

void sample(const Device& device, const ConstTensorView& logits, const SamplingOptions& sampling, DeviceBuffer& tokens,
            const DeviceBuffer& streams, DeviceBuffer& draws, DeviceBuffer& seen) {
  cuda::Sample args;
  args.logits = logits;
  args.tokens = {reinterpret_cast<std::int32_t*>(tokens.data()), tokens.size() / sizeof(std::int32_t)};
  args.options = sampling;
  args.streams = {reinterpret_cast<const std::uint64_t*>(streams.data()), streams.size() / sizeof(std::uint64_t)};
  args.draws = {reinterpret_cast<std::uint64_t*>(draws.data()), draws.size() / sizeof(std::uint64_t)};
  args.seen = {reinterpret_cast<std::uint32_t*>(seen.data()), seen.size() / sizeof(std::uint32_t)};
  cuda::sample(*device.gpu, args);
}

// A bit for each token that was seen, one row of words for each sequence.
std::vector<std::uint32_t> seen_bits(const std::vector<std::vector<std::int32_t>>& seen, std::int64_t vocabulary) {
  const auto words = static_cast<std::size_t>(cuda::seen_words(vocabulary));
  std::vector<std::uint32_t> bits(seen.size() * words);
  for (std::size_t row = 0; row < seen.size(); ++row) {
    for (const std::int32_t token : seen[row]) {
      bits[row * words + static_cast<std::size_t>(token) / 32] |= std::uint32_t{1} << (token % 32);
    }
  }
  return bits;
}

#else

// Without CUDA there is no such device, and nobody comes here.
constexpr std::uint64_t kFirstDraw = 1;
void sample(const Device& /*device*/, const ConstTensorView& /*logits*/, const SamplingOptions& /*sampling*/,
            DeviceBuffer& /*tokens*/, const DeviceBuffer& /*streams*/, DeviceBuffer& /*draws*/,
            DeviceBuffer& /*seen*/) {}
std::vector<std::uint32_t> seen_bits(const std::vector<std::vector<std::int32_t>>& /*seen*/,
                                     std::int64_t /*vocabulary*/) {
  return {};
}

#endif

}  // namespace

DeviceDecoder::DeviceDecoder(ModelRunner& runner, const Device& device, ModelStates& states,
                             std::span<const std::int64_t> slots, std::span<const std::int32_t> first,
                             std::span<const std::uint64_t> streams, const SamplingOptions& sampling,
                             const std::vector<std::vector<std::int32_t>>& seen)
    : runner_(runner),
      device_(device),
      states_(states),
      slots_(slots.begin(), slots.end()),
      tokens_(first.begin(), first.end()),
      device_tokens_(device, tokens_.size() * sizeof(std::int32_t)),
      streams_(device, tokens_.size() * sizeof(std::uint64_t)),
      draws_(device, tokens_.size() * sizeof(std::uint64_t)),
      step_(device, [this, sampling] {
        const std::span<const std::int32_t> ids(reinterpret_cast<const std::int32_t*>(device_tokens_.data()),
                                                tokens_.size());
        sample(device_, runner_.step_logits(ids, {&states_, slots_}), sampling, device_tokens_, streams_, draws_,
               seen_);
      }) {
  require(device.gpu != nullptr, "a DeviceDecoder needs a GPU");
  require(streams.size() == tokens_.size(), "{} streams for {} sequences", streams.size(), tokens_.size());
  const std::vector<std::uint64_t> draws(tokens_.size(), kFirstDraw);
  upload(device_, device_tokens_.data(), tokens_.data(), device_tokens_.size());
  upload(device_, streams_.data(), streams.data(), streams_.size());
  upload(device_, draws_.data(), draws.data(), draws_.size());
  if (sampling.repetition_penalty != 1.0F) {
    const std::vector<std::uint32_t> bits = seen_bits(seen, runner.model().config().vocab_size);
    seen_ = DeviceBuffer(device_, bits.size() * sizeof(std::uint32_t));
    upload(device_, seen_.data(), bits.data(), seen_.size());
  }
  runner_.prepare_steps({&states_, slots_});
}

std::span<const std::int32_t> DeviceDecoder::next() {
  step_.replay();
  download(device_, tokens_.data(), device_tokens_.data(), device_tokens_.size());
  for (std::size_t row = 0; row < tokens_.size(); ++row) {
    if (slots_[row] >= 0 && tokens_[row] < 0) fail_without_numbers();
  }
  return tokens_;
}

void DeviceDecoder::end(std::size_t row) {
  slots_[row] = -1;
  runner_.prepare_steps({&states_, slots_});
}

}  // namespace qdelta
