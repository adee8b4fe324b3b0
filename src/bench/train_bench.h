// The benchmark of training: whole optimizer steps of a random model on random tokens, beside this machine's matrix
// rate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "kernels/device.h"
#include "kernels/work_times.h"
#include "model/batch.h"
#include "model/config.h"

namespace qdelta::bench {

struct TrainBenchOptions {
  ModelConfig model;
  std::vector<std::int64_t> batches{4};  // sequences of a step
  std::int64_t tokens = 512;             // of a sequence
  int steps = 5;                         // timed, after one that is not
  Recompute recompute = Recompute::none;
  Device device;
};

struct TrainBenchRow {
  std::int64_t batch = 0, tokens = 0;
  Timing timing{};  // of a step: forward, backward, clipping, AdamW
  double tokens_per_s = 0;
  double rate = 0;   // model FLOP/s (model/flops.h)
  double limit = 0;  // FLOP/s of the device's matrix product: the larger of a measurement before and one after
  // Of one more step, whose ops were timed one by one: what they took by kind, and the step from begin to end.
  WorkTimes::Seconds work{};
  double timed_seconds = 0;
  std::size_t peak_memory = 0;  // bytes in use on the GPU, the most so far in this program
  std::string doubt{};          // why the figures cannot be relied upon; "": they can
};

struct TrainBenchReport {
  int threads = 0;
  std::int64_t parameters = 0;
  double flop_per_token = 0;
  std::vector<TrainBenchRow> rows;
};

// Calls `progress` with each row as it is measured.
[[nodiscard]] TrainBenchReport run_train_bench(const TrainBenchOptions& options,
                                               const std::function<void(const TrainBenchRow&)>& progress);

}  // namespace qdelta::bench
