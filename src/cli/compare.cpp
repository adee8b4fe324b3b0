// qdelta compare: several rules, trained alike, in one table.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "cli/cli.h"
#include "cli/config_file.h"
#include "cli/evaluation_display.h"
#include "cli/help_format.h"
#include "cli/memory_hint.h"
#include "cli/stop_signal.h"
#include "cli/training_flags.h"
#include "cli/validators.h"
#include "compare/comparison.h"
#include "compare/comparison_figure.h"
#include "compare/task_scores.h"
#include "io/atomic_file.h"
#include "io/folder_lock.h"
#include "io/run_log.h"
#include "plot/png.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;
using compare::Result;
using compare::Score;
using compare::Variant;

struct CompareFlags {
  TrainingFlags training;
  std::string rules = "q_delta,gated_delta,delta,longhorn,mamba2,retnet,linear";
  std::vector<std::uint64_t> seeds{1, 2, 3};
  bool ablations = false;
  std::string tasks;
  eval::TaskSettings evaluation;
};

// What a comparison does not share between its runs, or what does not change their numbers.
const std::set<std::string> kNotSettings{"config", "out",   "resume",    "rule",      "seed",
                                         "rules",  "seeds", "ablations", "threads",   "save-every",
                                         "keep",   "help",  "tasks",     "eval-data", "limit"};

// Flags of a training run that a comparison does without, and what it has instead. A file may have them all the same.
const std::map<std::string, std::string> kOfOneRun{{"--rule", "--rules"}, {"--seed", "--seeds"}};

// Every setting of the command as text, given or by default.
std::map<std::string, std::string> settings_of(const CLI::App& command) {
  std::map<std::string, std::string> settings;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (kNotSettings.contains(name)) continue;
    const std::string value =
        option->count() > 0 ? fmt::format("{}", fmt::join(option->results(), " ")) : option->get_default_str();
    if (!value.empty()) settings[name] = value;
  }
  return settings;
}

// How finished models are scored; tasks are added to these. A name for the table, and a number for each model.
const std::vector<Score> kScores{{"validation_loss", "validation loss", true},
                                 {"perplexity", "perplexity", true, false},
                                 {"accuracy", "accuracy", false},
                                 {"training_loss", "training loss", true, false}};

std::map<std::string, double> scores_of(LanguageModel& model, const TrainingData& data, const Device& device) {
  std::map<std::string, double> scores;
  if (data.validation.empty()) return scores;
  const EvaluationResult result = Trainer(model, {}, device).evaluate(data.validation);
  scores["validation_loss"] = result.loss;
  scores["perplexity"] = std::exp(result.loss);
  scores["accuracy"] = result.accuracy;
  return scores;
}

// Of the last tenth of the steps: a single batch says little.
double last_training_loss(const std::string& folder) {
  const std::vector<RunRecord> log = read_run_log((fs::path(folder) / kRunLogName).string());
  const std::size_t last = std::max<std::size_t>(log.size() / 10, 1);
  double sum = 0;
  int count = 0;
  for (std::size_t i = log.size() - last; i < log.size(); ++i) {
    if (!std::isfinite(log[i].tokens_per_second)) continue;  // a line that was lost
    sum += log[i].loss;
    ++count;
  }
  return sum / count;
}

std::string checkpoint_in(const std::string& folder) {
  const std::optional<std::string> checkpoint = newest_checkpoint(folder);
  if (!checkpoint) fail(Status::io, "{} has a result, but no checkpoint any more: its model cannot be asked", folder);
  return *checkpoint;
}

// In the comparison's folder, where all its runs find it.
TrainingData open_data_of(const TrainingFlags& training, const std::string& out) {
  return open_data(training, {.path = (fs::path(out) / "data").string(), .keep = true, .check_text = false});
}

// One run, from wherever it was left; nullopt where it was interrupted.
std::optional<Result> train_one(const CompareFlags& flags, const Variant& variant, std::uint64_t seed,
                                const std::string& out, const Device& device, const std::atomic<bool>& stop) {
  TrainingFlags training = flags.training;
  training.seed = seed;
  const TrainingData data = open_data_of(training, out);
  const ModelConfig config = variant.applied(training.config_for(data));
  require(!data.validation.empty() || (training.run.patience <= 0 && training.run.target_accuracy <= 0),
          "--patience and --target-accuracy need something to validate on: give --validation");
  LanguageModel model(config);
  initialise(model.layout(), seed, model.parameters());

  training.resolve();
  TrainingOptions run = training.run;
  run.out = compare::run_folder(out, variant.name, seed);
  run.name = fmt::format("{} seed {}", variant.name, seed);
  run.resume = newest_checkpoint(run.out).has_value() || fs::exists(fs::path(run.out) / kRunLogName);
  run.device = device;
  run.tokenizer = data.tokenizer;
  run.recipe = variant.name + ": " + training.recipe(*data.source, 1);
  Progress progress;
  const TrainingOutcome outcome = run_training(model, *data.source, data.validation, run, stop, progress);
  if (outcome.end == TrainingOutcome::End::interrupted) return std::nullopt;

  Result result;
  result.variant = variant.name;
  result.seed = seed;
  result.parameters = model.layout().parameters();
  result.tokens = outcome.state.tokens;
  result.steps = outcome.state.step;
  result.seconds = outcome.state.seconds;
  result.scores = scores_of(model, data, device);
  result.scores["training_loss"] = last_training_loss(run.out);
  compare::write_result(run.out, result);
  return result;
}

// What the tasks say of a finished run, where that is not known yet; false where it was interrupted.
bool score_tasks(const compare::TaskScores& tasks, Result& result, const std::string& folder, const Device& device,
                 const std::atomic<bool>& stop) {
  EvaluationDisplay display(fmt::format("{} seed {} ", result.variant, result.seed));
  const auto scores =
      tasks.of(checkpoint_in(folder), device, stop, [&](const eval::EvaluationProgress& now) { display.show(now); });
  display.finish();
  if (!scores) return false;
  for (const auto& [name, value] : *scores) result.scores[name] = value;
  result.examples = tasks.examples();
  compare::write_result(folder, result);
  return true;
}

// What the tasks ask, out of their data: before hours of training, not after. A finished run says which tokenizer that
// takes, else the data to train on.
compare::TaskScores open_tasks(const CompareFlags& flags, const std::string& out,
                               const std::vector<Variant>& variants) {
  for (const std::uint64_t seed : flags.seeds) {
    for (const Variant& variant : variants) {
      const std::string folder = compare::run_folder(out, variant.name, seed);
      if (!compare::read_result(folder)) continue;
      const std::string checkpoint = checkpoint_in(folder);
      // Of shards without a tokenizer there is none beside the model either.
      const std::string tokenizer = flags.training.mqar.empty() ? checkpoint : "";
      return {flags.tasks, flags.evaluation, tokenizer, load_config(checkpoint)};
    }
  }
  const TrainingData data = open_data_of(flags.training, out);
  return {flags.tasks, flags.evaluation, data.tokenizer, flags.training.config_for(data)};
}

void write_tables(const std::string& out, const compare::Table& table) {
  const auto write = [&](const char* name, const std::string& text) {
    write_whole((fs::path(out) / name).string(), text);
  };
  write("table.md", compare::markdown_table(table));
  write("table.csv", compare::csv_table(table));
  write("runs.csv", compare::csv_runs(table));
  write("table.json", compare::json_table(table));
}

void write_figure(const std::string& out, const compare::Table& table) {
  if (table.rows.empty()) return;
  const std::string svg = plot::svg(compare::comparison_figure(out, table));
  write_whole((fs::path(out) / "compare.svg").string(), svg);
  if (plot::can_write_png()) plot::write_png(svg, (fs::path(out) / "compare.png").string());
}

void run_compare(CompareFlags& flags, const CLI::App& command) {
  const std::string out = flags.training.run.out;
  require(!out.empty(), "--out is missing: the folder for the comparison");
  std::vector<Variant> variants = compare::variants_of(flags.rules);
  if (flags.ablations) {
    for (Variant& variant : compare::paper_ablations()) {
      const bool there = std::any_of(variants.begin(), variants.end(),
                                     [&](const Variant& other) { return other.name == variant.name; });
      if (!there) variants.push_back(std::move(variant));
    }
  }
  const std::set<std::uint64_t> different(flags.seeds.begin(), flags.seeds.end());
  require(different.size() == flags.seeds.size(), "--seeds names a seed twice");
  flags.training.schedule().check();
  if (!flags.tasks.empty()) static_cast<void>(eval::tasks_named(flags.tasks));  // before anything is written
  const StopSignal stop;         // before a GPU is opened, whose driver has threads of its own
  std::optional<Device> device;  // opened when there is something to train: finished runs need none
  compare::claim_settings(out, settings_of(command));
  if (const std::string note = flags.training.warmup_note(); !note.empty()) fmt::print("{}\n", note);

  const FileDescriptor lock = lock_folder(out);
  const auto planned = static_cast<std::int64_t>(variants.size() * flags.seeds.size());
  std::vector<Result> results;
  std::optional<compare::TaskScores> tasks;
  if (!flags.tasks.empty()) tasks.emplace(open_tasks(flags, out, variants));
  const auto table = [&] {
    std::vector<Score> scores = kScores;
    if (tasks) scores.insert(scores.end(), tasks->scores().begin(), tasks->scores().end());
    return compare::table_of(variants, scores, results, planned);
  };
  const auto stopped = [&] {
    write_figure(out, table());
    fmt::print("Stopped; {} of {} runs are finished. To go on, give the same command again.\n", results.size(),
               planned);
    throw CLI::RuntimeError(130);  // as a shell reports Ctrl-C
  };
  // All rules with one seed before the next seed, so that what is finished can be compared.
  for (const std::uint64_t seed : flags.seeds) {
    for (const Variant& variant : variants) {
      const std::string folder = compare::run_folder(out, variant.name, seed);
      const auto with_device = [&]() -> const Device& {
        std::fflush(stdout);  // progress does not go through its buffer
        if (!device) device = flags.training.device.open();
        return *device;
      };
      std::optional<Result> result = compare::read_result(folder);
      if (result) {
        fmt::print("{} seed {}: finished before\n", variant.name, seed);
      } else {
        result = with_memory_hint(kLessTrainingMemory,
                                  [&] { return train_one(flags, variant, seed, out, with_device(), stop.raised()); });
        if (!result) stopped();
      }
      if (!flags.tasks.empty()) {
        const bool known = result->examples == tasks->examples();
        if (!known && !score_tasks(*tasks, *result, folder, with_device(), stop.raised())) stopped();
      }
      results.push_back(*result);
      write_tables(out, table());
    }
  }
  write_figure(out, table());
  fmt::print("\n{}\nTable:  {}\nFigure: {}\n", compare::terminal_table(table()), (fs::path(out) / "table.md").string(),
             (fs::path(out) / "compare.svg").string());
  if (!plot::can_write_png()) {
    fmt::print("There is no PNG picture: this machine has no librsvg (Debian: librsvg2-2).\n");
  }
}

}  // namespace

void add_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = app.add_subcommand("compare", "Train several rules alike and compare them in one table");
  command
      ->add_option("--rules", flags->rules,
                   "What to compare, with commas between; q_delta@lambda=0.5 and q_delta@no_decay are ablations")
      ->group("Comparison")
      ->capture_default_str();
  command->add_option("--seeds", flags->seeds, "Each rule is trained once with each")
      ->delimiter(',')
      ->group("Comparison")
      ->capture_default_str()
      ->check(whole_number());
  command
      ->add_flag("--ablations", flags->ablations, "Also the paper's: lambda learned, 0.2, 0.5, 0.8 and 1, and no decay")
      ->group("Comparison");
  command
      ->add_option("--tasks", flags->tasks,
                   "Benchmarks to give each finished model, as for qdelta eval, with commas between them")
      ->group("Comparison");
  command->add_option("--eval-data", flags->evaluation.data, "Folder with their data sets")->group("Comparison");
  command->add_option("--limit", flags->evaluation.limit, "Examples of each task, from the first; 0: all")
      ->group("Comparison")
      ->capture_default_str();
  flags->training.add_to(*command);
  command->get_option("--out")->description(
      "Folder for the runs, the tables and the figure. Required, here or in --config");
  // Of a training run these speak of several processes, which a comparison does not have.
  command->get_option("--rows")->description("Rows (examples) of a batch");
  command->get_option("--batch-tokens")
      ->description("Tokens of an update, --rows at a time. 0: --rows and --accumulate decide");
  for (const auto& [name, instead] : kOfOneRun) command->get_option(name)->group(kHiddenGroup);
  command->footer(
      "All runs have the same data, batches, steps, schedule and shape of the model; rules have different gates, so "
      "the\n"
      "table also says how many parameters each has. --config is a file as for qdelta train; its rule and seed do not\n"
      "count here. Writes to OUT: table.md, table.csv, table.json, runs.csv, compare.svg and .png, and each run in a\n"
      "folder of its own. Ctrl-C saves; the same command goes on where it was, and finished runs are not repeated. "
      "More\n"
      "rules, seeds or tasks can be added later; other settings in the same folder are refused.\n"
      "\n"
      "Examples:\n"
      "  qdelta compare --rules q_delta,gated_delta,delta --text book.txt --steps 300 --out comparison\n"
      "  qdelta compare --rules q_delta --ablations --config run.toml --seeds 1,2 --out ablations\n"
      "  qdelta compare --text book.txt --steps 300 --tasks arc_easy,piqa --eval-data data/eval --out comparison\n"
      "  qdelta compare --mqar 64:8:20000 --vocab-size 128 --hidden-size 64 --layers 2 --mlp false --out recall");
  command->callback([flags, command] {
    for (const auto& [name, instead] : kOfOneRun) {
      require(command->get_option(name)->count() == 0, "{} is of one run: a comparison has {}", name, instead);
    }
    if (!flags->training.config.empty()) apply_config_file(*command, flags->training.config);
    flags->training.choose_warmup(*command);
    run_compare(*flags, *command);
  });
}

}  // namespace qdelta
