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
  std::string json;
};

// How many times faster a token is read than decoded.
double prefill_ratio(const bench::GenerateBenchReport& report, const bench::GenerateBenchRow& row) {
  return report.prefill_tokens_per_s / row.tokens_per_s;
}

void print_header(const bench::GenerateBenchOptions& options, const bench::GenerateBenchReport& report) {
  fmt::print("prefill of {} tokens: {:.1f} tokens/s\n\n{:>6} {:>12} {:>10} {:>13} {:>10} {:>13} {:>18}\n",
             options.prompt, report.prefill_tokens_per_s, "batch", "ms per step", "tokens/s", "weights read",
             "of limit", "limit", "prefill / decode");
}

void print_row(const bench::GenerateBenchReport& report, const bench::GenerateBenchRow& row) {
  fmt::print("{:>6} {:>12.3f} {:>10.1f} {:>8.1f} GB/s {:>9.1f}% {:>8.1f} GB/s {:>18.1f}\n", row.batch,
             row.seconds * 1e3, row.tokens_per_s, row.rate / 1e9, 100 * row.rate / row.limit, row.limit / 1e9,
             prefill_ratio(report, row));
  std::fflush(stdout);
}

nlohmann::ordered_json as_json(const bench::GenerateBenchOptions& options, const bench::GenerateBenchReport& report) {
  nlohmann::ordered_json json{{"version", QDELTA_VERSION},
                              {"model", model_as_json(options.model, report.parameters)},
                              {"threads", report.threads},
                              {"weight_bytes", report.weight_bytes},
                              {"state_bytes", report.state_bytes},
                              {"prefill", {{"tokens", options.prompt}, {"tokens_per_s", report.prefill_tokens_per_s}}}};
  for (const bench::GenerateBenchRow& row : report.rows) {
    json["rows"].push_back({{"batch", row.batch},
                            {"seconds_per_step", row.seconds},
                            {"tokens_per_s", row.tokens_per_s},
                            {"weight_bytes_per_s", row.rate},
                            {"limit", row.limit},
                            {"prefill_ratio", prefill_ratio(report, row)}});
  }
  return json;
}

void run(GenerateBenchFlags& flags) {
  flags.options.model = bench_model(flags.model);
  flags.options.device = flags.device.open();
  fmt::print("{}\n", describe_model(flags.options.model, ParameterLayout(flags.options.model).parameters()));
  std::fflush(stdout);
  bool first = true;
  const bench::GenerateBenchReport report = bench::run_generate_bench(
      flags.options, [&](const bench::GenerateBenchReport& so_far, const bench::GenerateBenchRow& row) {
        if (first) print_header(flags.options, so_far);
        first = false;
        print_row(so_far, row);
      });
  fmt::print("\nThreads: {}. A step reads {:.1f} MB of weights; the limit is reading as many bytes in the same run.\n",
             report.threads, static_cast<double>(report.weight_bytes) / 1e6);
  if (!flags.json.empty()) write_report(flags.json, as_json(flags.options, report));
}

}  // namespace

void add_bench_generate(CLI::App& group) {
  CLI::App* command = group.add_subcommand("generate", "Reading a prompt and decoding with a random model");
  auto flags = std::make_shared<GenerateBenchFlags>();
  bench::GenerateBenchOptions& options = flags->options;
  command->add_option("--batch", options.batches, "Sequences that decode together, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--prompt", options.prompt, "Tokens of the prompt")->capture_default_str();
  command->add_option("--tokens", options.tokens, "Tokens to decode in one timing")->capture_default_str();
  flags->device.add_to(*command);
  command->add_option("--json", flags->json, "Also write the results to this file");
  add_bench_model(*command, flags->model);
  command->footer(
      "Decoding reads every weight once a step, whatever the batch (an embedding table of its own is only looked up "
      "and does\nnot count). Its limit is reading a buffer of as many bytes on the same threads, the larger of a "
      "measurement before and\none after. Tokens are chosen greedily; times are medians. A model that fits the "
      "caches is limited by other things.\n\n"
      "Example:  qdelta bench generate --config configs/340M.json --batch 1,4,16 --prompt 512 --json generate.json");
  command->callback([flags] { run(*flags); });
}

}  // namespace qdelta
