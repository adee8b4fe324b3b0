// Generating text from prompts: each prompt is read, then all sequences are decoded together to their ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/decoder.h"
#include "model/language_model.h"

namespace qdelta {

struct Generated {
  std::vector<std::int32_t> tokens;
  std::string text;
  EndReason end = EndReason::length;
};

struct GenerationSpeed {
  std::int64_t prompt_tokens = 0, decoded_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;
};

class Generator {
 public:
  // Sequences have their states in `states`, and run on its device.
  Generator(const LanguageModel& model, const Tokenizer& tokenizer, ModelStates& states);
  // With weights that it shares with others on the device.
  Generator(const LanguageModel& model, const Tokenizer& tokenizer, std::shared_ptr<const DeviceWeights> weights,
            ModelStates& states, const DecoderOptions& options = {});

  // One sequence for each prompt, continuing from state `slots[i]`, which is left at the end of the sequence: the
  // prompt and all generated tokens but the last have been read. A prompt must not be empty. Sequence i has stream
  // options.stream + i. `on_text` is called with new text as it comes; it may throw to stop.
  std::vector<Generated> generate(
      const std::vector<std::vector<std::int32_t>>& prompts, const GenerationOptions& options,
      const std::vector<std::int64_t>& slots,
      const std::function<void(std::size_t sequence, const std::string& text)>& on_text = {});

  // Reads tokens into a state; gives the logits after the last.
  std::vector<float> read(std::span<const std::int32_t> tokens, std::int64_t slot);

  [[nodiscard]] const GenerationSpeed& speed() const { return speed_; }

 private:
  const Tokenizer& tokenizer_;
  Decoder decoder_;
  GenerationSpeed speed_;
};

}  // namespace qdelta
