// The benchmark of the operator: forward, backward and step over shapes and lengths, beside this machine's limits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "core/dtype.h"
#include "kernels/device.h"
#include "rule/rule.h"

namespace qdelta::bench {

struct OpBenchOptions {
  Rule rule = Rule::q_delta;
  DType dtype = DType::f32;
  int chunk = 0;
  Device device;
  std::int64_t batch = 1;                                                                // sequences, or rows of a step
  std::vector<std::string> shapes{"32x128x128", "4x128x128", "6x128x256", "6x256x512"};  // heads x K x V
  std::vector<std::int64_t> tokens{1, 64, 512, 4096};
};

struct OpBenchRow {
  std::string op;  // "step", "forward", "backward", "training": a forward that keeps states, and the backward
  std::int64_t heads = 0, K = 0, V = 0, tokens = 0;
  int chunk = 0;    // tokens of a chunk, or of a block of the blocked recurrence
  Timing timing{};  // of a call: all sequences
  double us_per_token = 0;
  double rate = 0;  // FLOP/s, or bytes/s for a step
  // What the shape's bytes and FLOP (op_work.h) would take at the limits of this machine, measured in the same run.
  double bytes_floor = 0, flop_floor = 0;  // seconds
  double memory_rate = 0;                  // bytes/s, of the first of them
  double error = 0;                        // relative L2 distance from another form, checked before timing
  std::string doubt{};                     // why it cannot be relied upon; "": it can

  // The share of the time that the machine would need at least.
  [[nodiscard]] double of_limit() const { return std::max(bytes_floor, flop_floor) / timing.median; }
};

struct OpBenchReport {
  int threads = 0;
  double matrix_rate = 0;  // FLOP/s
  std::vector<OpBenchRow> rows;
};

// Calls `progress` with each row as it is measured.
[[nodiscard]] OpBenchReport run_op_bench(const OpBenchOptions& options,
                                         const std::function<void(const OpBenchRow&)>& progress);

}  // namespace qdelta::bench
