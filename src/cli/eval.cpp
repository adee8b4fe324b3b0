// qdelta eval: the benchmarks that models are compared by, out of local data.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>

#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/eval_ranks.h"
#include "cli/evaluation_display.h"
#include "cli/model_folder.h"
#include "cli/stop_signal.h"
#include "cli/validators.h"
#include "core/hash.h"
#include "eval/evaluation.h"
#include "eval/harness_json.h"
#include "eval/task_file.h"
#include "infer/state_file.h"
#include "io/atomic_file.h"
#include "io/parse_json.h"
#include "model/checkpoint.h"

namespace qdelta {
namespace {

struct EvalFlags {
  std::string model, tokenizer, tasks, out, log_examples, harness_out;
  std::string bos = "auto";
  eval::TaskSettings settings;
  std::int64_t batch = 8, max_length = 2048, bootstrap = 100'000;
  bool restart = false, dry_run = false;
  std::int64_t sequence_parallel = 1;
  std::string transport = "auto";
  DeviceFlags device;
};

// Everything that a result depends on, and the batch and the version besides.
nlohmann::ordered_json settings_json(const EvalFlags& flags, const Device& device) {
  nlohmann::ordered_json out;
  out["tasks"] = flags.tasks;
  out["limit"] = flags.settings.limit;
  if (flags.settings.fewshot > 0) out["fewshot"] = flags.settings.fewshot;
  out["bos"] = flags.bos;
  out["max_length"] = flags.max_length;
  out["lengths"] = flags.settings.lengths;
  out["samples"] = flags.settings.samples;
  out["seed"] = flags.settings.seed;
  out["ruler_words"] = flags.settings.ruler_data.empty() ? "built-in" : "given";
  if (flags.settings.haystack != "longest") out["haystack"] = flags.settings.haystack;
  out["recall_length"] = flags.settings.recall_length;
  out["mqar"] = flags.settings.mqar;
  if (flags.settings.rewrites > 0) out["rewrites"] = flags.settings.rewrites;
  out["bootstrap"] = flags.bootstrap;
  out["device"] = flags.device.device;
  out["dtype"] = device.activations == DType::bf16 ? "bf16" : "f32";
  return out;
}

void write_examples(const std::string& path, const eval::TaskList& tasks,
                    const std::vector<std::vector<nlohmann::json>>& results) {
  AtomicFile file(path);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    for (std::int64_t i = 0; i < tasks[t]->size(); ++i) {
      const nlohmann::json* result = results.empty() ? nullptr : &results[t][static_cast<std::size_t>(i)];
      const std::string line = eval::example_line(*tasks[t], i, result);
      file.write(std::as_bytes(std::span(line)));
    }
  }
  file.commit();
}

// Whether it is a file that --out or --harness-out has written.
bool is_result(const std::string& path) {
  try {
    const nlohmann::json json = read_json_file(path);
    return json.is_object() && json.contains("results") &&
           (json.contains("qdelta") || json.value("model_source", "") == "qdelta");
  } catch (const std::exception&) {
    return false;
  }
}

// A name that was mistyped must not cost somebody a file.
void refuse_other_file(const std::string& path, const char* flag) {
  const bool something = std::filesystem::is_regular_file(path) && std::filesystem::file_size(path) > 0;
  require(!something || is_result(path),
          "{} is there already and is no result of qdelta eval; move it away, or give another {}", path, flag);
}

void check(const EvalFlags& flags) {
  require(flags.batch > 0, "batch is {}, expected at least 1", flags.batch);
  require(flags.bootstrap >= 0, "bootstrap is {}, expected 0 (none) or more", flags.bootstrap);
  for (const std::int64_t length : flags.settings.lengths) {
    require(length > 0, "lengths has {}, expected numbers of tokens", length);
  }
  require(!flags.dry_run || !flags.log_examples.empty(),
          "--dry-run only writes what would be asked: give --log-examples");
  // What takes hours should not end at a name that cannot be written.
  for (const std::string& path : {flags.out, flags.log_examples, flags.harness_out}) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    require(path.empty() || folder.empty() || std::filesystem::is_directory(folder), "there is no folder {} for {}",
            folder.string(), path);
    require(!std::filesystem::is_directory(path), "{} is a folder, expected a file to write", path);
  }
  refuse_other_file(flags.out, "--out");
  refuse_other_file(flags.harness_out, "--harness-out");
}

// --tasks: names of tasks, and files that define some.
struct ChosenTasks {
  std::vector<const eval::TaskEntry*> entries;
  std::vector<std::string> files;

  explicit ChosenTasks(const std::string& list) {
    std::string names;
    std::istringstream in(list);
    for (std::string name; std::getline(in, name, ',');) {
      if (eval::is_task_file(name)) {
        files.push_back(name);
      } else {
        names += (names.empty() ? "" : ",") + name;
      }
    }
    if (!names.empty() || files.empty()) entries = eval::tasks_named(names);
  }
  [[nodiscard]] bool reads_text() const {
    return !files.empty() || std::ranges::any_of(entries, [](const auto* entry) { return entry->reads_text; });
  }
  [[nodiscard]] eval::TaskList make(const eval::TaskSource& source) const {
    eval::TaskList tasks = eval::make_tasks(entries, source);
    for (const std::string& file : files) eval::add_task_of_file(file, source, tasks);
    return tasks;
  }
};

// What is asked, and of what.
struct Evaluation {
  EvalFlags& flags;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  ChosenTasks chosen;
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<eval::RequestEncoder> encoder;

  explicit Evaluation(EvalFlags& given) : flags(given), chosen(given.tasks) {
    const eval::Bos bos = eval::bos_of(flags.bos);
    flags.model = model_folder(flags.model);
    model = load_model(flags.model);
    if (!chosen.reads_text()) return;
    tokenizer = tokenizer_of(model->config(), flags.model, flags.tokenizer);
    encoder = std::make_unique<eval::RequestEncoder>(*tokenizer, bos, flags.max_length);
  }

  [[nodiscard]] eval::TaskList tasks() const { return chosen.make({flags.settings, encoder.get(), model->config()}); }

  // What results depend on, and a key of it, by which a journal is known again.
  struct Report {
    nlohmann::ordered_json json;
    std::string key;
  };
  [[nodiscard]] Report report(const eval::TaskList& tasks, const Device& device) const {
    nlohmann::ordered_json report;
    report["qdelta"] = QDELTA_VERSION;
    report["compiler"] = build_info().compiler;
    report["model"] = {{"path", flags.model}, {"hash", fmt::format("{:016x}", model_hash(*model))}};
    if (tokenizer != nullptr) {
      report["tokenizer"] = {{"name", tokenizer->name()},
                             {"fingerprint", fmt::format("{:016x}", tokenizer->fingerprint())},
                             {"adds_bos", encoder->adds_bos()}};
    }
    report["settings"] = settings_json(flags, device);
    report["examples_hash"] = eval::hash_of(tasks);
    const std::string key = fmt::format(
        "{:016x}", hash_texts({report["model"]["hash"].dump(), report["settings"].dump(),
                               report["examples_hash"].dump(), report.value("tokenizer", report["model"]).dump()}));
    report["settings"]["data"] = flags.settings.data;
    if (!flags.settings.ruler_data.empty()) report["settings"]["ruler_data"] = flags.settings.ruler_data;
    report["settings"]["batch"] = flags.batch;
    report["settings"]["threads"] = flags.device.threads;
    if (flags.sequence_parallel > 1) report["settings"]["sequence_parallel"] = flags.sequence_parallel;
    return {std::move(report), key};
  }

  void write_results(const eval::TaskList& tasks, const std::vector<std::vector<nlohmann::json>>& results,
                     nlohmann::ordered_json report) const {
    std::vector<eval::TaskResult> summary;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      summary.push_back(eval::aggregate(*tasks[t], results[t], {flags.bootstrap, flags.device.threads}));
    }
    report["results"] = eval::json_of(summary);
    if (!flags.log_examples.empty()) write_examples(flags.log_examples, tasks, results);
    if (!flags.out.empty()) write_whole(flags.out, report.dump(2) + "\n");
    if (!flags.harness_out.empty()) {
      const eval::HarnessRun run{
          .model = flags.model,
          .version = QDELTA_VERSION,
          .fewshot = flags.settings.fewshot,
          .limit = flags.settings.limit,
          .batch = flags.batch,
          .bootstrap = flags.bootstrap,
          .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
      write_whole(flags.harness_out, eval::harness_json(summary, run).dump(2) + "\n");
    }
    fmt::print("{}", eval::table_of(summary));
  }
};

// False where it was stopped.
bool evaluate(const Evaluation& evaluation, const eval::TaskList& tasks, eval::Engine& engine, const Device& device,
              const std::atomic<bool>& stop) {
  const EvalFlags& flags = evaluation.flags;
  auto [report, key] = evaluation.report(tasks, device);
  const std::string journal_path = flags.out + ".journal";
  eval::Journal journal = flags.out.empty() ? eval::Journal() : eval::Journal(journal_path, key, flags.restart);
  if (journal.size() > 0) fmt::print("Going on after {} examples kept in {}.\n", journal.size(), journal_path);
  std::fflush(stdout);  // progress does not go through its buffer
  std::vector<std::vector<nlohmann::json>> results;
  EvaluationDisplay display;
  const bool finished = eval::run_examples(tasks, engine, journal, stop, results,
                                           [&](const eval::EvaluationProgress& now) { display.show(now); });
  display.finish();
  if (!finished) {
    fmt::print("Stopped. {}\n", flags.out.empty()
                                    ? "Nothing is kept: with --out, what is finished would be."
                                    : fmt::format("{} examples are kept in {}; to go on, give the same command.",
                                                  journal.size(), journal_path));
    return false;
  }
  evaluation.write_results(tasks, results, std::move(report));
  journal.remove();
  return true;
}

void list_examples(const EvalFlags& flags, const eval::TaskList& tasks) {
  write_examples(flags.log_examples, tasks, {});
  fmt::print("What would be asked is in {}.\n", flags.log_examples);
}

// Over several processes, of which the first one asks.
bool evaluate_on_ranks(EvalFlags& flags, const std::atomic<bool>& stop) {
  const Ranks ranks(flags.device, flags.transport);
  bool finished = true;
  ranks.run([&] {
    const RankGroups groups(ranks.communicator(), flags.sequence_parallel);
    require(groups.groups() == 1, "--sequence-parallel {} on {} processes: there is one evaluation, for all of them",
            flags.sequence_parallel, ranks.size());
    const Evaluation evaluation(flags);
    EngineOfRanks engine(*evaluation.model, ranks, groups, flags.batch, evaluation.tokenizer.get());
    if (!ranks.first()) return engine.follow();
    finished = evaluate(evaluation, evaluation.tasks(), engine, ranks.device(), stop);
    engine.dismiss();
  });
  return finished;
}

void run_eval(EvalFlags& flags) {
  const StopSignal stop;  // before anything computes
  check(flags);
  bool finished = true;
  if (flags.sequence_parallel != 1) {
    require(!flags.dry_run, "--dry-run computes nothing: leave --sequence-parallel out");
    finished = evaluate_on_ranks(flags, stop.raised());
  } else {
    const Evaluation evaluation(flags);
    const eval::TaskList tasks = evaluation.tasks();
    if (flags.dry_run) return list_examples(flags, tasks);
    const Device device = flags.device.open();
    eval::Engine engine(*evaluation.model, device, flags.batch);
    finished = evaluate(evaluation, tasks, engine, device, stop.raised());
  }
  if (!finished) throw CLI::RuntimeError(130);  // as a shell reports Ctrl-C
}

std::string task_help() {
  std::string text = "Tasks:\n";
  for (const eval::TaskEntry& entry : eval::all_tasks()) text += fmt::format("  {:<16}{}\n", entry.name, entry.about);
  return text;
}

}  // namespace

void add_eval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand("eval", "Measure a model on the benchmarks that papers report");
  command->add_option("--model", flags->model, kModelHelp)->required();
  command->add_option("--tokenizer", flags->tokenizer, "Another tokenizer than the model folder's");
  command
      ->add_option("--tasks", flags->tasks,
                   "Which ones, with commas between them: those listed below, and files FILE.json that define one")
      ->required();
  eval::TaskSettings& settings = flags->settings;
  command->add_option("--data", settings.data,
                      "Folder with the data sets: TASK.jsonl and the like, see docs/evaluation.md");
  command
      ->add_option("--fewshot", settings.fewshot,
                   "Solved examples before each question, drawn as lm-evaluation-harness draws them, from "
                   "TASK_train.jsonl or else from the test")
      ->capture_default_str();
  command->add_option("--limit", settings.limit, "Examples of each task, from the first; 0: all")
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "Sequences at a time")->capture_default_str();
  command
      ->add_option("--bos", flags->bos, "Begin-of-text token before every text: on, off, or auto as the tokenizer says")
      ->capture_default_str();
  command->add_option("--max-length", flags->max_length, "Most tokens that a likelihood is taken over")
      ->capture_default_str();
  command->add_option("--out", flags->out, "Write results and settings here as JSON; makes the run resumable");
  command->add_option("--harness-out", flags->harness_out,
                      "Write results here as JSON in lm-evaluation-harness's layout");
  command->add_option("--log-examples", flags->log_examples, "Write every example and its result here as JSON lines");
  command->add_flag("--restart", flags->restart, "Throw away what a stopped run with this --out has kept");
  command->add_flag("--dry-run", flags->dry_run, "Only write what would be asked, to --log-examples");
  command->add_option("--lengths", settings.lengths, "Of needle tasks, in tokens, with commas between them")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--samples", settings.samples, "Of needle tasks, for each length")->capture_default_str();
  command->add_option("--seed", settings.seed, "Of needle tasks and mqar")
      ->capture_default_str()
      ->check(whole_number());
  command->add_option("--ruler-data", settings.ruler_data,
                      "Folder with adjectives.txt, nouns.txt and essays/ for needle tasks. Default: our own words");
  command
      ->add_option("--haystack", settings.haystack,
                   "Of needle tasks: longest, to a word, or harness: in steps of 500 words or 5 or 25 lines, as "
                   "lm-evaluation-harness")
      ->capture_default_str()
      ->check(CLI::IsMember({"longest", "harness"}));
  command->add_option("--recall-length", settings.recall_length, "Tokens that documents of cloze tasks are cut to")
      ->capture_default_str();
  command->add_option("--mqar", settings.mqar, "LENGTH:PAIRS:EXAMPLES, or 'paper' for the published tests")
      ->capture_default_str();
  command
      ->add_option("--rewrites", settings.rewrites,
                   "With --mqar: keys written again with a new value, of which the last is the answer")
      ->capture_default_str();
  command->add_option("--bootstrap", flags->bootstrap, "Draws for the standard error of a perplexity; 0: none")
      ->capture_default_str();
  command
      ->add_option("--sequence-parallel", flags->sequence_parallel,
                   "Processes, started with mpirun or srun, that share the tokens of every sequence")
      ->capture_default_str();
  command
      ->add_option("--transport", flags->transport,
                   "What these processes communicate over: mpi, nccl, or auto for what fits")
      ->capture_default_str();
  flags->device.add_to(*command);
  command->footer(
      task_help() +
      "\nExamples:\n"
      "  qdelta eval --model M --tasks lambada_openai,arc_easy --data data/eval --out results.json\n"
      "  qdelta eval --model M --tasks niah_single_1,niah_single_2 --lengths 1024,2048 --samples 100\n"
      "  qdelta eval --model M --tasks mqar --mqar 256:64:1000\n"
      "  mpirun --bind-to none -n 4 qdelta eval --model M --tasks wikitext --data data/eval --sequence-parallel 4\n"
      "After Ctrl-C the same command goes on where it stopped, if it has --out.");
  command->callback([flags] { run_eval(*flags); });
}

}  // namespace qdelta
