// qdelta bench train: tokens per second of whole training steps.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>

#include "bench/train_bench.h"
#include "cli/bench_common.h"
#include "cli/device_flags.h"
#include "cli/help_format.h"
#include "cli/memory_hint.h"
#include "cli/recompute_flag.h"
#include "model/parameters.h"

namespace qdelta {
namespace {

struct TrainBenchFlags {
  ModelFlags model;
  DeviceFlags device;
  bench::TrainBenchOptions options;
  ReportFlags report;
};

void print_row(const bench::TrainBenchRow& row) {
  fmt::print("{:>6} {:>7} {:>12.1f} {:>10.1f} {:>9.1f} GFLOP/s {:>11} {:>8.1f} GFLOP/s\n", row.batch, row.tokens,
             row.timing.median * 1e3, row.tokens_per_s, row.rate / 1e9, share_text(row.rate / row.limit, row.doubt),
             row.limit / 1e9);
  std::string parts;
  double rest = row.timed_seconds;
  for (std::size_t kind = 0; kind < kWorkKinds; ++kind) {
    parts += fmt::format("{} {:.1f}, ", kWorkNames[kind], row.work[kind] * 1e3);
    rest -= row.work[kind];
  }
  fmt::print("{:>14} ms by kind of work, of one step more: {}between them {:.1f}\n", "", parts, rest * 1e3);
  if (row.peak_memory > 0) {
    fmt::print("{:>14} GPU memory in use, at most: {:.2f} GiB\n", "",
               static_cast<double>(row.peak_memory) / static_cast<double>(1 << 30));
  }
  std::fflush(stdout);
}

nlohmann::ordered_json as_json(const bench::TrainBenchOptions& options, const bench::TrainBenchReport& report) {
  nlohmann::ordered_json json = report_of("train", options.device);
  json["model"] = model_as_json(options.model, report.parameters);
  json["threads"] = report.threads;
  json["recompute"] = name_of(options.recompute);
  json["flop_per_token"] = report.flop_per_token;
  for (const bench::TrainBenchRow& row : report.rows) {
    nlohmann::ordered_json work;
    for (std::size_t kind = 0; kind < kWorkKinds; ++kind) work[std::string(kWorkNames[kind])] = row.work[kind];
    json["rows"].push_back({{"batch", row.batch},
                            {"tokens", row.tokens},
                            {"seconds_per_step", row.timing.median},
                            {"best_seconds", row.timing.best},
                            {"tokens_per_s", row.tokens_per_s},
                            {"flop_per_s", row.rate},
                            {"limit", row.limit},
                            {"doubt", row.doubt},
                            {"timed_step", {{"seconds", row.timed_seconds}, {"by_work", work}}},
                            {"peak_gpu_bytes", row.peak_memory}});
  }
  return json;
}

void run(TrainBenchFlags& flags) {
  flags.report.prepare();
  flags.options.model = bench_model(flags.model);
  flags.options.device = flags.device.open();
  fmt::print("{}\n\n{:>6} {:>7} {:>12} {:>10} {:>17} {:>10}  {:>16}\n",
             describe_model(flags.options.model, ParameterLayout(flags.options.model).parameters()), "batch", "tokens",
             "ms per step", "tokens/s", "rate", "of limit", "limit");
  std::fflush(stdout);
  Doubts doubts;
  const bench::TrainBenchReport report = bench::run_train_bench(flags.options, [&](const bench::TrainBenchRow& row) {
    print_row(row);
    doubts.add(fmt::format("batch {}", row.batch), row.doubt);
  });
  fmt::print("\nThreads: {}. The limit is the device's own matrix product in the same run.\n", report.threads);
  doubts.print();
  flags.report.finish(as_json(flags.options, report));
}

}  // namespace

void add_bench_train(CLI::App& group) {
  CLI::App* command = group.add_subcommand("train", "Training steps of a random model");
  auto flags = std::make_shared<TrainBenchFlags>();
  bench::TrainBenchOptions& options = flags->options;
  CLI::Option* rows = command->add_option("--rows", options.batches, "Sequences of a step, comma-separated")
                          ->delimiter(',')
                          ->capture_default_str();
  CLI::Option* length = command->add_option("--seq-len", options.tokens, "Tokens of each")->capture_default_str();
  former_name(*command, "--batch", options.batches, rows)->delimiter(',');
  former_name(*command, "--tokens", options.tokens, length);
  command->add_option("--steps", options.steps, "Steps to time, after one that is not")->capture_default_str();
  add_recompute(*command, options.recompute);
  flags->device.add_to(*command);
  flags->report.add_to(*command);
  add_bench_model(*command, flags->model);
  command->footer(
      "A step is all of it: forward, backward, clipping, AdamW, on random tokens; times are medians. Where the time "
      "goes "
      "is\nmeasured in one step more, op by op (events on a GPU): products of matrices, recurrence, norms, "
      "convolution, "
      "the MLP's\nSwiGLU, loss, optimizer; memory is what is in use on the GPU, at its peak. The rate counts "
      "the FLOP\nof the model, two for each weight and token forward and four backward, and the chunk form of the "
      "recurrence. Its limit is\nthe device's own matrix product (oneDNN in float32, cuBLASLt), the larger of a "
      "measurement "
      "before and one after. The\nvocabulary is small unless you say otherwise: products with a large one run at the "
      "limit and would flatter the rest.\n\n"
      "Example:  qdelta bench train --hidden-size 512 --layers 8 --rows 1,4 --json train.json");
  command->callback([flags] {
    with_memory_hint("lower --rows or --seq-len, give --recompute some or all, or take a smaller model",
                     [&] { run(*flags); });
  });
}

}  // namespace qdelta
