// `qdelta info`: what this build and this machine can do; with a model, how large it is (model_info.h).
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/help_format.h"
#include "cli/model_folder.h"
#include "cli/model_info.h"
#include "core/cpu_info.h"
#include "core/threads.h"
#include "kernels/device.h"
#include "rule/rule.h"

namespace qdelta {
namespace {

struct KnownDevice {
  std::string name;
  bool available;
  std::string note;
};

std::vector<KnownDevice> known_devices() {
  const Gpus gpus = find_gpus();
  const bool any = !gpus.names.empty();
  return {{"cpu", true, ""}, {"cuda", any, any ? fmt::format("{}", fmt::join(gpus.names, ", ")) : gpus.why_none}};
}

void line(const char* label, const std::string& text) { fmt::print("{:<16}{}\n", label, text); }

std::string feature_text(const std::vector<CpuFeature>& features) {
  std::vector<std::string> words;
  for (const CpuFeature& feature : features) {
    const char* state = feature.usable ? "yes" : feature.in_cpu ? "in the CPU, but not enabled by the system" : "no";
    words.push_back(fmt::format("{} {}", feature.title, state));
  }
  return words.empty() ? "not listed on this architecture" : fmt::format("{}", fmt::join(words, ", "));
}

std::string cache_text(const std::vector<CpuCache>& caches) {
  std::vector<std::string> words;
  for (const CpuCache& cache : caches) {
    const char* kind = cache.type == "data" ? "d" : cache.type == "instruction" ? "i" : "";
    words.push_back(fmt::format("L{}{} {}", cache.level, kind, size_text(cache.bytes)));
  }
  return words.empty() ? "unknown" : fmt::format("{}", fmt::join(words, ", "));
}

void print_for_people() {
  const BuildInfo build = build_info();
  const CpuInfo cpu = cpu_info();
  fmt::print("qdelta {}\n\n", QDELTA_VERSION);
  line("Build", fmt::format("{}, C++{}, {}, {}", build.compiler, build.cpp_standard, build.type, build.architecture));
  line("Sanitizers", build.sanitizers.empty() ? "none" : fmt::format("{}", fmt::join(build.sanitizers, ", ")));
  line("CPU", cpu.model.empty() ? "unknown" : cpu.model);
  line("Cores", fmt::format("{} with {} hardware threads, {} of them ours", cpu.cores, cpu.hardware_threads,
                            cpu.allowed_threads));
  line("Threads used", fmt::format("{} unless told otherwise (--threads, OMP_NUM_THREADS)", thread_count(0)));
  line("Caches", cache_text(cpu.caches));
  line("Memory", fmt::format("{}, {} available", size_text(cpu.memory_bytes), size_text(cpu.memory_available_bytes)));
  line("Instructions", feature_text(cpu.features));
  line("Kernels run on",
       fmt::format("Highway target {} (compiled for {})", simd_target(), fmt::join(simd_targets_compiled(), ", ")));
  std::vector<std::string> devices;
  for (const KnownDevice& device : known_devices()) {
    devices.push_back(device.note.empty() ? device.name : fmt::format("{}: {}", device.name, device.note));
  }
  line("Devices", fmt::format("{}", fmt::join(devices, "; ")));
  fmt::print("\nRules\n");
  for (const RuleTraits& rule : kRuleTraits) {
    fmt::print("  {:<14}{:<18}{}\n", rule.name, rule.title, rule.formula);
  }
  fmt::print("  {:<14}{:<18}{}\n", "mamba", "Mamba",
             "h = exp(dt A) h + dt B x for each channel: a mixer of models only");
}

nlohmann::ordered_json for_machines() {
  using Json = nlohmann::ordered_json;
  const BuildInfo build = build_info();
  const CpuInfo cpu = cpu_info();
  Json features = Json::object();
  for (const CpuFeature& feature : cpu.features) {
    features[std::string(feature.name)] = {{"in_cpu", feature.in_cpu}, {"usable", feature.usable}};
  }
  Json caches = Json::array();
  for (const CpuCache& cache : cpu.caches) {
    caches.push_back({{"level", cache.level},
                      {"type", cache.type},
                      {"bytes", cache.bytes},
                      {"shared_by_cpus", cache.shared_by_cpus}});
  }
  Json devices = Json::array();
  for (const KnownDevice& device : known_devices()) {
    devices.push_back({{"name", device.name}, {"available", device.available}, {"note", device.note}});
  }
  Json rules = Json::array();
  for (const RuleTraits& rule : kRuleTraits) {
    rules.push_back({{"name", rule.name},
                     {"title", rule.title},
                     {"formula", rule.formula},
                     {"reads_beta", rule.reads_beta},
                     {"reads_lambda", rule.reads_lambda}});
  }
  return {{"version", QDELTA_VERSION},
          {"build",
           {{"compiler", build.compiler},
            {"cpp_standard", build.cpp_standard},
            {"type", build.type},
            {"architecture", build.architecture},
            {"sanitizers", build.sanitizers}}},
          {"cpu",
           {{"model", cpu.model},
            {"cores", cpu.cores},
            {"hardware_threads", cpu.hardware_threads},
            {"allowed_threads", cpu.allowed_threads},
            {"features", features},
            {"caches", caches}}},
          {"memory", {{"bytes", cpu.memory_bytes}, {"available_bytes", cpu.memory_available_bytes}}},
          {"threads", thread_count(0)},
          {"simd", {{"target", simd_target()}, {"compiled", simd_targets_compiled()}}},
          {"devices", devices},
          {"rules", rules}};
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* info = app.add_subcommand("info", "What this build and this machine can do; with --model, a model's size");
  info->footer(
      "With --model: rule, widths, parameters, the state of a sequence, and the memory that training on a batch "
      "takes.\n"
      "Only config.json is read.\n\n"
      "Examples:\n"
      "  qdelta info --json | jq .simd.target\n"
      "  qdelta info --model configs/340M.json --rows 8 --seq-len 2048\n"
      "  qdelta info --model run");
  auto options = std::make_shared<ModelInfoOptions>();
  info->add_flag("--json", options->json, "Print JSON");
  CLI::Option* model = info->add_option("--model", options->model, "A model folder, a run, or a config.json");
  CLI::Option* rows = info->add_option("--rows", options->rows, "Sequences of a training batch");
  CLI::Option* length = info->add_option("--seq-len", options->seq_len, "Tokens of each");
  for (CLI::Option* option : {rows, length}) option->needs(model)->capture_default_str();
  former_name(*info, "--batch", options->rows, rows)->needs(model);
  former_name(*info, "--tokens", options->seq_len, length)->needs(model);
  info->callback([options, model] {
    if (model->count() > 0) {
      options->model = model_folder(options->model);
      print_model_info(*options);
    } else if (options->json) {
      // A CPU may have any bytes in its name; what is not UTF-8 is replaced rather than refused.
      const auto replace = nlohmann::ordered_json::error_handler_t::replace;
      fmt::print("{}\n", for_machines().dump(2, ' ', false, replace));
    } else {
      print_for_people();
    }
  });
}

}  // namespace qdelta
