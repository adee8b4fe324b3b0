// qdelta bench generate: tokens per second of reading a prompt and of decoding.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>

#include "bench/generate_bench.h"
#include "cli/bench_common.h"
#include "cli/device_flags.h"
#include "model/parameters.h"

namespace qdelta {
namespace {

struct GenerateBenchFlags {
  ModelFlags model;
  DeviceFlags device;
  bench::GenerateBenchOptions options;
  ReportFlags report;
};

// How many times faster a token is read than decoded.
double prefill_ratio(const bench::GenerateBenchReport& report, const bench::GenerateBenchRow& row) {
  return report.prompts.front().tokens_per_s / row.tokens_per_s;
}

void print_prompt_header() {
  fmt::print("\n{:>8} {:>12} {:>10} {:>17} {:>10}  {:>16}\n", "prompt", "ms", "tokens/s", "rate", "of limit", "limit");
}

void print_prompt(const bench::PromptBenchRow& row) {
  fmt::print("{:>8} {:>12.1f} {:>10.1f} {:>9.1f} GFLOP/s {:>11} {:>8.1f} GFLOP/s\n", row.tokens,
             row.timing.median * 1e3, row.tokens_per_s, row.rate / 1e9, share_text(row.rate / row.limit, row.doubt),
             row.limit / 1e9);
  std::fflush(stdout);
}

void print_decode_header() {
  fmt::print("\n{:>8} {:>12} {:>10} {:>17} {:>10}  {:>16} {:>18}\n", "batch", "ms per step", "tokens/s", "weights read",
             "of limit", "limit", "prefill / decode");
}

void print_row(const bench::GenerateBenchReport& report, const bench::GenerateBenchRow& row) {
  fmt::print("{:>8} {:>12.3f} {:>10.1f} {:>12.1f} GB/s {:>11} {:>11.1f} GB/s {:>18.1f}\n", row.batch,
             row.timing.median * 1e3, row.tokens_per_s, row.rate / 1e9, share_text(row.rate / row.limit, row.doubt),
             row.limit / 1e9, prefill_ratio(report, row));
  std::fflush(stdout);
}

nlohmann::ordered_json as_json(const bench::GenerateBenchOptions& options, const bench::GenerateBenchReport& report) {
  nlohmann::ordered_json json = report_of("generate", options.device);
  json["model"] = model_as_json(options.model, report.parameters);
  json["threads"] = report.threads;
  json["recent_tokens"] = options.recent_tokens;
  json["weight_bytes"] = report.weight_bytes;
  json["state_bytes"] = report.state_bytes;
  for (const bench::PromptBenchRow& row : report.prompts) {
    json["prompts"].push_back({{"prompt", row.tokens},
                               {"seconds", row.timing.median},
                               {"best_seconds", row.timing.best},
                               {"tokens_per_s", row.tokens_per_s},
                               {"flop_per_s", row.rate},
                               {"limit", row.limit},
                               {"doubt", row.doubt}});
  }
  for (const bench::GenerateBenchRow& row : report.rows) {
    json["rows"].push_back({{"batch", row.batch},
                            {"seconds_per_step", row.timing.median},
                            {"best_seconds", row.timing.best},
                            {"tokens_per_s", row.tokens_per_s},
                            {"weight_bytes_per_s", row.rate},
                            {"limit", row.limit},
                            {"doubt", row.doubt},
                            {"prefill_ratio", prefill_ratio(report, row)}});
  }
  return json;
}

void run(GenerateBenchFlags& flags) {
  flags.report.prepare();
  flags.options.model = bench_model(flags.model);
  flags.options.device = flags.device.open();
  fmt::print("{}\n", describe_model(flags.options.model, ParameterLayout(flags.options.model).parameters()));
  std::fflush(stdout);
  Doubts doubts;
  print_prompt_header();
  bench::GenerateBenchProgress progress;
  progress.prompt = [&](const bench::PromptBenchRow& row) {
    print_prompt(row);
    doubts.add(fmt::format("prompt of {}", row.tokens), row.doubt);
  };
  progress.decoding = [&](const bench::GenerateBenchReport& so_far, const bench::GenerateBenchRow& row) {
    if (so_far.rows.size() == 1) print_decode_header();
    print_row(so_far, row);
    doubts.add(fmt::format("batch {}", row.batch), row.doubt);
  };
  const bench::GenerateBenchReport report = bench::run_generate_bench(flags.options, progress);
  fmt::print(
      "\nThreads: {}. A step reads {:.1f} MB of weights; its limit is reading as many bytes in the same run. That of a "
      "prompt is\nthe device's own matrix product. prefill / decode: how many tokens of the first prompt are read "
      "while "
      "one is decoded.\n",
      report.threads, static_cast<double>(report.weight_bytes) / 1e6);
  doubts.print();
  flags.report.finish(as_json(flags.options, report));
}

}  // namespace

void add_bench_generate(CLI::App& group) {
  CLI::App* command = group.add_subcommand("generate", "Reading a prompt and decoding with a random model");
  auto flags = std::make_shared<GenerateBenchFlags>();
  bench::GenerateBenchOptions& options = flags->options;
  command->add_option("--batch", options.batches, "Sequences that decode together, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--prompt", options.prompts, "Tokens of a prompt, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--tokens", options.tokens, "Tokens to decode in one timing")->capture_default_str();
  command->add_flag("--recent-tokens", options.recent_tokens,
                    "On a GPU: steps keep the last 16 tokens beside the states, which they then write every 16 tokens "
                    "only");
  flags->device.add_to(*command);
  flags->report.add_to(*command);
  add_bench_model(*command, flags->model);
  command->footer(
      "Decoding reads every weight once a step, whatever the batch (an embedding table of its own is only looked up "
      "and does\nnot count). Its limit is reading a buffer of as many bytes on the same threads, the larger of a "
      "measurement before and\none after. Tokens are chosen greedily; times are medians. A model that fits the "
      "caches is limited by other things.\n\n"
      "Examples:\n"
      "  qdelta bench generate --model-config configs/340M.json --batch 1,4,16 --json generate.json\n"
      "  qdelta bench generate --model-config configs/340M.json --device cuda --prompt 512,32768,1048576 --batch "
      "1,128");
  command->callback([flags] { run(*flags); });
}

}  // namespace qdelta
