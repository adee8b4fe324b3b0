#include "infer/generator.h"

#include <chrono>
#include <deque>
#include <utility>

#include "infer/sequence_text.h"

namespace qdelta {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The sequences of one call, in the decoder as long as the call lasts.
class SequenceBatch {
 public:
  SequenceBatch(Decoder& decoder, const std::function<void(std::size_t, const std::string&)>& on_text)
      : decoder_(decoder), on_text_(on_text) {}
  ~SequenceBatch() {
    for (const std::int64_t slot : slots_) decoder_.remove(slot);
  }
  SequenceBatch(const SequenceBatch&) = delete;
  SequenceBatch& operator=(const SequenceBatch&) = delete;

  Sequence& add(const Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt, const GenerationOptions& options,
                std::int64_t slot) {
    Sequence& sequence = sequences_.emplace_back(tokenizer, prompt, options);
    if (stops_ == nullptr) stops_ = std::make_shared<StopStrings>(options.stop);
    texts_.emplace_back(tokenizer, prompt, stops_);
    decoder_.add(slot, sequence);
    slots_.push_back(slot);
    results_.emplace_back();
    return sequence;
  }
  // Passes on what is new.
  void update() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      for (SequenceUpdate& update : sequences_[i].take_updates()) {
        if (update.end == EndReason::not_finite) fail_not_finite();
        const std::string text = texts_[i].take(update);
        if (texts_[i].stopped()) sequences_[i].stop();
        results_[i].text += text;
        if (on_text_ && !text.empty()) on_text_(i, text);
      }
    }
  }
  std::vector<Generated> take() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const std::span<const std::int32_t> tokens = sequences_[i].generated();
      results_[i].tokens.assign(tokens.begin(), tokens.end());
      results_[i].end = sequences_[i].end();
    }
    return std::move(results_);
  }

 private:
  Decoder& decoder_;
  const std::function<void(std::size_t, const std::string&)>& on_text_;
  std::deque<Sequence> sequences_;  // the decoder points to them
  std::shared_ptr<const StopStrings> stops_;
  std::vector<SequenceText> texts_;
  std::vector<std::int64_t> slots_;
  std::vector<Generated> results_;
};

}  // namespace

Generator::Generator(const LanguageModel& model, const Tokenizer& tokenizer, ModelStates& states)
    : Generator(model, tokenizer, std::make_shared<DeviceWeights>(model, states.device()), states) {}

Generator::Generator(const LanguageModel& model, const Tokenizer& tokenizer,
                     std::shared_ptr<const DeviceWeights> weights, ModelStates& states, const DecoderOptions& options)
    : tokenizer_(tokenizer), decoder_(model, std::move(weights), states, options) {}

std::vector<float> Generator::read(std::span<const std::int32_t> tokens, std::int64_t slot) {
  const auto start = Clock::now();
  std::vector<float> logits = decoder_.read_tokens(tokens, slot);
  speed_.prompt_tokens += static_cast<std::int64_t>(tokens.size());
  speed_.prompt_seconds += seconds_since(start);
  return logits;
}

std::vector<Generated> Generator::generate(const std::vector<std::vector<std::int32_t>>& prompts,
                                           const GenerationOptions& options, const std::vector<std::int64_t>& slots,
                                           const std::function<void(std::size_t, const std::string&)>& on_text) {
  options.sampling.check();
  require(options.max_tokens > 0, "max-tokens is {}, expected at least 1", options.max_tokens);
  require(prompts.size() == slots.size(), "{} prompts for {} states", prompts.size(), slots.size());
  SequenceBatch batch(decoder_, on_text);
  GenerationOptions each = options;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    each.stream = options.stream + i;
    const Sequence& sequence = batch.add(tokenizer_, prompts[i], each, slots[i]);
    const auto start = Clock::now();
    while (sequence.reading()) decoder_.read({&slots[i], 1});
    speed_.prompt_tokens += static_cast<std::int64_t>(prompts[i].size());
    speed_.prompt_seconds += seconds_since(start);
    batch.update();
  }
  const auto start = Clock::now();
  while (const std::size_t count = decoder_.step()) {
    speed_.decoded_tokens += static_cast<std::int64_t>(count);
    batch.update();
  }
  for (const std::int64_t slot : slots) decoder_.settle(slot);
  speed_.decode_seconds += seconds_since(start);
  return batch.take();
}

}  // namespace qdelta
