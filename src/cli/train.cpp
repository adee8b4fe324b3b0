// qdelta train: a model from token shards, a plain text file, or the synthetic recall task.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "bench/machine_limits.h"
#include "cli/cli.h"
#include "cli/config_file.h"
#include "cli/device_flags.h"
#include "cli/model_flags.h"
#include "cli/stop_signal.h"
#include "data/mqar.h"
#include "data/tokenizer.h"
#include "io/atomic_file.h"
#include "model/flops.h"
#include "plot/figure.h"
#include "plot/run_figure.h"
#include "train/run_log.h"
#include "train/training_run.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
  ModelFlags model;
  DeviceFlags device;
  TrainingOptions run;
  std::string config, text, tokenizer, mqar;
  std::vector<std::string> data, validation;
  std::int64_t rows = 8, seq_len = 512, context_len = 0, validation_rows = 32;
  bool reset_at_documents = false;
  std::uint64_t seed = 1;
  double lr = 1e-3, min_lr_ratio = 0.1;
  std::int64_t steps = 1000, warmup = 100;
};

// A source of batches, what to validate on, and the tokenizer the ids come from ("" for synthetic tokens).
struct Data {
  std::unique_ptr<BatchSource> source;
  std::vector<TokenBatch> validation;
  std::string tokenizer;
};

// A text file as two sets of shards inside the run: its last part is kept for validation.
void shard_text(const TrainFlags& flags, const Tokenizer& tokenizer, const fs::path& train, const fs::path& held_out) {
  std::ifstream in(flags.text, std::ios::binary);
  if (!in) fail(Status::io, "cannot read {}", flags.text);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  const auto row = static_cast<std::size_t>(flags.seq_len + 1);
  const std::size_t kept = std::max(ids.size() / 20, row);
  require(ids.size() >= kept + row, "{} has only {} tokens: too few for rows of {}", flags.text, ids.size(),
          flags.seq_len);
  const auto write = [&](const fs::path& folder, std::span<const std::int32_t> part) {
    ShardWriter writer({.folder = folder.string(),
                        .tokenizer_name = tokenizer.name(),
                        .vocab_size = tokenizer.vocab_size(),
                        .fingerprint = tokenizer.fingerprint(),
                        .replace = true});
    writer.add(part);
    writer.finish();
  };
  write(train, std::span(ids).first(ids.size() - kept));
  write(held_out, std::span(ids).last(kept));
}

Data open_mqar(const TrainFlags& flags) {
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
  Data data;
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

Data open_data(const TrainFlags& flags) {
  const int given = (flags.text.empty() ? 0 : 1) + (flags.data.empty() ? 0 : 1) + (flags.mqar.empty() ? 0 : 1);
  require(given == 1, "give exactly one of --text, --data and --mqar; see qdelta train --help");
  require(flags.validation.empty() || !flags.data.empty(),
          "--validation goes with --data: {} keeps a part of its own to validate on",
          flags.text.empty() ? "--mqar" : "--text");
  require(flags.tokenizer.empty() || flags.mqar.empty(), "--tokenizer has no meaning with --mqar");
  if (!flags.mqar.empty()) return open_mqar(flags);

  Data data;
  data.tokenizer = flags.tokenizer;
  if (data.tokenizer.empty()) data.tokenizer = flags.text.empty() ? tokenizer_beside(flags.data.front()) : "bytes";
  std::vector<std::string> paths = flags.data;
  std::vector<std::string> held_out = flags.validation;
  const auto tokenizer = data.tokenizer.empty() ? nullptr : load_tokenizer(data.tokenizer);
  if (!flags.text.empty()) {
    const fs::path train = fs::path(flags.run.out) / "data" / "train";
    const fs::path validation = fs::path(flags.run.out) / "data" / "validation";
    // A run that is resumed has them already, and must see the same ones.
    const bool there = fs::exists(train / kShardIndexName) && fs::exists(validation / kShardIndexName);
    if (!flags.run.resume || !there) shard_text(flags, *tokenizer, train, validation);
    paths = {train.string()};
    held_out = {validation.string()};
  }
  const auto dataset = std::make_shared<const TokenDataset>(TokenDataset::open(paths));
  require(tokenizer == nullptr || tokenizer->fingerprint() == dataset->fingerprint(),
          "the shards were made with another tokenizer than {}", data.tokenizer);
  const RowOptions row{flags.seq_len, flags.reset_at_documents, flags.context_len};
  data.source = std::make_unique<TokenSource>(
      dataset, TokenSourceOptions{.row = row, .rows = flags.rows, .seed = flags.seed, .shuffle = true});
  if (!held_out.empty()) {
    const auto rows_dataset = std::make_shared<const TokenDataset>(TokenDataset::open(held_out));
    require(rows_dataset->fingerprint() == dataset->fingerprint(),
            "training and validation data have different tokenizers");
    const ValidationRows rows(rows_dataset, row, flags.rows, flags.validation_rows);
    for (std::int64_t i = 0; i < rows.batches(); ++i) data.validation.push_back(rows.batch(i));
  }
  return data;
}

// Everything that shapes the numbers, so that a resumed run can tell whether it is still the same run.
std::string recipe_of(const TrainFlags& flags, const BatchSource& source) {
  return fmt::format(
      "{}; {} batches of {} rows a step, {} steps, rate {} after {} steps of warm-up down to {} of it, seed {}, "
      "AdamW {} {} {}, decay {}, clip {}",
      source.describe(), flags.run.accumulate, flags.rows, flags.steps, flags.lr, flags.warmup, flags.min_lr_ratio,
      flags.seed, flags.run.optimizer.beta1, flags.run.optimizer.beta2, flags.run.optimizer.epsilon,
      flags.run.optimizer.weight_decay, flags.run.optimizer.clip);
}

// FLOP below which a run is over sooner than the machine's limit could be measured.
constexpr double kShortRun = 1e12;

double machine_limit(const TrainFlags& flags, const ParameterLayout& layout) {
  double tokens = 1;
  for (const std::int64_t factor : {flags.steps, flags.run.accumulate, flags.rows, flags.seq_len}) {
    tokens *= static_cast<double>(factor);
  }
  const bool measured = flags.run.device.gpu == nullptr && tokens * training_flop_per_token(layout) >= kShortRun;
  return measured ? bench::matrix_rate(flags.run.device.threads) : 0;
}

void draw_loss(const std::string& run) {
  const std::vector<RunRecord> log = read_run_log((fs::path(run) / kRunLogName).string());
  if (log.empty()) return;  // stopped before the first step
  plot::Figure figure;
  plot::Panel& panel = figure.panels.emplace_back();
  panel.title = fs::path(run).filename().string();
  panel.x.label = "tokens";
  panel.y.label = "loss";
  plot::Series train{.label = "training"};
  plot::Series held_out{.label = "validation"};
  for (const RunRecord& record : log) {
    train.x.push_back(static_cast<double>(record.tokens));
    train.y.push_back(record.loss);
    if (!record.validation_loss) continue;
    held_out.x.push_back(static_cast<double>(record.tokens));
    held_out.y.push_back(*record.validation_loss);
  }
  train.opacity = 0.6;
  panel.series.push_back(train);
  if (!held_out.x.empty()) panel.series.push_back(held_out);
  plot::write_svg(figure, (fs::path(run) / "loss.svg").string());
}

void run_train(TrainFlags& flags) {
  require(!flags.run.out.empty(), "--out is missing: the folder for the run");
  flags.run.schedule = {flags.lr, flags.warmup, flags.steps, flags.min_lr_ratio};
  flags.run.schedule.check();
  // Before anything is written there: the data of a run must stay what it was trained on.
  if (const auto checkpoint = newest_checkpoint(flags.run.out); checkpoint && !flags.run.resume) {
    fail(Status::invalid_argument, "{} already holds a run ({}); pass --resume to go on with it, or another --out",
         flags.run.out, fs::path(*checkpoint).filename().string());
  }
  const StopSignal stop;  // before a GPU is opened, whose driver has threads of its own
  flags.run.device = flags.device.open();
  Data data = open_data(flags);
  require(!data.validation.empty() || (flags.run.patience <= 0 && flags.run.target_accuracy <= 0),
          "--patience and --target-accuracy need something to validate on: give --validation");
  const ModelConfig config = flags.model.config(data.source->vocab_size());
  require(config.vocab_size >= data.source->vocab_size(), "the model knows {} tokens, but the data has {}",
          config.vocab_size, data.source->vocab_size());
  LanguageModel model(config);
  initialise(model.layout(), flags.seed, model.parameters());
  flags.run.recipe = recipe_of(flags, *data.source);
  flags.run.tokenizer = data.tokenizer;
  flags.run.name = fs::path(flags.run.out).filename().string();
  flags.run.machine_limit = machine_limit(flags, model.layout());

  fmt::print("{} parameters, {} ({}), {:.1f} MB of activations\n{}\n", model.layout().parameters(),
             config.mixer_title(), config.mixer_name(),
             static_cast<double>(ModelRunner::training_bytes(model.layout(), flags.run.device, flags.rows,
                                                             flags.seq_len, flags.run.recompute)) /
                 1e6,
             data.source->describe());
  std::fflush(stdout);  // progress does not go through its buffer
  Progress progress;
  const TrainingOutcome outcome =
      run_training(model, *data.source, data.validation, flags.run, stop.raised(), progress);
  draw_loss(flags.run.out);
  if (outcome.end == TrainingOutcome::End::interrupted) {
    fmt::print("Stopped after step {} of {}; {}.\nTo go on, give the same command with --resume.\n", outcome.state.step,
               flags.steps,
               outcome.checkpoint.empty() ? "there is no checkpoint yet" : "the checkpoint is " + outcome.checkpoint);
    throw CLI::RuntimeError(130);  // as a shell reports Ctrl-C
  }
  fmt::print("{} at step {}", outcome.end == TrainingOutcome::End::early ? "Stopped early" : "Finished",
             outcome.state.step);
  if (outcome.loss) fmt::print(": loss {:.4f}", *outcome.loss);
  if (outcome.validation.counted > 0) {
    fmt::print(", validation loss {:.4f}, accuracy {:.3f}", outcome.validation.loss, outcome.validation.accuracy);
  }
  fmt::print("\nModel: {}\nCurve: {}\n", outcome.checkpoint, (fs::path(flags.run.out) / "loss.svg").string());
  if (!data.tokenizer.empty()) {
    fmt::print("Try:   qdelta generate --model {} --prompt \"The\" --stream\n", outcome.checkpoint);
  }
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a model on a text, on token shards or on the recall task");
  TrainingOptions& run = flags->run;
  const auto add = [&](const char* group, const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group(group);
  };
  add("Run", "--config", flags->config, "TOML file of settings, each named like a flag; flags win over it");
  add("Run", "--out", run.out, "Folder for checkpoints, log, TensorBoard events and the picture of the loss");
  command->add_flag("--resume", run.resume, "Go on with the run in --out")->group("Run");
  flags->device.add_to(*command, "Run");
  add("Run", "--seed", flags->seed, "Of initial weights and order of data")->capture_default_str();

  add("Data", "--text", flags->text, "A text file to train on; its last twentieth is kept for validation");
  add("Data", "--data", flags->data, "Token shards made by qdelta tokenize");
  add("Data", "--validation", flags->validation, "Token shards to validate on");
  add("Data", "--mqar", flags->mqar, "Synthetic recall: LENGTH:PAIRS:EXAMPLES, or 'paper' for the published mixture");
  add("Data", "--tokenizer", flags->tokenizer, "Tokenizer of the data, kept with the model; default for --text: bytes");
  add("Data", "--seq-len", flags->seq_len, "Tokens of a row")->capture_default_str();
  add("Data", "--rows", flags->rows, "Rows (examples) of a batch")->capture_default_str();
  add("Data", "--reset-at-documents", flags->reset_at_documents, "true: the state is empty at the start of a document")
      ->capture_default_str();
  add("Data", "--context-len", flags->context_len, "And after so many tokens at the latest; 0: no such limit")
      ->capture_default_str();
  add("Data", "--validation-rows", flags->validation_rows, "Rows to validate on")->capture_default_str();

  flags->model.add_to(*command);

  add("Training", "--steps", flags->steps, "Updates in all")->capture_default_str();
  add("Training", "--accumulate", run.accumulate, "Batches per update")->capture_default_str();
  add("Training", "--lr", flags->lr, "Peak learning rate")->capture_default_str();
  add("Training", "--warmup", flags->warmup, "Steps up to the peak")->capture_default_str();
  add("Training", "--min-lr-ratio", flags->min_lr_ratio, "Share of the peak at the end of the cosine")
      ->capture_default_str();
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
  command->footer(
      "Examples:\n"
      "  qdelta train --text book.txt --out run --steps 500\n"
      "  qdelta train --data shards/train --validation shards/val --tokenizer tokenizer.json --model-config "
      "configs/340M.json --out run\n"
      "  qdelta train --mqar 64:4:100000 --vocab-size 8192 --hidden-size 128 --layers 2 --mlp false --rows 256 --out "
      "recall\n"
      "Ctrl-C finishes the step, saves, and says how to go on.");
  command->callback([flags, command] {
    if (!flags->config.empty()) apply_config_file(*command, flags->config);
    run_train(*flags);
  });
}

}  // namespace qdelta
