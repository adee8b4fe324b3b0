// qdelta demo: trains three token mixers on a small recall task in which keys are written again, live, and shows what
// each of them can remember.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/stop_signal.h"
#include "cli/validators.h"
#include "core/threads.h"
#include "data/mqar.h"
#include "plot/figure.h"
#include "rule/rule.h"
#include "train/training_run.h"

namespace qdelta {
namespace {

struct DemoFlags {
  std::string out = "demo";
  std::int64_t steps = 1500;
  std::int64_t seeds = 3;
  std::uint64_t seed = 1;
  DeviceFlags device;
};

constexpr std::int64_t kTaskVocabulary = 128;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kHeadSize = 32;

// Examples of the shortest length: every key is written `times`, then asked.
constexpr MqarTask task_of(std::int64_t pairs, std::int64_t times, std::int64_t examples) {
  return {.length = 2 * pairs * (times + 1), .pairs = pairs, .examples = examples, .rewrites = pairs * (times - 1)};
}
constexpr std::int64_t times_written(const MqarTask& task) { return 1 + task.rewrites / task.pairs; }

constexpr std::array<MqarTask, 4> kTrained{
    {task_of(8, 1, 100'000), task_of(8, 2, 100'000), task_of(8, 4, 100'000), task_of(16, 2, 100'000)}};
// What the models are tested on: keys written more and more often, and more and more keys. 4,096 questions each or a
// few more.
constexpr std::array<MqarTask, 4> kMoreOften{
    {task_of(8, 1, 512), task_of(8, 2, 512), task_of(8, 4, 512), task_of(8, 8, 512)}};
constexpr std::array<MqarTask, 4> kMoreKeys{
    {task_of(8, 2, 512), task_of(16, 2, 256), task_of(32, 2, 128), task_of(48, 2, 86)}};

MqarOptions task_options(std::span<const MqarTask> tasks, std::uint64_t seed) {
  MqarOptions options;
  options.tasks.assign(tasks.begin(), tasks.end());
  options.vocab_size = kTaskVocabulary;
  options.batch_size = kBatch;
  options.seed = seed;
  return options;
}

// One layer: with more of them, later ones can make up for what the memory of an earlier one does not do.
ModelConfig demo_model(Rule rule) {
  ModelConfig config;
  config.choose_mixer(traits_of(rule).name);
  config.vocab_size = kTaskVocabulary;
  config.hidden_size = 64;
  config.num_hidden_layers = 1;
  config.num_heads = 2;
  config.head_dim = kHeadSize;
  config.expand_v = 1;
  config.use_mlp = false;
  config.bos_token_id = config.eos_token_id = std::nullopt;  // synthetic tokens have neither
  return config;
}

// All examples of one task.
std::vector<TokenBatch> examples_of(const MqarTask& task, std::uint64_t seed) {
  const MqarSource source(task_options(std::span(&task, 1), seed));
  std::vector<TokenBatch> batches;
  for (std::int64_t i = 0; i < source.batches_of(0); ++i) batches.push_back(source.batch_of(0, i));
  return batches;
}

// Of one rule: an accuracy for each task and seed.
struct DemoResult {
  Rule rule = Rule::q_delta;
  std::int64_t parameters = 0;
  std::array<std::vector<double>, kMoreOften.size()> more_often;
  std::array<std::vector<double>, kMoreKeys.size()> more_keys;
  std::string checkpoint;
};

// A model that is trained: the place of its accuracies in the result of its rule.
struct DemoRun {
  DemoResult* result = nullptr;
  std::size_t place = 0;
  std::uint64_t seed = 0;
};

std::string run_name(Rule rule, std::uint64_t seed) { return fmt::format("{}-{}", traits_of(rule).name, seed); }

void train_one(const DemoRun& demo, const DemoFlags& flags, const Device& device, const std::atomic<bool>& stop,
               Progress& progress) {
  DemoResult& result = *demo.result;
  const std::string run = (std::filesystem::path(flags.out) / run_name(result.rule, demo.seed)).string();
  std::filesystem::remove_all(run);  // the demonstration starts afresh every time
  LanguageModel model(demo_model(result.rule));
  initialise(model.layout(), demo.seed, model.parameters());
  MqarSource source(task_options(kTrained, demo.seed));

  TrainingOptions options;
  options.out = run;
  options.name = run_name(result.rule, demo.seed);
  options.schedule = {5e-3, flags.steps / 20, flags.steps, 0.1};
  options.optimizer.epsilon = 1e-8F;
  options.eval_every = std::max<std::int64_t>(flags.steps / 6, 1);
  options.save_every = flags.steps;
  options.keep = 1;
  options.device = device;
  const std::uint64_t test_seed = demo.seed + 1'000'003;
  const std::vector<TokenBatch> validation = examples_of(task_of(8, 2, 128), test_seed);
  const TrainingOutcome outcome = run_training(model, source, validation, options, stop, progress);
  if (outcome.end == TrainingOutcome::End::interrupted) return;

  if (demo.place == 0) {
    result.parameters = model.layout().parameters();
    result.checkpoint = outcome.checkpoint;
  }
  Trainer tester(model, {}, options.device);
  const auto test = [&](const auto& tasks, auto& accuracies) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      accuracies[i][demo.place] = tester.evaluate(examples_of(tasks[i], test_seed)).accuracy;
    }
  };
  test(kMoreOften, result.more_often);
  test(kMoreKeys, result.more_keys);
}

// On a CPU as many at a time as there are cores: a model has too little work for several. The first worker's are shown.
void train_all(std::span<const DemoRun> runs, const DemoFlags& flags, const Device& device,
               const std::atomic<bool>& stop) {
  const int at_a_time = device.gpu != nullptr ? 1 : std::max(1, thread_count(0) / thread_count(device.threads));
  const std::size_t workers = std::min(runs.size(), static_cast<std::size_t>(at_a_time));
  if (workers > 1) fmt::print("\n{} models at a time; this shows one of them:\n", workers);
  std::fflush(stdout);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<std::exception_ptr> errors(workers);
  const auto work = [&](std::size_t worker) {
    try {
      for (std::size_t i = next++; i < runs.size() && !stop && !failed; i = next++) {
        Progress progress(worker == 0 ? 1 : -1);
        train_one(runs[i], flags, device, stop, progress);
      }
    } catch (...) {
      errors[worker] = std::current_exception();
      failed = true;
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t worker = 1; worker < workers; ++worker) others.emplace_back(work, worker);
    work(0);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string times_text(std::int64_t times) {
  return times == 1 ? "once" : times == 2 ? "twice" : fmt::format("{} times", times);
}

template <std::size_t N>
void print_table(const std::array<MqarTask, N>& tasks, const std::vector<DemoResult>& results,
                 std::array<std::vector<double>, N> DemoResult::*accuracies) {
  fmt::print("\n  {:<18}", "keys");
  for (const MqarTask& task : tasks) fmt::print("{:>14}", task.pairs);
  fmt::print("\n  {:<18}", "each written");
  for (const MqarTask& task : tasks) fmt::print("{:>14}", times_text(times_written(task)));
  fmt::print("\n");
  for (const DemoResult& result : results) {
    fmt::print("  {:<18}", traits_of(result.rule).title);
    for (const std::vector<double>& seeds : result.*accuracies) fmt::print("{:>14.3f}", mean_of(seeds));
    fmt::print("\n");
    if ((result.*accuracies)[0].size() < 2) continue;
    fmt::print("  {:<18}", "");
    for (const std::vector<double>& seeds : result.*accuracies) {
      const auto [low, high] = std::minmax_element(seeds.begin(), seeds.end());
      fmt::print("{:>14}", fmt::format("{:.3f}-{:.3f}", *low, *high));
    }
    fmt::print("\n");
  }
}

void print_tables(const std::vector<DemoResult>& results, std::int64_t seeds) {
  fmt::print("\nShare of questions answered right, on sequences none of them has seen{}:\n",
             seeds > 1 ? fmt::format(" (mean of {} seeds, lowest and highest)", seeds) : "");
  print_table(kMoreOften, results, &DemoResult::more_often);
  print_table(kMoreKeys, results, &DemoResult::more_keys);
  fmt::print(
      "\n  They were trained on 8 keys written once, twice and 4 times, and on 16 written twice. A head's memory has\n"
      "  room for {} keys that do not disturb each other.\n",
      kHeadSize);
}

template <std::size_t N>
plot::Series series_of(const DemoResult& result, const std::array<std::vector<double>, N>& accuracies) {
  plot::Series bars{.label = std::string(traits_of(result.rule).title), .kind = plot::Kind::bar};
  for (const std::vector<double>& seeds : accuracies) {
    const auto [low, high] = std::minmax_element(seeds.begin(), seeds.end());
    bars.x.push_back(static_cast<double>(bars.x.size()));
    bars.y.push_back(mean_of(seeds));
    bars.low.push_back(*low);
    bars.high.push_back(*high);
  }
  return bars;
}

std::string draw(const std::vector<DemoResult>& results, const std::string& out) {
  plot::Figure figure;
  figure.title = "Keys are written again, the last value counts";
  figure.panels.resize(2);
  plot::Panel& often = figure.panels[0];
  often.title = fmt::format("{} keys", kMoreOften.front().pairs);
  often.x.label = "how often each key is written";
  for (const MqarTask& task : kMoreOften) often.x.categories.push_back(times_text(times_written(task)));
  plot::Panel& keys = figure.panels[1];
  keys.title = fmt::format("Each written {}", times_text(times_written(kMoreKeys.front())));
  keys.x.label = fmt::format("keys (a head has room for {})", kHeadSize);
  for (const MqarTask& task : kMoreKeys) keys.x.categories.push_back(fmt::format("{}", task.pairs));
  for (plot::Panel& panel : figure.panels) panel.y = {.label = "right answers", .low = 0.0, .high = 1.0};
  for (const DemoResult& result : results) {
    often.series.push_back(series_of(result, result.more_often));
    keys.series.push_back(series_of(result, result.more_keys));
  }
  std::string path = (std::filesystem::path(out) / "recall.svg").string();
  plot::write_svg(figure, path);
  return path;
}

void run_demo(DemoFlags& flags) {
  const StopSignal stop;  // before a GPU is opened, whose driver has threads of its own
  const Device device = flags.device.open();
  require(flags.steps >= 20, "steps is {}, expected at least 20", flags.steps);
  require(flags.seeds >= 1, "seeds is {}, expected at least 1", flags.seeds);
  fmt::print(
      "A memory that is written again: a sequence names keys and their values, gives keys new values, then asks;\n"
      "\n    k7 v3  k2 v9  k5 v1  k2 v4  k7 v8 ...  k2 -> ?   (v4, no longer v9)\n\n"
      "only the last value of a key is right. Models of one layer and the same size train on the same {} batches;\n"
      "they differ only in the rule by which their memory S is written.\n\n",
      flags.steps);
  const std::array<Rule, 3> rules = {Rule::q_delta, Rule::gated_delta, Rule::linear};
  const auto seeds = static_cast<std::size_t>(flags.seeds);
  std::vector<DemoResult> results(rules.size());
  std::vector<DemoRun> runs;
  for (std::size_t r = 0; r < rules.size(); ++r) {
    fmt::print("{}:  {}\n", traits_of(rules[r]).title, traits_of(rules[r]).formula);
    results[r].rule = rules[r];
    for (auto& accuracies : results[r].more_often) accuracies.resize(seeds);
    for (auto& accuracies : results[r].more_keys) accuracies.resize(seeds);
    for (std::size_t i = 0; i < seeds; ++i) runs.push_back({&results[r], i, flags.seed + i});
  }
  train_all(runs, flags, device, stop.raised());
  if (stop.raised()) {
    fmt::print("Stopped; what was trained so far is in {}.\n", flags.out);
    throw CLI::RuntimeError(130);  // as a shell reports Ctrl-C
  }
  print_tables(results, flags.seeds);
  const std::string picture = draw(results, flags.out);
  fmt::print(
      "\nPicture:     {}\nModels:      {} parameters or so each, e.g. {}\n"
      "\nWhat to try next:\n"
      "  build/qdelta plot {}/{} {}/{} {}/{} --y loss --terminal\n"
      "  build/qdelta train --text book.txt --out run --steps 500      a text file of your own\n"
      "  build/qdelta generate --model run/checkpoints/step-00000500 --prompt \"The\" --stream\n"
      "  build/qdelta bench op                                         how fast the operator is here\n",
      picture, results.front().parameters, results.front().checkpoint, flags.out, run_name(Rule::q_delta, flags.seed),
      flags.out, run_name(Rule::gated_delta, flags.seed), flags.out, run_name(Rule::linear, flags.seed));
}

}  // namespace

void add_demo(CLI::App& app) {
  auto flags = std::make_shared<DemoFlags>();
  flags->device.threads = 1;  // so little work that threads, beside other programs, wait longer than they work
  CLI::App* command = app.add_subcommand("demo", "Train three small models on a recall task and compare them");
  command->add_option("--out", flags->out, "Folder for runs, models and the picture")->capture_default_str();
  command->add_option("--steps", flags->steps, "Training steps of each model")->capture_default_str();
  command->add_option("--seeds", flags->seeds, "Models of each rule, from different seeds")->capture_default_str();
  command->add_option("--seed", flags->seed, "The first of the seeds; another one, other numbers")
      ->capture_default_str()
      ->check(whole_number());
  flags->device.add_to(*command);
  command->footer(
      "Examples:\n"
      "  qdelta demo\n"
      "  qdelta demo --steps 300 --seeds 1 --out short  a first look: they learn less\n"
      "  qdelta demo --seed 2 --out again --device cuda");
  command->callback([flags] { run_demo(*flags); });
}

}  // namespace qdelta
