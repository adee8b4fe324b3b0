#include "cli/model_folder.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "train/training_state.h"

namespace qdelta {

bool has_weights(const std::string& folder) {
  namespace fs = std::filesystem;
  return fs::is_directory(folder) && (fs::exists(fs::path(folder) / "model.safetensors") ||
                                      fs::exists(fs::path(folder) / "model.safetensors.index.json"));
}

std::string model_folder(const std::string& path) {
  if (!std::filesystem::is_directory(path) || has_weights(path)) return path;
  const std::optional<std::string> checkpoint = newest_checkpoint(path);
  if (!checkpoint) return path;
  fmt::print(stderr, "{} is a run; its newest checkpoint is {}\n", path, *checkpoint);
  return *checkpoint;
}

std::unique_ptr<Tokenizer> tokenizer_of(const ModelConfig& model, const std::string& folder, const std::string& named) {
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(named.empty() ? folder : named);
  require(tokenizer->vocab_size() <= model.vocab_size,
          "the tokenizer has {} tokens, but the model knows only {}: they do not belong together",
          tokenizer->vocab_size(), model.vocab_size);
  return tokenizer;
}

}  // namespace qdelta
