// qdelta perplexity: how well a model predicts a text.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/model_folder.h"
#include "data/encode_file.h"
#include "data/tokenizer.h"
#include "infer/scoring.h"
#include "model/checkpoint.h"
#include "train/progress.h"

namespace qdelta {
namespace {

struct PerplexityFlags {
  std::string model, tokenizer, data, text_key = "text";
  std::int64_t limit = 0;
  bool bytes = false;
  DeviceFlags device;
};

void run_perplexity(PerplexityFlags& flags) {
  require(flags.limit >= 0, "limit is {}, expected 0 (all) or more", flags.limit);
  flags.model = model_folder(flags.model);
  const auto model = load_model(flags.model);
  const auto tokenizer = load_tokenizer(flags.tokenizer.empty() ? flags.model : flags.tokenizer);
  EncodedFile text =
      encode_file(*tokenizer, flags.data, flags.text_key, flags.bytes ? TextBytes::any : TextBytes::utf8);
  std::vector<std::int32_t> tokens = std::move(text.ids);
  if (tokenizer->bos() && (tokens.empty() || tokens.front() != *tokenizer->bos())) {
    tokens.insert(tokens.begin(), *tokenizer->bos());
  }
  if (flags.limit > 0) tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(flags.limit)));
  require(tokens.size() > 1, "{} has too few tokens to predict any", flags.data);

  const Device device = flags.device.open();
  Scorer scorer(*model, device, {.batch = 1});
  Progress progress;
  double loss = 0;
  const std::size_t predicted = tokens.size() - 1;
  ScoringRequest request;
  request.tokens = std::move(tokens);
  const auto add = [&](std::size_t, std::int64_t first, std::span<const TokenScore> scores) {
    for (const TokenScore& score : scores) loss -= score.token.log_probability;
    ProgressState shown;
    shown.name = "perplexity";
    shown.step = first + static_cast<std::int64_t>(scores.size());
    shown.total = static_cast<std::int64_t>(predicted);
    shown.loss = loss / static_cast<double>(shown.step);
    progress.update(shown);
  };
  scorer.score({&request, 1}, add);
  progress.finish();
  const double mean = loss / static_cast<double>(predicted);
  // Bits per byte compare models with different tokenizers; only for a text that was read to its end.
  const std::string bits =
      flags.limit > 0 ? ""
                      : fmt::format(", bits per byte {:.4f}", loss / std::log(2.0) / static_cast<double>(text.bytes));
  fmt::print("{} tokens, loss {:.5f}, perplexity {:.4f}{}\n", predicted, mean, std::exp(mean), bits);
}

}  // namespace

void add_perplexity(CLI::App& app) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand("perplexity", "How well a model predicts a text");
  command->add_option("--model", flags->model, kModelHelp)->required();
  command->add_option("--tokenizer", flags->tokenizer, "Another tokenizer than the model folder's");
  command
      ->add_option("--data", flags->data,
                   "Text file, read with the state carried through; also JSON lines, and with gzip, xz or zstd")
      ->required();
  command->add_option("--text-key", flags->text_key, "The member of a JSON line that holds the text (text)");
  command->add_flag("--bytes", flags->bytes, "Take a file that is not UTF-8 text as it is");
  command->add_option("--limit", flags->limit, "Only the first so many tokens; 0: all")->capture_default_str();
  flags->device.add_to(*command);
  command->footer(
      "Examples:\n"
      "  qdelta perplexity --model run --data other.txt\n"
      "  qdelta perplexity --model M --data other.txt --limit 10000      (the first ten thousand tokens)");
  command->callback([flags] { run_perplexity(*flags); });
}

}  // namespace qdelta
