// qdelta perplexity: how well a model predicts a text.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/model_folder.h"
#include "cli/ranks.h"
#include "data/encode_file.h"
#include "data/tokenizer.h"
#include "infer/scoring.h"
#include "model/checkpoint.h"
#include "train/progress.h"
#include "train/sequence_ranks.h"

namespace qdelta {
namespace {

struct PerplexityFlags {
  std::string model, tokenizer, data, text_key = "text", transport = "auto";
  std::int64_t limit = 0, sequence_parallel = 1;
  bool bytes = false;
  DeviceFlags device;
};

struct Text {
  std::vector<std::int32_t> tokens;
  std::size_t bytes = 0;
  [[nodiscard]] std::size_t predicted() const { return tokens.size() - 1; }
};

Text read_text(const PerplexityFlags& flags) {
  const auto tokenizer = load_tokenizer(flags.tokenizer.empty() ? flags.model : flags.tokenizer);
  EncodedFile file =
      encode_file(*tokenizer, flags.data, flags.text_key, flags.bytes ? TextBytes::any : TextBytes::utf8);
  Text text{.tokens = std::move(file.ids), .bytes = static_cast<std::size_t>(file.bytes)};
  std::vector<std::int32_t>& tokens = text.tokens;
  if (tokenizer->bos() && (tokens.empty() || tokens.front() != *tokenizer->bos())) {
    tokens.insert(tokens.begin(), *tokenizer->bos());
  }
  if (flags.limit > 0) tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(flags.limit)));
  require(tokens.size() > 1, "{} has too few tokens to predict any", flags.data);
  return text;
}

void show(Progress& progress, std::size_t done, const Text& text, double loss) {
  ProgressState shown;
  shown.name = "perplexity";
  shown.step = static_cast<std::int64_t>(done);
  shown.total = static_cast<std::int64_t>(text.predicted());
  shown.loss = loss / static_cast<double>(done);
  progress.update(shown);
}

// The sum over all tokens that are predicted.
double loss_of(const LanguageModel& model, const Text& text, const Device& device) {
  Scorer scorer(model, device, {.batch = 1});
  Progress progress;
  double loss = 0;
  ScoringRequest request;
  request.tokens = text.tokens;
  const auto add = [&](std::size_t, std::int64_t first, std::span<const TokenScore> scores) {
    for (const TokenScore& score : scores) loss -= score.token.log_probability;
    show(progress, static_cast<std::size_t>(first) + scores.size(), text, loss);
  };
  scorer.score({&request, 1}, add);
  progress.finish();
  return loss;
}

// The same over the ranks, which read stretches of the text in turn, all of them at the same time.
double loss_of(const LanguageModel& model, const Text& text, const Ranks& ranks, const RankGroups& groups) {
  const std::size_t stretch = ranks.device().gpu == nullptr ? 1024 : 8192;  // tokens
  ModelRunner runner(model, ranks.device());
  SequenceRanks sequence(*ranks.communicator(), groups);
  std::optional<Progress> progress;
  if (ranks.first()) progress.emplace();
  const auto size = static_cast<std::size_t>(groups.parts);
  const std::span<const std::int32_t> tokens = text.tokens;
  std::vector<float> losses;
  double loss = 0;
  for (std::size_t window = 0; window < text.predicted(); window += size * stretch) {
    const std::size_t begin = window + static_cast<std::size_t>(groups.part()) * stretch;
    const std::size_t end = std::min(begin + stretch, text.predicted());
    double sum = 0;
    if (begin < end) {
      const std::vector<std::int64_t> offsets{0, static_cast<std::int64_t>(end - begin)};
      losses.resize(end - begin);
      sequence.take_stretch(begin == 0, end == text.predicted());
      runner.losses({tokens.subspan(begin, end - begin), offsets, &sequence}, tokens.subspan(begin + 1, end - begin),
                    losses);
      for (const float value : losses) sum += value;
    }
    ranks.communicator()->all_reduce(Device{}, std::span(&sum, 1), Reduction::sum);
    loss += sum;
    if (!std::isfinite(loss)) fail_not_finite();
    if (progress) show(*progress, std::min(window + size * stretch, text.predicted()), text, loss);
  }
  if (progress) progress->finish();
  return loss;
}

void report(const PerplexityFlags& flags, const Text& text, double loss) {
  const double mean = loss / static_cast<double>(text.predicted());
  // Bits per byte compare models with different tokenizers; only for a text that was read to its end.
  const std::string bits =
      flags.limit > 0 ? ""
                      : fmt::format(", bits per byte {:.4f}", loss / std::log(2.0) / static_cast<double>(text.bytes));
  fmt::print("{} tokens, loss {:.5f}, perplexity {:.4f}{}\n", text.predicted(), mean, std::exp(mean), bits);
}

void run_perplexity(PerplexityFlags& flags) {
  require(flags.limit >= 0, "limit is {}, expected 0 (all) or more", flags.limit);
  flags.model = model_folder(flags.model);
  if (flags.sequence_parallel == 1) {
    const auto model = load_model(flags.model);
    const Text text = read_text(flags);
    return report(flags, text, loss_of(*model, text, flags.device.open()));
  }
  const Ranks ranks(flags.device, flags.transport);
  ranks.run([&] {
    const RankGroups groups(ranks.communicator(), flags.sequence_parallel);
    require(groups.groups() == 1, "--sequence-parallel {} on {} processes: there is one text, for all of them",
            flags.sequence_parallel, ranks.size());
    const auto model = load_model(flags.model);
    const Text text = read_text(flags);
    const double loss = loss_of(*model, text, ranks, groups);
    if (ranks.first()) report(flags, text, loss);
  });
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
  command->add_option("--limit", flags->limit, "Tokens of the text, from the first; 0: all")->capture_default_str();
  flags->device.add_to(*command);
  command
      ->add_option("--sequence-parallel", flags->sequence_parallel,
                   "Processes, started with mpirun, that read parts of the text at the same time")
      ->capture_default_str();
  command
      ->add_option("--transport", flags->transport,
                   "What these processes communicate over: mpi, nccl, or auto for what fits")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  qdelta perplexity --model run --data other.txt\n"
      "  qdelta perplexity --model M --data other.txt --limit 10000      (the first ten thousand tokens)\n"
      "  mpirun --bind-to none -n 4 qdelta perplexity --model M --data other.txt --sequence-parallel 4");
  command->callback([flags] { run_perplexity(*flags); });
}

}  // namespace qdelta
