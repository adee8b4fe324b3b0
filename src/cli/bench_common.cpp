#include "cli/bench_common.h"

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

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
  add("--config", flags.file, "config.json (or its folder) to start from, such as configs/340M.json");
  add("--rule", flags.rule, "The token mixer: a rule, or mamba, or a pattern of several; without a config q_delta");
  add("--width", flags.hidden_size, fmt::format("Width of the model; without a config {}", kWidth));
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

void write_report(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2) + "\n";
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  fmt::print("Wrote {}\n", path);
}

}  // namespace qdelta
