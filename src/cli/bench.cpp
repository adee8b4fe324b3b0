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

void print_op_header() {
  fmt::print("{:<9} {:>14} {:>7} {:>6} {:>12} {:>14} {:>17} {:>11} {:>11} {:>9}  {:>6}\n", "op", "heads x K x V",
             "tokens", "chunk", "us", "us per token", "rate", "bytes: us", "FLOP: us", "of limit", "error");
}

std::string shape_text(const bench::OpBenchRow& row) { return fmt::format("{}x{}x{}", row.heads, row.K, row.V); }

void print_row(const bench::OpBenchRow& row) {
  const bool step = row.op == "step";
  fmt::print("{:<9} {:>14} {:>7} {:>6} {:>12.1f} {:>14.3f} {:>9.1f} {} {:>11.1f} {:>11.1f} {:>10} {:>6}\n", row.op,
             shape_text(row), row.tokens, step ? "-" : std::to_string(row.chunk), row.timing.median * 1e6,
             row.us_per_token, row.rate / 1e9, step ? "GB/s  " : "GFLOP/s", row.bytes_floor * 1e6, row.flop_floor * 1e6,
             share_text(row.of_limit(), row.doubt), row.error > 0 ? fmt::format("{:.0e}", row.error) : "-");
  std::fflush(stdout);
}

nlohmann::ordered_json as_json(const bench::OpBenchOptions& options, const bench::OpBenchReport& report) {
  nlohmann::ordered_json json = report_of("op", options.device);
  json["dtype"] = name_of(options.dtype);
  json["rule"] = traits_of(options.rule).name;
  json["threads"] = report.threads;
  json["batch"] = options.batch;
  json["matrix_flop_per_s"] = report.matrix_rate;
  for (const bench::OpBenchRow& row : report.rows) {
    json["rows"].push_back({{"op", row.op},
                            {"heads", row.heads},
                            {"K", row.K},
                            {"V", row.V},
                            {"tokens", row.tokens},
                            {"chunk", row.chunk},
                            {"seconds", row.timing.median},
                            {"best_seconds", row.timing.best},
                            {"us_per_token", row.us_per_token},
                            {row.op == "step" ? "bytes_per_s" : "flop_per_s", row.rate},
                            {"memory_bytes_per_s", row.memory_rate},
                            {"bytes_floor_seconds", row.bytes_floor},
                            {"flop_floor_seconds", row.flop_floor},
                            {"of_limit", row.of_limit()},
                            {"doubt", row.doubt},
                            {"error", row.error}});
  }
  return json;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* group = app.add_subcommand("bench", "Measure speed beside this machine's own limits");
  group->require_subcommand(1);
  group->footer(
      "Examples:\n"
      "  qdelta bench op                                               the operator by itself\n"
      "  qdelta bench train --hidden-size 512 --layers 8 --rows 1,4    training steps\n"
      "  qdelta bench generate --model-config configs/340M.json        reading a prompt and decoding\n"
      "  qdelta bench serve --model-config configs/340M.json           the same behind HTTP, with many clients\n"
      "  qdelta bench op --json before.json                            and after a change:\n"
      "  qdelta bench op --baseline before.json --tolerance 5          fails where something is 5 % slower\n"
      "\n"
      "qdelta bench SUBCOMMAND --help says more about each.");
  CLI::App* op = group->add_subcommand("op", "The operator: step, forward and backward over shapes and lengths");
  op->footer(
      "'bytes' and 'FLOP' are what the shape takes at least: every operand read and every result written once at the "
      "rate of\nupdating memory in place (on a GPU: copying), and the FLOP of the chunk form (forward 6KV + 4C(K+V), "
      "backward 14KV + 10CV +\n12CK per token and head; a step 7KV) at the rate of the device's own matrix product: "
      "oneDNN in float32 on the same threads,\ncuBLASLt in the dtype. Both rates are measured in the same run. 'of "
      "limit' is the larger of the two over the time. One token\nis a step in place on the state; 'training' is a "
      "forward that keeps the states of its chunks, and the backward. Times are\nmedians; on a GPU they are its own, "
      "from a graph of many calls. Where half of the timings are far from the best, or a figure\nis above its limit, "
      "it has a question mark: something else had the cores.\n\n"
      "Examples:\n"
      "  qdelta bench op --shapes 32x128x128 --tokens 1,512 --json op.json\n"
      "  qdelta bench op --device cuda --batch 16 --shapes 6x128x256 --tokens 1,2048");

  struct Flags {
    bench::OpBenchOptions options;
    std::string rule = "q_delta", device = "cpu", dtype;
    ReportFlags report;
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
  flags->report.add_to(*op);
  op->callback([flags] {
    flags->report.prepare();
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
    Doubts doubts;
    const bench::OpBenchReport report = bench::run_op_bench(flags->options, [&](const bench::OpBenchRow& row) {
      if (first) print_op_header();
      first = false;
      print_row(row);
      doubts.add(fmt::format("{} {}, {} tokens", row.op, shape_text(row), row.tokens), row.doubt);
    });
    fmt::print("\nThreads: {}. Limit of the products: {:.1f} GFLOP/s ({}).\n", report.threads, report.matrix_rate / 1e9,
               gpu == nullptr ? "oneDNN, f32" : "cuBLASLt, " + flags->dtype);
    doubts.print();
    flags->report.finish(as_json(flags->options, report));
  });
  add_bench_train(*group);
  add_bench_generate(*group);
  add_bench_serve(*group);
}

}  // namespace qdelta
