#include "cli/bench_common.h"

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "bench/baseline.h"
#include "io/atomic_file.h"
#include "model/mixer_types.h"

namespace qdelta {
namespace {

// The model where no file is given.
constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kLayers = 8;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kVocabulary = 4096;

}  // namespace

void add_bench_model(CLI::App& command, ModelFlags& flags) {
  const auto add = [&](const char* name, auto& value, const std::string& help) {
    command.add_option(name, value, help)->group("Model");
  };
  add("--model-config", flags.file, "config.json (or its folder) to start from, such as configs/340M.json");
  add("--rule", flags.rule, "The token mixer: a rule, or mamba, or a pattern of several; without a config q_delta");
  add("--hidden-size", flags.hidden_size, fmt::format("Width of the model; without a config {}", kWidth));
  add("--layers", flags.layers, fmt::format("Number of blocks; without a config {}", kLayers));
  add("--heads", flags.heads, fmt::format("Heads; without a config {}", kHeads));
  add("--head-dim", flags.head_dim,
      fmt::format("Width of a key head, half that of a value head; without a config {}", kHeadDim));
  add("--vocab-size", flags.vocab_size, fmt::format("Tokens in the vocabulary; without a config {}", kVocabulary));
}

ModelConfig bench_model(ModelFlags flags) {
  if (flags.file.empty()) {
    const auto fill = [](std::optional<std::int64_t>& flag, std::int64_t value) { flag = flag.value_or(value); };
    fill(flags.hidden_size, kWidth);
    fill(flags.layers, kLayers);
    fill(flags.heads, kHeads);
    fill(flags.head_dim, kHeadDim);
  }
  return flags.config(kVocabulary);
}

std::string describe_model(const ModelConfig& config, std::int64_t parameters) {
  std::vector<std::string> mixers;
  for (const auto& mixer : make_distinct_mixers(config)) {
    const std::string summary = mixer->description().summary;
    if (std::find(mixers.begin(), mixers.end(), summary) == mixers.end()) mixers.push_back(summary);
  }
  return fmt::format("{}, {} layers of width {}, {}, vocabulary of {}: {} parameters", config.mixer_name(),
                     config.num_hidden_layers, config.hidden_size, fmt::join(mixers, ", "), config.vocab_size,
                     parameters);
}

nlohmann::ordered_json model_as_json(const ModelConfig& config, std::int64_t parameters) {
  nlohmann::ordered_json json{
      {"rule", config.mixer_name()}, {"layers", config.num_hidden_layers}, {"width", config.hidden_size}};
  for (const auto& mixer : make_distinct_mixers(config)) {
    for (const auto& [name, size] : mixer->description().summary_sizes) json[std::string(name)] = size;
  }
  json["vocab_size"] = config.vocab_size;
  json["parameters"] = parameters;
  return json;
}

void ReportFlags::add_to(CLI::App& command) {
  command.add_option("--json", json_, "Also write the results to this file");
  command.add_option("--baseline", baseline_path_,
                     "Compare with what an earlier run wrote with --json; exit status 1 where something is slower");
  command
      .add_option("--tolerance", tolerance_,
                  "With --baseline: percent that something may take longer than then and not be slower")
      ->capture_default_str();
}

void ReportFlags::prepare() {
  require(tolerance_ >= 0, "--tolerance is {}, expected a number of percent, 0 or more", tolerance_);
  if (!baseline_path_.empty()) {
    baseline_ = std::make_shared<const nlohmann::json>(bench::read_baseline(baseline_path_));
  }
}

void ReportFlags::finish(const nlohmann::ordered_json& report) const {
  if (!json_.empty()) {
    write_whole(json_, report.dump(2) + "\n");
    fmt::print("Wrote {}\n", json_);
  }
  if (baseline_path_.empty()) return;
  const bench::BaselineComparison comparison =
      bench::compare_with_baseline(nlohmann::json(report), *baseline_, baseline_path_);
  fmt::print("\nBeside {}:\n", baseline_path_);
  for (const std::string& difference : comparison.differences) fmt::print("  {}\n", difference);
  for (const bench::BaselineRow& row : comparison.rows) {
    fmt::print("  {:>6.3f} times as long: {}\n", row.ratio(), row.name);
  }
  for (const std::string& name : comparison.missing) fmt::print("  not in the baseline: {}\n", name);
  for (const std::string& name : comparison.not_measured) fmt::print("  not measured now:    {}\n", name);
  const std::vector<bench::BaselineRow> slower = bench::slower_rows(comparison, tolerance_);
  if (slower.empty()) return fmt::print("Nothing is more than {} % slower.\n", tolerance_);
  fmt::print("{} of {} are more than {} % slower.\n", slower.size(), comparison.rows.size(), tolerance_);
  std::fflush(stdout);
  throw CLI::RuntimeError(1);
}

std::string share_text(double share, const std::string& doubt) {
  constexpr double kMost = 10;  // what is far above the limit is no figure at all
  return fmt::format("{}{}", share > kMost ? "-" : fmt::format("{:.1f}%", 100 * share), doubt.empty() ? " " : "?");
}

void Doubts::add(const std::string& row, const std::string& doubt) {
  if (!doubt.empty()) notes_.push_back(fmt::format("  {}: {}", row, doubt));
}

void Doubts::print() const {
  if (notes_.empty()) return;
  fmt::print("? cannot be relied upon; is something else running on this machine?\n{}\n", fmt::join(notes_, "\n"));
}

nlohmann::ordered_json report_of(const char* benchmark, const Device& device) {
  return {{"version", QDELTA_VERSION},
          {"benchmark", benchmark},
          {"device", device.gpu == nullptr ? "cpu" : "cuda"},
          {"dtype", name_of(device.activations)}};
}

}  // namespace qdelta
