// qdelta bench: how fast, and how far from this machine's limits.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/machine_limits.h"
#include "bench/op_bench.h"
#include "cli/bench_common.h"
#include "cli/cli.h"
#include "cli/device_flags.h"

namespace qdelta {
namespace {

void print_header() {
  fmt::print("{:<9} {:>14} {:>7} {:>6} {:>12} {:>14} {:>17} {:>10} {:>9}\n", "op", "heads x K x V", "tokens", "chunk",
             "us", "us per token", "rate", "of limit", "error");
}

void print_row(const bench::OpBenchRow& row) {
  const bool step = row.op == "step";
  fmt::print("{:<9} {:>14} {:>7} {:>6} {:>12.1f} {:>14.3f} {:>9.1f} {} {:>9.1f}% {:>9}\n", row.op,
             fmt::format("{}x{}x{}", row.heads, row.K, row.V), row.tokens, step ? "-" : std::to_string(row.chunk),
             row.seconds * 1e6, row.us_per_token, row.rate / 1e9, step ? "GB/s  " : "GFLOP/s",
             100 * row.rate / row.limit, row.error > 0 ? fmt::format("{:.0e}", row.error) : "-");
  std::fflush(stdout);
}

void write_json(const std::string& path, const bench::OpBenchOptions& options, const bench::OpBenchReport& report) {
  nlohmann::ordered_json json{{"version", QDELTA_VERSION},
                              {"rule", traits_of(options.rule).name},
                              {"dtype", name_of(options.dtype)},
                              {"device", options.device.gpu == nullptr ? "cpu" : "cuda"},
                              {"threads", report.threads},
                              {"batch", options.batch},
                              {"matrix_flop_per_s", report.matrix_rate}};
  for (const bench::OpBenchRow& row : report.rows) {
    json["rows"].push_back({{"op", row.op},
                            {"heads", row.heads},
                            {"K", row.K},
                            {"V", row.V},
                            {"tokens", row.tokens},
                            {"chunk", row.chunk},
                            {"seconds", row.seconds},
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
  group->footer(
      "Examples:\n"
      "  qdelta bench op                                          the operator by itself\n"
      "  qdelta bench train --width 512 --layers 8 --batch 1,4    training steps\n"
      "  qdelta bench generate --config configs/340M.json         reading a prompt and decoding\n"
      "  qdelta bench serve --config configs/340M.json            the same behind HTTP, with many clients\n"
      "\n"
      "qdelta bench SUBCOMMAND --help says more about each.");
  CLI::App* op = group->add_subcommand("op", "The operator: step, forward and backward over shapes and lengths");
  op->footer(
      "One token is a step in place on the state; its limit is updating as many bytes in place (on a GPU: copying "
      "them). "
      "Longer\nsequences are counted in the FLOP of the chunk form (forward 6KV + 4C(K+V), backward 14KV + 10CV + 12CK "
      "per token and head);\ntheir limit is the device's own matrix product: oneDNN in float32 on the same threads, "
      "cuBLASLt in the dtype. 'training' is a\nforward that keeps the states of its chunks, and the backward. Times "
      "are medians; on a GPU they are its own, from a graph\nof many calls.\n\n"
      "Examples:\n"
      "  qdelta bench op --shapes 32x128x128 --tokens 1,512 --json op.json\n"
      "  qdelta bench op --device cuda --batch 16 --shapes 6x128x256 --tokens 1,2048");

  struct Flags {
    bench::OpBenchOptions options;
    std::string rule = "q_delta", device = "cpu", dtype, json;
  };
  auto flags = std::make_shared<Flags>();
  op->add_option("--shapes", flags->options.shapes, "HEADSxKxV, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  op->add_option("--tokens", flags->options.tokens, "Lengths, comma-separated")->delimiter(',')->capture_default_str();
  op->add_option("--batch", flags->options.batch, "Sequences at once")->capture_default_str();
  op->add_option("--rule", flags->rule, "Which rule")->capture_default_str();
  op->add_option("--device", flags->device, "cpu, cuda, or cuda:1 for the second GPU")->capture_default_str();
  op->add_option("--dtype", flags->dtype, "Of q, k, v and o: f32 or bf16. Default: f32 on the CPU, bf16 on a GPU");
  op->add_option("--chunk", flags->options.chunk, "16, 32, 64 or 128; 0: the default")->capture_default_str();
  op->add_option("--threads", flags->options.device.threads, "Of the CPU; 0: all cores")->capture_default_str();
  op->add_option("--json", flags->json, "Also write the results to this file");
  op->callback([flags] {
    const auto rule = rule_from_name(flags->rule);
    require(rule.has_value(), "'{}' is no rule; see 'qdelta info'", flags->rule);
    const std::shared_ptr<const cuda::Context> gpu = open_gpu_named(flags->device);
    if (flags->dtype.empty()) flags->dtype = gpu == nullptr ? "f32" : "bf16";
    require(flags->dtype == "f32" || flags->dtype == "bf16", "--dtype is '{}', expected f32 or bf16", flags->dtype);
    flags->options.rule = *rule;
    flags->options.dtype = flags->dtype == "bf16" ? DType::bf16 : DType::f32;
    flags->options.device.gpu = gpu.get();
    if (gpu != nullptr) flags->options.device.activations = flags->options.dtype;
    fmt::print("Measuring the matrix rate of the device, then the operator ({}, {}) ...\n", flags->rule, flags->dtype);
    std::fflush(stdout);
    bool first = true;
    const bench::OpBenchReport report = bench::run_op_bench(flags->options, [&](const bench::OpBenchRow& row) {
      if (first) print_header();
      first = false;
      print_row(row);
    });
    fmt::print("\nThreads: {}. Limit of the products: {:.1f} GFLOP/s ({}).\n", report.threads, report.matrix_rate / 1e9,
               gpu == nullptr ? "oneDNN, f32" : "cuBLASLt, " + flags->dtype);
    if (!flags->json.empty()) write_json(flags->json, flags->options, report);
  });
  add_bench_train(*group);
  add_bench_generate(*group);
  add_bench_serve(*group);
}

}  // namespace qdelta
