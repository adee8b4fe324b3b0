// The benchmark of generation: reading a prompt, and decoding at several batch sizes, beside the rate at which this
// machine reads as many bytes as the model has weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device.h"
#include "model/config.h"

namespace qdelta::bench {

struct GenerateBenchOptions {
  ModelConfig model;
  std::vector<std::int64_t> batches{1, 4, 16};  // sequences that decode together
  std::int64_t prompt = 512;                    // tokens
  std::int64_t tokens = 32;                     // decoded by each sequence in one timing
  Device device;
};

struct GenerateBenchRow {
  std::int64_t batch = 0;
  double seconds = 0;  // of a step of all sequences, the median of several timings
  double tokens_per_s = 0;
  double rate = 0;   // bytes/s of weights: each is read once a step, whatever the batch
  double limit = 0;  // bytes/s of reading as many; the larger of a measurement before and one after
};

struct GenerateBenchReport {
  int threads = 0;
  std::int64_t parameters = 0;
  std::size_t weight_bytes = 0;  // that a step reads: all weights but an embedding table that is only looked up
  std::size_t state_bytes = 0;   // of one sequence; a step reads and writes them, which `rate` does not count
  double prefill_tokens_per_s = 0;
  std::vector<GenerateBenchRow> rows;
};

// Calls `progress` with each row as it is measured; the report's other fields are set by then.
[[nodiscard]] GenerateBenchReport run_generate_bench(
    const GenerateBenchOptions& options,
    const std::function<void(const GenerateBenchReport&, const GenerateBenchRow&)>& progress);

}  // namespace qdelta::bench
