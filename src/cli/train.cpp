// qdelta train: a model from token shards, a plain text file, or the synthetic recall task.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "bench/machine_limits.h"
#include "cli/cli.h"
#include "cli/config_file.h"
#include "cli/stop_signal.h"
#include "cli/training_flags.h"
#include "io/run_log.h"
#include "model/flops.h"
#include "plot/figure.h"
#include "plot/run_figure.h"
#include "train/training_run.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// FLOP below which a run is over sooner than the machine's limit could be measured.
constexpr double kShortRun = 1e12;

double machine_limit(const TrainingFlags& flags, const ParameterLayout& layout) {
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

void run_train(TrainingFlags& flags) {
  require(!flags.run.out.empty(), "--out is missing: the folder for the run");
  flags.run.schedule = flags.schedule();
  flags.run.schedule.check();
  check_keep(flags.run.keep);
  // Before anything is written there: the data of a run must stay what it was trained on.
  if (const auto checkpoint = newest_checkpoint(flags.run.out); checkpoint && !flags.run.resume) {
    fail(Status::invalid_argument, "{} already holds a run ({}); pass --resume to go on with it, or another --out",
         flags.run.out, fs::path(*checkpoint).filename().string());
  }
  const StopSignal stop;  // before a GPU is opened, whose driver has threads of its own
  flags.run.device = flags.device.open();
  TrainingData data = open_data(flags, (fs::path(flags.run.out) / "data").string(), flags.run.resume);
  require(!data.validation.empty() || (flags.run.patience <= 0 && flags.run.target_accuracy <= 0),
          "--patience and --target-accuracy need something to validate on: give --validation");
  const ModelConfig config = flags.config_for(data);
  LanguageModel model(config);
  initialise(model.layout(), flags.seed, model.parameters());
  flags.run.recipe = flags.recipe(*data.source);
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
  if (outcome.validation.loss_tokens > 0) {
    fmt::print(", validation loss {:.4f}, accuracy {:.3f}", outcome.validation.loss, outcome.validation.accuracy);
  }
  fmt::print("\nModel: {}\nCurve: {}\n", outcome.checkpoint, (fs::path(flags.run.out) / "loss.svg").string());
  if (!data.tokenizer.empty()) {
    fmt::print("Try:   qdelta generate --model {} --prompt \"The\" --stream\n", outcome.checkpoint);
  }
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainingFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a model on a text, on token shards or on the recall task");
  flags->add_to(*command);
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
