// qdelta bench: how fast, and how far from this machine's limits.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/machine_limits.h"
#include "bench/op_bench.h"
#include "cli/bench_common.h"
#include "cli/cli.h"
#include "kernels/kernels.h"

namespace qdelta {
namespace {

void print_header() {
  fmt::print("{:<9} {:>14} {:>7} {:>6} {:>14} {:>16} {:>10} {:>9}\n", "op", "heads x K x V", "tokens", "chunk",
             "us per token", "rate", "of limit", "error");
}

void print_row(const bench::OpBenchRow& row) {
  const bool step = row.op == "step";
  fmt::print("{:<9} {:>14} {:>7} {:>6} {:>14.3f} {:>9.1f} {} {:>9.1f}% {:>9}\n", row.op,
             fmt::format("{}x{}x{}", row.heads, row.K, row.V), row.tokens, step ? "-" : std::to_string(row.chunk),
             row.us_per_token, row.rate / 1e9, step ? "GB/s  " : "GFLOP/s", 100 * row.rate / row.limit,
             row.error > 0 ? fmt::format("{:.0e}", row.error) : "-");
  std::fflush(stdout);
}

void write_json(const std::string& path, const bench::OpBenchOptions& options, const bench::OpBenchReport& report) {
  nlohmann::ordered_json json{{"version", QDELTA_VERSION},
                              {"rule", traits_of(options.rule).name},
                              {"dtype", name_of(options.dtype)},
                              {"threads", report.threads},
                              {"matrix_flop_per_s", report.matrix_rate}};
  for (const bench::OpBenchRow& row : report.rows) {
    json["rows"].push_back({{"op", row.op},
                            {"heads", row.heads},
                            {"K", row.K},
                            {"V", row.V},
                            {"tokens", row.tokens},
                            {"chunk", row.chunk},
                            {"us_per_token", row.us_per_token},
                            {row.op == "step" ? "bytes_per_s" : "flop_per_s", row.rate},
                            {"limit", row.limit},
                            {"error", row.error}});
  }
  write_report(path, json);
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* group = app.add_subcommand("bench", "Measure speed beside this machine's own limits");
  group->require_subcommand(1);
  CLI::App* op = group->add_subcommand("op", "The operator: step, forward and backward over shapes and lengths");
  op->footer(
      "One token is a step in place on the state; its limit is updating as many bytes in place. Longer sequences are "
      "counted\nin the FLOP of the chunk form (forward 6KV + 4C(K+V), backward 14KV + 10CV + 12CK per token and head); "
      "their limit is\noneDNN's float32 matrix product on the same threads. Times are medians.\n\n"
      "Example:  qdelta bench op --shapes 32x128x128 --tokens 1,512 --json op.json");

  struct Flags {
    bench::OpBenchOptions options;
    std::string rule = "q_delta", dtype = "f32", json;
  };
  auto flags = std::make_shared<Flags>();
  op->add_option("--shapes", flags->options.shapes, "HEADSxKxV, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  op->add_option("--tokens", flags->options.tokens, "Lengths, comma-separated")->delimiter(',')->capture_default_str();
  op->add_option("--rule", flags->rule, "Which rule")->capture_default_str();
  op->add_option("--dtype", flags->dtype, "Of q, k, v and o: f32 or bf16")->capture_default_str();
  op->add_option("--chunk", flags->options.chunk, "16, 32, 64 or 128; 0: the default")->capture_default_str();
  op->add_option("--threads", flags->options.threads, "0: all cores")->capture_default_str();
  op->add_option("--json", flags->json, "Also write the results to this file");
  op->callback([flags] {
    const auto rule = rule_from_name(flags->rule);
    require(rule.has_value(), "'{}' is no rule; see 'qdelta info'", flags->rule);
    require(flags->dtype == "f32" || flags->dtype == "bf16", "--dtype is '{}', expected f32 or bf16", flags->dtype);
    flags->options.rule = *rule;
    flags->options.dtype = flags->dtype == "bf16" ? DType::bf16 : DType::f32;
    fmt::print("Measuring this machine's matrix rate, then the operator ({}, {}) ...\n", flags->rule, flags->dtype);
    std::fflush(stdout);
    bool first = true;
    const bench::OpBenchReport report = bench::run_op_bench(flags->options, [&](const bench::OpBenchRow& row) {
      if (first) print_header();
      first = false;
      print_row(row);
    });
    fmt::print("\nThreads: {}. Limit of the products: {:.1f} GFLOP/s (oneDNN float32).\n", report.threads,
               report.matrix_rate / 1e9);
    if (!flags->json.empty()) write_json(flags->json, flags->options, report);
  });
  add_bench_train(*group);
  add_bench_generate(*group);
}

}  // namespace qdelta
