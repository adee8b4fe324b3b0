// qdelta train: a model from token shards, a plain text file, or the synthetic recall task.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <memory>

#include "bench/machine_limits.h"
#include "cli/cli.h"
#include "cli/initial_weights.h"
#include "cli/memory_hint.h"
#include "cli/model_folder.h"
#include "cli/ranks.h"
#include "cli/stop_signal.h"
#include "cli/train_flags.h"
#include "core/threads.h"
#include "data/tokenizer.h"
#include "infer/generator.h"
#include "infer/prompt.h"
#include "io/atomic_file.h"
#include "io/folders.h"
#include "io/run_log.h"
#include "io/temporary_name.h"
#include "model/flops.h"
#include "plot/figure.h"
#include "plot/run_figure.h"
#include "train/training_run.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// FLOP below which a run is over sooner than the machine's limit could be measured.
constexpr double kShortRun = 1e12;

double machine_limit(const TrainFlags& flags, const ParameterLayout& layout) {
  double tokens = 1;
  for (const std::int64_t factor : {flags.steps, flags.run.accumulate, flags.batch_rows(1), flags.row_tokens()}) {
    tokens *= static_cast<double>(factor);
  }
  const bool measured = flags.run.device.gpu == nullptr && tokens * training_flop_per_token(layout) >= kShortRun;
  return measured ? bench::matrix_rate(flags.run.device.threads).rate : 0;
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

// The shards of a text, in a folder of their own until the run has really begun: a start that fails leaves those of an
// earlier run alone.
class NewShards {
 public:
  NewShards(std::string run, bool first) : run_(std::move(run)), first_(first) {}
  ~NewShards() {
    std::error_code error;
    if (first_ && !path_.empty()) fs::remove_all(path_, error);
  }
  NewShards(const NewShards&) = delete;
  NewShards& operator=(const NewShards&) = delete;

  // The same name on every rank. Those of processes that were killed are removed.
  const std::string& choose(const Ranks& ranks) {
    std::array<char, 256> name{};
    temporary_name("data").copy(name.data(), name.size() - 1);
    if (ranks.communicator() != nullptr) {
      ranks.communicator()->broadcast(Device{}, std::as_writable_bytes(std::span(name)), 0);
    }
    if (first_) remove_leftovers(run_);
    path_ = (fs::path(run_) / name.data()).string();
    return path_;
  }
  // They take the place of what was there.
  void keep() {
    if (!fs::exists(path_)) return;
    const fs::path data = fs::path(run_) / "data";
    std::error_code error;
    fs::remove_all(data, error);
    fs::rename(path_, data, error);
    if (error) fail(Status::io, "cannot rename {} to {}: {}", path_, data.string(), error.message());
    sync_folder(run_);
  }

 private:
  std::string run_, path_;
  bool first_;
};

// Rank 0 makes the shards of a text and checks those there are; the others then open them.
TrainingData open_data_of(const TrainFlags& flags, const Ranks& ranks, const RankGroups& groups, NewShards& shards) {
  ShardFolder folder;
  folder.keep = flags.run.resume;
  folder.make = ranks.first();
  folder.groups = groups.groups();
  folder.path = flags.run.resume ? (fs::path(flags.run.out) / "data").string() : shards.choose(ranks);
  folder.check_text = flags.text_given || !flags.stored;
  if (!ranks.first()) ranks.barrier();
  TrainingData data = open_data(flags, folder);
  if (ranks.first()) ranks.barrier();
  ranks.barrier();  // all have it open: rank 0 may rename it
  if (flags.stored)
    flags.stored->check_section("data", data.fingerprints, "the run in " + flags.run.out + " has other data");
  require(!data.validation.empty() || (flags.run.patience <= 0 && flags.run.target_accuracy <= 0),
          "--patience and --target-accuracy need something to validate on: give --validation");
  return data;
}

std::string config_path(const std::string& run) { return (fs::path(run) / "config.json").string(); }

// The model of the flags; where a run is resumed, the run's own, which those that are given must agree with.
ModelConfig config_of(const TrainFlags& flags, const TrainingData& data) {
  const std::string path = config_path(flags.run.out);
  const bool own = flags.stored && fs::exists(path);
  if (own && !flags.model_given) return load_config(path);
  ModelConfig config = flags.config_for(data);
  if (!own) return config;
  const nlohmann::ordered_json then = config_to_json(load_config(path));
  const nlohmann::ordered_json now = config_to_json(config);
  for (const auto& [key, value] : now.items()) {
    const nlohmann::ordered_json before = then.contains(key) ? then.at(key) : nlohmann::ordered_json();
    require(value == before, "the run in {} has another model: {} is {}, but was {}", flags.run.out, key, value.dump(),
            before.dump());
  }
  return config;
}

void say_what_trains(const TrainFlags& flags, const Ranks& ranks, const RankGroups& groups, const LanguageModel& model,
                     const BatchSource& source) {
  const ModelConfig& config = model.config();
  const std::int64_t group_rows = ceil_div(source.next_rows(), std::int64_t{groups.groups()});
  const std::int64_t rows = std::min(flags.rows, group_rows);
  fmt::print("{} parameters, {} ({}), {:.1f} MB of activations\n{}\n", model.layout().parameters(),
             config.mixer_title(), config.mixer_name(),
             static_cast<double>(ModelRunner::training_bytes(model.layout(), flags.run.device, rows,
                                                             ceil_div(flags.row_tokens(), std::int64_t{groups.parts}),
                                                             flags.run.recompute)) /
                 1e6,
             source.describe());
  if (const std::string note = flags.warmup_note(); !note.empty()) fmt::print("{}\n", note);
  if (ranks.communicator() != nullptr) {
    const std::string on = groups.parts == 1 ? "on each" : fmt::format("on each {} together", groups.parts);
    fmt::print("{} ranks over {}, {} rows of each batch {}, {} threads\n", ranks.size(),
               ranks.communicator()->description(), group_rows, on, thread_count(ranks.device().threads));
  }
  std::fflush(stdout);  // progress does not go through its buffer
}

void say_how_it_ended(const TrainFlags& flags, const TrainingOutcome& outcome, bool has_tokenizer) {
  if (outcome.end == TrainingOutcome::End::interrupted) {
    fmt::print("Stopped after step {} of {}; {}.\nTo go on: qdelta train --resume {}\n", outcome.state.step,
               flags.run.total_steps(),
               outcome.checkpoint.empty() ? "there is no checkpoint yet" : "the checkpoint is " + outcome.checkpoint,
               flags.run.out);
    return;
  }
  fmt::print("{} at step {}", outcome.end == TrainingOutcome::End::early ? "Stopped early" : "Finished",
             outcome.state.step);
  if (outcome.loss) fmt::print(": loss {:.4f}", *outcome.loss);
  if (outcome.validation.loss_tokens > 0) {
    fmt::print(", validation loss {:.4f}, accuracy {:.3f}", outcome.validation.loss, outcome.validation.accuracy);
  }
  fmt::print("\nModel: {}\nCurve: {}\n", outcome.checkpoint, (fs::path(flags.run.out) / "loss.svg").string());
  if (has_tokenizer) fmt::print("Try:   qdelta generate --model {} --prompt \"The\" --stream\n", outcome.checkpoint);
}

// Before anything is written there: the data of a run must stay what it was trained on.
void refuse_existing_run(const TrainFlags& flags) {
  if (flags.run.resume) return;
  const auto checkpoint = newest_checkpoint(flags.run.out);
  require(!checkpoint, "{} already holds a run ({}); pass --resume to go on with it, or another --out", flags.run.out,
          checkpoint ? fs::path(*checkpoint).filename().string() : "");
}

// The weights that it starts with, and what there is to say about them.
void initialise_model(const TrainFlags& flags, const Ranks& ranks, const TrainingData& data, LanguageModel& model) {
  initialise(model.layout(), flags.seed, model.parameters());
  std::vector<std::string> notes;
  if (!flags.run.resume && !flags.init_from.empty()) {
    notes = start_from(flags.init_from, data.tokenizer, model);
    notes.insert(notes.begin(), "Starts from the weights of " + flags.init_from + ".");
  } else if (!flags.run.resume && has_weights(flags.model.file)) {
    notes.push_back(fmt::format("{} has weights, which are not used; --init-from {} would start from them.",
                                flags.model.file, flags.model.file));
  }
  if (ranks.first() && !notes.empty()) fmt::print("{}\n", fmt::join(notes, "\n"));
}

// Texts of a model that trains: a few dozen tokens behind the prompt, every time with the same random numbers.
std::function<std::string()> sampler_of(const TrainFlags& flags, const LanguageModel& model,
                                        const std::string& tokenizer_name) {
  constexpr std::int64_t kTokens = 64;
  require(flags.run.sample_every >= 0, "--sample-every is {}, expected 0 (none) or more", flags.run.sample_every);
  require(flags.run.sample_every > 0 || flags.sample_prompt.empty(), "--sample-prompt goes with --sample-every");
  if (flags.run.sample_every == 0) return {};
  require(!tokenizer_name.empty(), "--sample-every writes texts: the data needs a tokenizer, see --tokenizer");
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(tokenizer_name);
  const std::vector<std::int32_t> prompt = encode_prompt(*tokenizer, flags.sample_prompt, true);
  require(!prompt.empty(), "--sample-every: this tokenizer has no begin-of-text token: give a --sample-prompt");
  GenerationOptions options;
  options.max_tokens = kTokens;
  options.sampling.seed = flags.seed;
  return [&model, tokenizer, prompt, options, text = flags.sample_prompt, device = flags.run.device] {
    ModelStates states(model.config(), 1, device);
    Generator generator(model, *tokenizer, states);
    return text + generator.generate({prompt}, options, {0}).front().text;
  };
}

TensorBoardSettings settings_of(const RunFile& file) {
  TensorBoardSettings settings;
  for (const auto& [name, values] : file.settings)
    settings.emplace_back(name, fmt::format("{}", fmt::join(values, " ")));
  return settings;
}

TrainingOutcome train_on(const Ranks& ranks, TrainFlags& flags, const CLI::App& command,
                         const std::atomic<bool>& stop) {
  refuse_existing_run(flags);
  const RankGroups groups(ranks.communicator(), flags.run.sequence_parallel);
  flags.check_batch(groups);
  NewShards shards(flags.run.out, ranks.first());
  const TrainingData data = open_data_of(flags, ranks, groups, shards);
  const ModelConfig config = config_of(flags, data);
  LanguageModel model(config);
  initialise_model(flags, ranks, data, model);
  flags.run.recipe = flags.recipe(*data.source, groups.groups());
  flags.run.tokenizer = data.tokenizer;
  flags.run.name = fs::path(flags.run.out).filename().string();
  flags.run.sample = sampler_of(flags, model, data.tokenizer);
  const RunFile run_file = flags.stored ? *flags.stored : TrainFlags::run_file(command, data, ranks.size());
  flags.run.settings = settings_of(run_file);
  if (ranks.size() == 1) flags.run.machine_limit = machine_limit(flags, model.layout());
  flags.run.on_start = [&] {
    shards.keep();
    if (flags.run.resume && !flags.stored && newest_checkpoint(flags.run.out)) return;  // of version 0.1
    if (flags.stored) return flags.stored->write(flags.run.out);                        // an extension
    // The run's file comes last: where it is, all that is written here once is there.
    write_whole(config_path(flags.run.out), config_to_json(config).dump(2) + "\n");
    run_file.write(flags.run.out);
  };
  if (ranks.first()) say_what_trains(flags, ranks, groups, model, *data.source);
  Progress progress;
  TrainingOutcome outcome = run_training(model, *data.source, data.validation, flags.run, stop, progress);
  if (ranks.first()) {
    draw_loss(flags.run.out);
    say_how_it_ended(flags, outcome, !data.tokenizer.empty());
  }
  return outcome;
}

void run_train(TrainFlags& flags, const CLI::App& command) {
  require(!flags.run.out.empty(), "--out is missing: the folder for the run");
  flags.resolve();
  check_keep(flags.run.keep);
  const StopSignal stop;  // before threads, of MPI or of a GPU's driver, are there
  TrainingOutcome outcome;
  {
    const Ranks ranks(flags.device, flags.transport);
    flags.run.device = ranks.device();
    flags.run.communicator = ranks.communicator();
    ranks.run([&] {
      outcome = with_memory_hint(kLessTrainingMemory, [&] { return train_on(ranks, flags, command, stop.raised()); });
    });
  }
  if (outcome.end == TrainingOutcome::End::interrupted) throw CLI::RuntimeError(130);  // as a shell reports Ctrl-C
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a model on a text, on token shards or on the recall task");
  flags->add_to(*command);
  command->footer(
      "Examples:\n"
      "  qdelta train --text book.txt --out run --steps 500\n"
      "  qdelta train --resume run                          go on with it, whatever it was\n"
      "  qdelta train --resume run --extend 200             and 200 steps further\n"
      "  qdelta train --init-from run --text letters.txt --out tuned\n"
      "  qdelta train --data shards/train --validation shards/val --tokenizer tokenizer.json --model-config "
      "configs/340M.json --preset paper-340M --out run\n"
      "  qdelta train --data web:0.7 books:0.3 --out mixed\n"
      "  mpirun --bind-to none -n 4 qdelta train --text book.txt --out run     on four processes; also srun\n"
      "  mpirun --bind-to none -n 4 qdelta train --text book.txt --seq-len 65536 --rows 1 --sequence-parallel 4 --out "
      "run\n"
      "  qdelta train --mqar 64:4:100000 --vocab-size 8192 --hidden-size 128 --layers 2 --mlp false --rows 256 --out "
      "recall\n"
      "Ctrl-C finishes the step, saves, and says how to go on.");
  command->callback([flags, command] {
    flags->prepare(*command);
    run_train(*flags, *command);
  });
}

}  // namespace qdelta
