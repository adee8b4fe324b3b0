// Generating text: prompts are read in chunks, then all sequences decode together, one token a step. Memory does not
// depend on how long a context is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/sampler.h"
#include "model/language_model.h"

namespace qdelta {

struct GenerationOptions {
  SamplingOptions sampling;
  std::int64_t max_tokens = 128;
  std::vector<std::string> stop;  // text that ends a sequence, itself left out
  bool stop_at_eos = true;
};

struct Generated {
  std::vector<std::int32_t> tokens;
  std::string text;
  enum class End { length, eos, stop } end = End::length;
};

struct GenerationSpeed {
  std::int64_t prompt_tokens = 0, decoded_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;
};

class Generator {
 public:
  Generator(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device);
  // With weights that it shares with others on the device.
  Generator(const LanguageModel& model, const Tokenizer& tokenizer, std::shared_ptr<const DeviceWeights> weights,
            const Device& device);

  // One sequence for each prompt, continuing from state `slots[i]`, which is left at the end of the sequence: the
  // prompt and all generated tokens but the last have been read. A prompt must not be empty. `piece` is called with
  // each new piece of text as it comes; it may throw to stop.
  std::vector<Generated> generate(
      const std::vector<std::vector<std::int32_t>>& prompts, const GenerationOptions& options, ModelStates& states,
      const std::vector<std::int64_t>& slots,
      const std::function<void(std::size_t sequence, const std::string& piece)>& piece = {});

  // Reads tokens into a state; gives the logits after the last.
  std::vector<float> read(std::span<const std::int32_t> tokens, ModelStates& states, std::int64_t slot);

  [[nodiscard]] const GenerationSpeed& speed() const { return speed_; }

 private:
  class Sequence;

  void decode_on_device(std::vector<Sequence>& sequences, const GenerationOptions& options, ModelStates& states,
                        const std::vector<std::int64_t>& slots,
                        const std::function<void(std::size_t, const std::string&)>& say);

  const LanguageModel& model_;
  const Tokenizer& tokenizer_;
  Device device_;
  ModelRunner runner_;
  GenerationSpeed speed_;
};

}  // namespace qdelta
