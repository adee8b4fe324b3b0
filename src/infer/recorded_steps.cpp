#include "infer/recorded_steps.h"

#include <algorithm>
#include <numeric>

namespace qdelta {
namespace {

constexpr std::int64_t kMostRows = 1024;  // of a step; more sequences take turns

}  // namespace

RecordedSteps::RecordedSteps(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights,
                             const Device& device, ModelStates& states, std::int64_t most)
    : runner_(model, std::move(weights), device, false),
      device_(device),
      states_(states),
      tokens_(device, static_cast<std::size_t>(std::min(most, kMostRows)) * sizeof(std::int32_t)),
      slots_(static_cast<std::size_t>(std::min(most, kMostRows))) {
  // The largest step first: its memory is enough for all others, so that what graphs point to stays where it is.
  std::iota(slots_.begin(), slots_.end(), std::int64_t{0});
  runner_.prepare_steps({&states_, slots_});
}

void RecordedSteps::next(std::span<const std::int32_t> tokens, std::span<const std::int64_t> slots,
                         std::span<float> logits) {
  const std::size_t most = tokens_.size() / sizeof(std::int32_t);
  const auto width = static_cast<std::size_t>(runner_.model().config().vocab_size);
  require(slots.size() == tokens.size() && logits.size() == tokens.size() * width,
          "{} tokens for {} sequences and {} logits", tokens.size(), slots.size(), logits.size());
  for (std::size_t begin = 0; begin < tokens.size(); begin += most) {
    const std::size_t rows = std::min(most, tokens.size() - begin);
    const auto here = slots.subspan(begin, rows);
    slots_.assign(here.begin(), here.end());
    runner_.prepare_steps({&states_, slots_});
    upload(device_, tokens_.data(), tokens.data() + begin, rows * sizeof(std::int32_t));
    if (!steps_.contains(rows)) {
      const auto work = [this, rows] {
        const std::span<const std::int32_t> ids(reinterpret_cast<const std::int32_t*>(tokens_.data()), rows);
        steps_.at(rows).logits = runner_.step_logits(ids, {&states_, slots_});
      };
      steps_.emplace(rows, Step{CapturedGraph(device_, work), {}});
    }
    Step& step = steps_.at(rows);
    step.recording.replay();
    download(device_, logits.data() + begin * width, step.logits.data, rows * width * sizeof(float));
  }
}

}  // namespace qdelta
