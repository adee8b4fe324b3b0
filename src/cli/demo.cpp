// qdelta demo: trains three token mixers on a small recall task, live, and shows what each of them can remember.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <csignal>
#include <filesystem>
#include <memory>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/stop_signal.h"
#include "cli/validators.h"
#include "data/mqar.h"
#include "io/run_log.h"
#include "plot/figure.h"
#include "rule/rule.h"
#include "train/training_run.h"

namespace qdelta {
namespace {

struct DemoFlags {
  std::string out = "demo";
  std::int64_t steps = 1500;
  std::uint64_t seed = 1;
  DeviceFlags device;
};

constexpr std::int64_t kTaskVocabulary = 128;
constexpr std::int64_t kBatch = 32;

// What the models are tested on: (length, pairs). The first ones they are trained on, the others they have never seen.
constexpr std::array<MqarTask, 2> kTrained{{{64, 4, 100'000}, {64, 8, 100'000}}};
constexpr std::array<MqarTask, 5> kTested{{{64, 4, 512}, {64, 8, 512}, {64, 16, 512}, {128, 8, 256}, {256, 8, 128}}};

MqarOptions task_options(std::uint64_t seed) {
  MqarOptions options;
  options.tasks.assign(kTrained.begin(), kTrained.end());
  options.vocab_size = kTaskVocabulary;
  options.batch_size = kBatch;
  options.seed = seed;
  return options;
}

ModelConfig demo_model(Rule rule) {
  ModelConfig config;
  config.choose_mixer(traits_of(rule).name);
  config.vocab_size = kTaskVocabulary;
  config.hidden_size = 64;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.head_dim = 32;
  config.expand_v = 1;
  config.use_mlp = false;
  config.bos_token_id = config.eos_token_id = std::nullopt;  // synthetic tokens have neither
  return config;
}

// All examples of one task.
std::vector<TokenBatch> examples_of(const MqarTask& task, std::uint64_t seed) {
  MqarOptions options = task_options(seed);
  options.tasks = {task};
  const MqarSource source(options);
  std::vector<TokenBatch> batches;
  for (std::int64_t i = 0; i < source.batches_of(0); ++i) batches.push_back(source.batch_of(0, i));
  return batches;
}

struct DemoResult {
  Rule rule;
  std::int64_t parameters = 0;
  std::vector<double> accuracy;  // of kTested
  std::vector<RunRecord> log;
  std::string checkpoint;
};

DemoResult train_one(Rule rule, const DemoFlags& flags, const Device& device, const std::atomic<bool>& stop) {
  const std::string run = (std::filesystem::path(flags.out) / traits_of(rule).name).string();
  std::filesystem::remove_all(run);  // the demonstration starts afresh every time
  LanguageModel model(demo_model(rule));
  initialise(model.layout(), flags.seed, model.parameters());
  MqarSource source(task_options(flags.seed));

  TrainingOptions options;
  options.out = run;
  options.name = traits_of(rule).name;
  options.schedule = {5e-3, flags.steps / 20, flags.steps, 0.1};
  options.optimizer.epsilon = 1e-8F;
  options.eval_every = std::max<std::int64_t>(flags.steps / 15, 1);
  options.save_every = flags.steps;
  options.keep = 1;
  options.device = device;
  const std::uint64_t test_seed = flags.seed + 1'000'003;
  const std::vector<TokenBatch> validation = examples_of({64, 8, 128}, test_seed);
  Progress progress;
  const TrainingOutcome outcome = run_training(model, source, validation, options, stop, progress);

  DemoResult result{rule, model.layout().parameters(), {}, {}, outcome.checkpoint};
  Trainer tester(model, {}, options.device);
  for (const MqarTask& task : kTested)
    result.accuracy.push_back(tester.evaluate(examples_of(task, test_seed)).accuracy);
  result.log = read_run_log((std::filesystem::path(run) / kRunLogName).string());
  return result;
}

void print_table(const std::vector<DemoResult>& results) {
  fmt::print("\nShare of questions answered right, on sequences none of them has seen:\n\n");
  fmt::print("  {:<16}", "");
  for (const MqarTask& task : kTested) fmt::print("{:>12}", fmt::format("{} pairs", task.pairs));
  fmt::print("\n  {:<16}", "");
  for (const MqarTask& task : kTested) fmt::print("{:>12}", fmt::format("{} tokens", task.length));
  fmt::print("\n");
  for (const DemoResult& result : results) {
    fmt::print("  {:<16}", traits_of(result.rule).title);
    for (const double accuracy : result.accuracy) fmt::print("{:>12.3f}", accuracy);
    fmt::print("\n");
  }
  fmt::print("\n  The first two columns are what they were trained on; the others have more pairs or are longer.\n");
}

std::string draw(const std::vector<DemoResult>& results, const std::string& out) {
  plot::Figure figure;
  figure.title = "Recall: three token mixers, one budget";
  figure.panels.resize(2);
  plot::Panel& training = figure.panels[0];
  training.title = "While training (8 pairs in 64 tokens)";
  training.x.label = "tokens";
  training.y = {.label = "accuracy", .low = 0.0, .high = 1.0};
  plot::Panel& tests = figure.panels[1];
  tests.title = "After training";
  tests.x.label = "pairs : tokens";
  tests.y = {.label = "accuracy", .low = 0.0, .high = 1.0};
  for (const MqarTask& task : kTested) tests.x.categories.push_back(fmt::format("{}:{}", task.pairs, task.length));
  for (const DemoResult& result : results) {
    plot::Series line{.label = std::string(traits_of(result.rule).title)};
    for (const RunRecord& record : result.log) {
      const auto accuracy = value_of(record, "validation_accuracy");
      if (!accuracy) continue;
      line.x.push_back(static_cast<double>(record.tokens));
      line.y.push_back(*accuracy);
    }
    training.series.push_back(line);
    plot::Series bars{.label = std::string(traits_of(result.rule).title), .kind = plot::Kind::bar};
    for (std::size_t i = 0; i < kTested.size(); ++i) {
      bars.x.push_back(static_cast<double>(i));
      bars.y.push_back(result.accuracy[i]);
    }
    tests.series.push_back(bars);
  }
  std::string path = (std::filesystem::path(out) / "recall.svg").string();
  plot::write_svg(figure, path);
  return path;
}

void run_demo(DemoFlags& flags) {
  const StopSignal stop;  // before a GPU is opened, whose driver has threads of its own
  const Device device = flags.device.open();
  require(flags.steps >= 20, "steps is {}, expected at least 20", flags.steps);
  fmt::print(
      "A recall task: a sequence names pairs of a key and a value, then asks for some of the keys again,\n"
      "\n    k7 v3  k2 v9  k5 v1  ...  k2 -> ?   (v9)\n\n"
      "so a model has to write what it reads into its memory, and find it there later. Three models of the same size\n"
      "train on the same {} batches; they differ only in the rule by which memory is written.\n\n",
      flags.steps);
  std::vector<DemoResult> results;
  for (const Rule rule : {Rule::q_delta, Rule::gated_delta, Rule::linear}) {
    fmt::print("{}:  {}\n", traits_of(rule).title, traits_of(rule).formula);
    std::fflush(stdout);
    results.push_back(train_one(rule, flags, device, stop.raised()));
    if (stop.raised()) fail(Status::invalid_argument, "stopped; what was trained so far is in {}", flags.out);
  }
  print_table(results);
  const std::string picture = draw(results, flags.out);
  fmt::print(
      "\nPicture:     {}\nModels:      {} parameters or so each, e.g. {}\n"
      "\nWhat to try next:\n"
      "  build/qdelta plot {}/q_delta {}/gated_delta {}/linear --y loss --terminal\n"
      "  build/qdelta train --text book.txt --out run --steps 500      a text file of your own\n"
      "  build/qdelta generate --model run/checkpoints/step-00000500 --prompt \"The\" --stream\n"
      "  build/qdelta bench op                                         how fast the operator is here\n",
      picture, results.front().parameters, results.front().checkpoint, flags.out, flags.out, flags.out);
}

}  // namespace

void add_demo(CLI::App& app) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App* command = app.add_subcommand("demo", "Train three small models on a recall task and compare them");
  command->add_option("--out", flags->out, "Folder for runs, models and the picture")->capture_default_str();
  command->add_option("--steps", flags->steps, "Training steps of each model")->capture_default_str();
  command->add_option("--seed", flags->seed, "Another seed, other numbers")
      ->capture_default_str()
      ->check(whole_number());
  flags->device.add_to(*command);
  command->footer(
      "Examples:\n"
      "  qdelta demo\n"
      "  qdelta demo --steps 300 --out short            a first look: they learn less\n"
      "  qdelta demo --seed 2 --out again --device cuda");
  command->callback([flags] { run_demo(*flags); });
}

}  // namespace qdelta
