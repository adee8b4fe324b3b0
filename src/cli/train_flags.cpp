#include "cli/train_flags.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <stdexcept>

#include "cli/build_info.h"
#include "cli/config_file.h"
#include "cli/model_folder.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// No settings of a run, but of one call of the command.
const Names kOfTheCall{"config", "out", "resume", "extend", "preset"};
// What may change when a run is resumed: it changes no numbers (but rounding), or is checked by its contents.
const Names kFree{"threads",   "device",   "dtype", "transport",    "eval-every",      "save-every",
                  "keep",      "patience", "rows",  "recompute",    "target-accuracy", "validation",
                  "tokenizer", "text",     "data",  "sample-every", "sample-prompt",   "sequence-parallel"};
const Names kSchedule{"schedule", "lr", "warmup", "min-lr-ratio", "decay-steps"};

// The recipes of the paper; the model is --model-config's.
const std::map<std::string, std::map<std::string, std::string>> kPresets{
    {"paper-340M",
     {{"steps", "28600"}, {"warmup", "1024"}, {"lr", "1e-3"}, {"seq-len", "2048"}, {"batch-tokens", "524288"}}},
    {"paper-1.3B",
     {{"steps", "57200"},
      {"warmup", "2048"},
      {"lr", "4e-4"},
      {"seq-len", "4096"},
      {"batch-tokens", "524288"},
      {"reset-at-documents", "true"},
      {"context-len", "4096"}}}};
const std::map<std::string, std::string> kOfBothPresets{
    {"schedule", "cosine"}, {"min-lr-ratio", "0.1"}, {"beta1", "0.9"},    {"beta2", "0.95"},
    {"eps", "1e-15"},       {"weight-decay", "0.1"}, {"decay-on", "all"}, {"clip", "1"}};

void give(CLI::App& command, const std::string& name, const Names& values) {
  CLI::Option* option = command.get_option("--" + name);
  option->clear();
  option->add_result(values);
  option->run_callback();
}

Names model_options(const CLI::App& command) {
  Names names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() == "Model") names.push_back(option->get_single_name());
  }
  return names;
}

// With its weight, where it has one. What is no file stays as it is: "bytes" is a tokenizer.
std::string absolute_path(const std::string& text) {
  const std::string path = weighted_path(text).path;
  if (!fs::exists(path)) return text;
  return fs::absolute(path).lexically_normal().string() + text.substr(path.size());
}

bool given(const CLI::App& command, const std::string& name) { return command.get_option("--" + name)->count() > 0; }

std::int64_t whole(const std::string& text, const std::string& what) {
  std::int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || value < 1) fail(Status::corrupt, "{}: '{}' is no number of them", what, text);
  return value;
}

}  // namespace

void TrainFlags::add_to(CLI::App& command) {
  command.add_option("--resume", resume_from, "Go on with the run in this folder (or in --out), as it was started")
      ->expected(0, 1)
      ->group("Run");
  command
      .add_option("--extend", extend,
                  "With --resume: steps to add. --schedule, --lr, --warmup and --min-lr-ratio are then of these steps; "
                  "without them the rate stays as it was at the end")
      ->group("Run");
  command
      .add_option("--init-from", init_from,
                  "Start from the weights of this model folder (of a run the newest), and with its shape")
      ->group("Run");
  command
      .add_option("--preset", preset,
                  "paper-340M or paper-1.3B: the published recipe (optimizer, schedule, batch); flags win over it")
      ->group("Run");
  TrainingFlags::add_to(command);
  command
      .add_option("--sample-every", run.sample_every,
                  "Steps between texts that the model as it is then writes, for the log and for TensorBoard; 0: none")
      ->group("Training")
      ->capture_default_str();
  command.add_option("--sample-prompt", sample_prompt, "What these texts begin with; default: the start of a text")
      ->group("Training");
  command
      .add_option("--transport", transport,
                  "What the processes that mpirun or srun started communicate over: mpi, nccl, or auto for what fits")
      ->group("Run")
      ->capture_default_str();
  command
      .add_option(
          "--sequence-parallel", run.sequence_parallel,
          "Processes that share the tokens of a batch, also within a sequence, which may then be that many times "
          "longer; --rows is for all of them together")
      ->group("Run")
      ->capture_default_str();
}

void TrainFlags::prepare(CLI::App& command) {
  if (!config.empty()) apply_config_file(command, config);
  if (!preset.empty()) {
    const auto found = kPresets.find(preset);
    require(found != kPresets.end(), "--preset {}: there is paper-340M and paper-1.3B", preset);
    for (const auto& settings : {found->second, kOfBothPresets}) {
      for (const auto& [name, value] : settings) {
        const bool batch = name == "batch-tokens" && given(command, "accumulate");
        if (!given(command, name) && !batch) give(command, name, {value});
      }
    }
  }
  run.resume = given(command, "resume");
  require(run.resume || extend == 0, "--extend goes with --resume: it adds steps to a run");
  if (run.resume) {
    const bool named = !resume_from.empty() && resume_from != "true";  // else it is a flag without a value
    require(!named || run.out.empty() || run.out == resume_from, "--resume {} and --out {} are different folders",
            resume_from, run.out);
    if (named) run.out = resume_from;
    resume(command);
  }
  if (!run.resume) choose_warmup(command);
  if (!init_from.empty()) init_from = model_folder(init_from);
  // Before the model's flags are added to: what a model has is also what it starts with.
  if (!init_from.empty() && model.file.empty()) model.file = init_from;
}

void TrainFlags::resume(CLI::App& command) {
  require(!run.out.empty(), "--resume needs a folder: --resume RUN");
  require(!resume_from.empty() && resume_from != "true" ? fs::is_directory(run.out) : true, "there is no run in {}",
          run.out);
  stored = RunFile::read(run.out);
  if (!stored) {  // of version 0.1, in which every parameter decayed, or nothing yet
    require(extend == 0, "{} has no {}: only runs that have one can be extended", run.out, kRunFileName);
    if (newest_checkpoint(run.out) && !given(command, "decay-on")) give(command, "decay-on", {"all"});
    return;
  }
  Names free = kOfTheCall;
  free.insert(free.end(), kFree.begin(), kFree.end());
  for (const std::string& name : model_options(command)) {
    model_given = model_given || given(command, name);
    free.push_back(name);
  }
  // Data of another kind is another run.
  for (const char* name : {"text", "data"}) {
    if (!stored->settings.contains(name)) std::erase(free, name);
  }
  text_given = given(command, "text");
  rows_given_ = given(command, "rows");
  std::optional<LearningRateSchedule> added;
  if (extend != 0) {
    added = new_extension(command);
    for (const std::string& name : kSchedule) command.get_option("--" + name)->clear();
  }
  stored->apply(command, run.out, free);
  read_extensions();
  if (!added) return;
  if (!(added->peak >= 0)) added->peak = learning_rate(schedule(), run.extensions, run.total_steps());
  added->check();
  stored->sections[fmt::format("extension-{}", run.extensions.size() + 1)] = {
      {"steps", fmt::format("{}", added->total)},
      {"schedule", std::string(name_of(added->kind))},
      {"lr", fmt::format("{}", added->peak)},
      {"warmup", fmt::format("{}", added->warmup)},
      {"min-lr-ratio", fmt::format("{}", added->min_ratio)},
      {"decay-steps", fmt::format("{}", added->decay)}};
  run.extensions.push_back(*added);
}

// With a peak of NaN where none is given.
LearningRateSchedule TrainFlags::new_extension(CLI::App& command) const {
  require(extend > 0, "--extend {}: at least one step", extend);
  return {.peak = given(command, "lr") ? lr : std::numeric_limits<double>::quiet_NaN(),
          .warmup = given(command, "warmup") ? warmup : 0,
          .total = extend,
          .min_ratio = min_lr_ratio,
          .kind = given(command, "schedule") ? schedule_named(schedule_kind) : ScheduleKind::constant,
          .decay = decay_steps};
}

void TrainFlags::read_extensions() {
  run.schedule = schedule();
  run.extensions.clear();
  for (int i = 1; stored->sections.contains(fmt::format("extension-{}", i)); ++i) {
    RunFile::Section& section = stored->sections.at(fmt::format("extension-{}", i));
    try {
      run.extensions.push_back({.peak = std::stod(section["lr"]),
                                .warmup = std::stoll(section["warmup"]),
                                .total = std::stoll(section["steps"]),
                                .min_ratio = std::stod(section["min-lr-ratio"]),
                                .kind = schedule_named(section["schedule"]),
                                .decay = std::stoll(section["decay-steps"])});
    } catch (const std::logic_error&) {  // no number
      fail(Status::corrupt, "{}/{}: extension {} is damaged", run.out, kRunFileName, i);
    }
  }
}

void TrainFlags::check_batch(const RankGroups& ranks) {
  if (!stored || batch_tokens > 0) return;
  const std::string path = (fs::path(run.out) / kRunFileName).string();
  const auto found = stored->settings.find("rows");
  const std::int64_t rows_then = whole(found == stored->settings.end() ? "" : found->second.front(), path + ": rows");
  const std::int64_t ranks_then = whole(stored->sections.at("start")["ranks"], path + ": ranks");
  const auto parts = stored->settings.find("sequence-parallel");
  const std::int64_t parts_then =
      parts == stored->settings.end() ? 1 : whole(parts->second.front(), path + ": sequence-parallel");
  const std::int64_t groups_then = ranks_then / parts_then;
  run_rows = rows_then * groups_then;
  const bool groups = ranks.parts > 1 || parts_then > 1;
  require(!rows_given_ || rows * ranks.groups() == run_rows,
          "the run in {} was started with other settings:\n  --rows is {} on {} {}, but was {} on {}\nLeave it out to "
          "go on with batches of {} rows.",
          run.out, rows, ranks.groups(), groups ? "groups of processes" : "processes", rows_then, groups_then,
          run_rows);
}

RunFile TrainFlags::run_file(const CLI::App& command, const TrainingData& training_data, int ranks) {
  RunFile file;
  file.take_settings(command, kOfTheCall);
  // A run may be resumed from another folder.
  for (const char* name : {"text", "data", "validation", "tokenizer", "model-config", "init-from"}) {
    if (const auto found = file.settings.find(name); found != file.settings.end()) {
      for (std::string& path : found->second) path = absolute_path(path);
    }
  }
  file.sections["start"] = {
      {"version", QDELTA_VERSION}, {"commit", build_info().commit}, {"ranks", fmt::format("{}", ranks)}};
  file.sections["data"] = training_data.fingerprints;
  return file;
}

}  // namespace qdelta
