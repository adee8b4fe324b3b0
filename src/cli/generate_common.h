// What qdelta generate and qdelta chat share: flags, the model they load, and what has been read into a state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/device_flags.h"
#include "data/tokenizer.h"
#include "infer/sequence.h"
#include "infer/state_file.h"
#include "model/language_model.h"

namespace CLI {
class App;
}

namespace qdelta {

struct GenerateFlags {
  std::string model, tokenizer, load_state, save_state;
  std::vector<std::string> prompts, prompt_files;
  GenerationOptions options;
  int num_samples = 1;
  DeviceFlags device;
  bool stream = false, json = false;
  bool bos = true;
};

// A model that is ready to speak.
struct Loaded {
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;

  // Of a run the newest checkpoint: flags.model is then its folder.
  explicit Loaded(GenerateFlags& flags);
};

// Better to hear now than after a long prompt or conversation that its state cannot be written.
void check_save_state(const GenerateFlags& flags);

void add_generation_flags(CLI::App& command, GenerateFlags& flags, const std::string& max_tokens,
                          const std::string& seed);

// What has been read into a state, to be written beside it.
struct Reading {
  SavedState info;

  [[nodiscard]] bool nothing() const { return info.tokens == 0 && info.pending < 0; }
  [[nodiscard]] std::int64_t length() const { return info.tokens + (info.pending < 0 ? 0 : 1); }
  void add(std::span<const std::int32_t> tokens) {
    info.tokens += static_cast<std::int64_t>(tokens.size());
    info.token_hash = hash_tokens(info.token_hash, tokens);
  }
  // All but the last token have been read.
  void add_but_last(std::span<const std::int32_t> tokens) {
    add(tokens.first(tokens.size() - 1));
    info.pending = tokens.back();
  }
  // The tokens to read next: the pending one first.
  std::vector<std::int32_t> continued(std::vector<std::int32_t> tokens) {
    if (info.pending >= 0) tokens.insert(tokens.begin(), info.pending);
    info.pending = -1;
    return tokens;
  }
};

}  // namespace qdelta
