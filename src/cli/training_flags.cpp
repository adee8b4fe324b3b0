#include "cli/training_flags.h"

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "cli/validators.h"
#include "data/encode_file.h"
#include "data/mqar.h"
#include "data/shard_format.h"
#include "data/tokenizer.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// The ids [begin, end) of a file as shards. A document that lies on a border is cut there.
void write_part(const fs::path& folder, const Tokenizer& tokenizer, const EncodedFile& file, std::size_t begin,
                std::size_t end) {
  ShardWriter writer({.folder = folder.string(),
                      .tokenizer_name = tokenizer.name(),
                      .vocab_size = tokenizer.vocab_size(),
                      .fingerprint = tokenizer.fingerprint(),
                      .replace = true});
  for (const std::size_t document_end : file.ends) {
    const std::size_t here = std::min(document_end, end);
    if (here <= begin) continue;
    writer.add(std::span(file.ids).subspan(begin, here - begin));
    begin = here;
  }
  writer.finish();
}

// A text file as two sets of shards inside the run: its last part is kept for validation.
void shard_text(const TrainingFlags& flags, const Tokenizer& tokenizer, const fs::path& train,
                const fs::path& held_out) {
  const EncodedFile file = encode_file(tokenizer, flags.text, flags.text_key);
  const std::size_t size = file.ids.size();
  const auto row = static_cast<std::size_t>(flags.seq_len + 1);
  const std::size_t kept = std::max(size / 20, row);
  require(size >= kept + row, "{} has only {} tokens: too few for rows of {}", flags.text, size, flags.seq_len);
  write_part(train, tokenizer, file, 0, size - kept);
  write_part(held_out, tokenizer, file, size - kept, size);
}

// Shards that were made some time ago may have been damaged since. Better to hear now than to train on noise.
void check_shards(const TokenDataset& dataset) {
  constexpr double kSilent = 2e9;  // bytes: 0.6 s of checking, and some seconds of a slow disk
  const double bytes = static_cast<double>(dataset.tokens()) * shard_token_width(dataset.vocab_size());
  if (bytes > kSilent) {
    fmt::print("Checking {:.1f} GB of token shards for damage ...\n", bytes / 1e9);
    std::fflush(stdout);
  }
  dataset.verify();
}

TrainingData open_mqar(const TrainingFlags& flags) {
  MqarOptions options;
  options.vocab_size = static_cast<std::int32_t>(flags.model.vocab_size.value_or(8192));
  options.seed = flags.seed;
  options.batch_size = flags.rows;
  options.tasks = flags.mqar == "paper" ? mqar_training_tasks() : std::vector{mqar_task_of("--mqar", flags.mqar)};
  MqarOptions held_out = options;
  held_out.seed = flags.seed + 1'000'003;
  if (flags.mqar == "paper") held_out.tasks = mqar_test_tasks();
  for (MqarTask& task : held_out.tasks) task.examples = std::min<std::int64_t>(task.examples, flags.validation_rows);
  const MqarSource examples(held_out);
  TrainingData data;
  for (std::size_t task = 0; task < held_out.tasks.size(); ++task) {
    for (std::int64_t i = 0; i < examples.batches_of(task); ++i) data.validation.push_back(examples.batch_of(task, i));
  }
  data.source = std::make_unique<MqarSource>(options);
  return data;
}

// Where qdelta tokenize left the tokenizer of these shards; "" where it did not.
std::string tokenizer_beside(const std::string& shards) {
  return fs::exists(fs::path(shards) / "qdelta_tokenizer.json") ? shards : "";
}

}  // namespace

TrainingData open_data(const TrainingFlags& flags, const std::string& data_folder, bool keep_shards) {
  const int given = (flags.text.empty() ? 0 : 1) + (flags.data.empty() ? 0 : 1) + (flags.mqar.empty() ? 0 : 1);
  require(given == 1, "give exactly one of --text, --data and --mqar; see qdelta train --help");
  require(flags.validation.empty() || !flags.data.empty(),
          "--validation goes with --data: {} keeps a part of its own to validate on",
          flags.text.empty() ? "--mqar" : "--text");
  require(flags.tokenizer.empty() || flags.mqar.empty(), "--tokenizer has no meaning with --mqar");
  if (!flags.mqar.empty()) return open_mqar(flags);

  TrainingData data;
  data.tokenizer = flags.tokenizer;
  if (data.tokenizer.empty()) data.tokenizer = flags.text.empty() ? tokenizer_beside(flags.data.front()) : "bytes";
  std::vector<std::string> paths = flags.data;
  std::vector<std::string> held_out = flags.validation;
  const auto tokenizer = data.tokenizer.empty() ? nullptr : load_tokenizer(data.tokenizer);
  if (tokenizer != nullptr) {
    data.bos = tokenizer->bos();
    data.eos = tokenizer->eos();
    data.pad = tokenizer->pad();
  }
  bool just_made = false;
  if (!flags.text.empty()) {
    const fs::path train = fs::path(data_folder) / "train";
    const fs::path validation = fs::path(data_folder) / "validation";
    // A run that is resumed has them already, and must see the same ones.
    const bool there = fs::exists(train / kShardIndexName) && fs::exists(validation / kShardIndexName);
    just_made = !keep_shards || !there;
    if (just_made) shard_text(flags, *tokenizer, train, validation);
    paths = {train.string()};
    held_out = {validation.string()};
  }
  const auto dataset = std::make_shared<const TokenDataset>(TokenDataset::open(paths, tokenizer.get()));
  require(tokenizer == nullptr || tokenizer->fingerprint() == dataset->fingerprint(),
          "the shards were made with another tokenizer than {}", data.tokenizer);
  if (!just_made) check_shards(*dataset);
  const RowOptions row{flags.seq_len, flags.reset_at_documents, flags.context_len};
  data.source = std::make_unique<TokenSource>(
      dataset, TokenSourceOptions{.row = row, .rows = flags.rows, .seed = flags.seed, .shuffle = true});
  if (!held_out.empty()) {
    const auto rows_dataset = std::make_shared<const TokenDataset>(TokenDataset::open(held_out, tokenizer.get()));
    require(rows_dataset->fingerprint() == dataset->fingerprint(),
            "training and validation data have different tokenizers");
    if (!just_made) check_shards(*rows_dataset);
    const ValidationRows rows(rows_dataset, row, flags.rows, flags.validation_rows);
    for (std::int64_t i = 0; i < rows.batches(); ++i) data.validation.push_back(rows.batch(i));
  }
  return data;
}

ModelConfig TrainingFlags::config_for(const TrainingData& training_data) const {
  ModelConfig result = model.config(training_data.source->vocab_size());
  require(result.vocab_size >= training_data.source->vocab_size(), "the model knows {} tokens, but the data has {}",
          result.vocab_size, training_data.source->vocab_size());
  // Of shards without their tokenizer nothing is known but what a config file says.
  if (training_data.tokenizer.empty() && mqar.empty() && !model.file.empty()) return result;
  result.bos_token_id = training_data.bos;
  result.eos_token_id = training_data.eos;
  result.pad_token_id = training_data.pad;
  return result;
}

std::string TrainingFlags::recipe(const BatchSource& source) const {
  return fmt::format(
      "{}; {} batches of {} rows a step, {} steps, rate {} after {} steps of warm-up down to {} of it, seed {}, "
      "AdamW {} {} {}, decay {}, clip {}",
      source.describe(), run.accumulate, rows, steps, lr, warmup, min_lr_ratio, seed, run.optimizer.beta1,
      run.optimizer.beta2, run.optimizer.epsilon, run.optimizer.weight_decay, run.optimizer.clip);
}

void TrainingFlags::add_to(CLI::App& command) {
  const auto add = [&](const char* group, const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  add("Run", "--config", config, "TOML file of settings, each named like a flag; flags win over it");
  add("Run", "--out", run.out, "Folder for checkpoints, log, TensorBoard events and the picture of the loss");
  command.add_flag("--resume", run.resume, "Go on with the run in --out")->group("Run");
  device.add_to(command, "Run");
  add("Run", "--seed", seed, "Of initial weights and order of data")->capture_default_str()->check(whole_number());

  add("Data", "--text", text,
      "A file of text or JSON lines to train on, also with gzip, xz or zstd; its last twentieth is for validation");
  add("Data", "--text-key", text_key, "The member of a JSON line that holds the text (text)");
  add("Data", "--data", data, "Token shards made by qdelta tokenize");
  add("Data", "--validation", validation, "Token shards to validate on");
  add("Data", "--mqar", mqar, "Synthetic recall: LENGTH:PAIRS:EXAMPLES, or 'paper' for the published mixture");
  add("Data", "--tokenizer", tokenizer, "Tokenizer of the data, kept with the model; default for --text: bytes");
  add("Data", "--seq-len", seq_len, "Tokens of a row")->capture_default_str();
  add("Data", "--rows", rows, "Rows (examples) of a batch")->capture_default_str();
  add("Data", "--reset-at-documents", reset_at_documents, "true: the state is empty at the start of a document")
      ->capture_default_str();
  add("Data", "--context-len", context_len, "And after so many tokens at the latest; 0: no such limit")
      ->capture_default_str();
  add("Data", "--validation-rows", validation_rows, "Rows to validate on")->capture_default_str();

  model.add_to(command);

  add("Training", "--steps", steps, "Updates in all")->capture_default_str();
  add("Training", "--accumulate", run.accumulate, "Batches per update")->capture_default_str();
  add("Training", "--lr", lr, "Peak learning rate")->capture_default_str();
  add("Training", "--warmup", warmup, "Steps up to the peak")->capture_default_str();
  add("Training", "--min-lr-ratio", min_lr_ratio, "Share of the peak at the end of the cosine")->capture_default_str();
  add("Training", "--beta1", run.optimizer.beta1, "AdamW")->capture_default_str();
  add("Training", "--beta2", run.optimizer.beta2, "AdamW")->capture_default_str();
  add("Training", "--eps", run.optimizer.epsilon, "AdamW")->capture_default_str();
  add("Training", "--weight-decay", run.optimizer.weight_decay, "On every parameter")->capture_default_str();
  add("Training", "--clip", run.optimizer.clip, "Largest gradient norm; 0: none")->capture_default_str();
  add("Training", "--recompute", run.recompute, "true: less memory, a third more work")->capture_default_str();
  add("Training", "--eval-every", run.eval_every, "Steps between validations; 0: at the end")->capture_default_str();
  add("Training", "--save-every", run.save_every, "Steps between checkpoints; 0: at each validation")
      ->capture_default_str();
  add("Training", "--keep", run.keep, "Checkpoints to keep")->capture_default_str();
  add("Training", "--patience", run.patience, "Stop after so many validations without a better one; 0: never")
      ->capture_default_str();
  add("Training", "--target-accuracy", run.target_accuracy, "Stop when the validation accuracy reaches it; 0: never")
      ->capture_default_str();
}

}  // namespace qdelta
