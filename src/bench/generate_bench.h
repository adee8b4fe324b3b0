// The benchmark of generation: reading a prompt, and decoding at several batch sizes, beside the rate at which this
// machine reads as many bytes as the model has weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "kernels/device.h"
#include "model/config.h"

namespace qdelta::bench {

struct GenerateBenchOptions {
  ModelConfig model;
  std::vector<std::int64_t> batches{1, 4, 16};  // sequences that decode together
  std::vector<std::int64_t> prompts{512};       // tokens of each
  std::int64_t tokens = 32;                     // decoded by each sequence in one timing
  bool recent_tokens = false;                   // DecoderOptions
  Device device;
};

struct PromptBenchRow {
  std::int64_t tokens = 0;
  Timing timing{};
  double tokens_per_s = 0;
  double rate = 0;      // FLOP/s of the model (model/flops.h), without the head: only the last token needs it
  double limit = 0;     // FLOP/s of the device's matrix product; the larger of a measurement before and one after
  std::string doubt{};  // why the figures cannot be relied upon; "": they can
};

struct GenerateBenchRow {
  std::int64_t batch = 0;
  Timing timing{};  // of a step of all sequences
  double tokens_per_s = 0;
  double rate = 0;   // bytes/s of weights: each is read once a step, whatever the batch
  double limit = 0;  // bytes/s of reading as many; the larger of a measurement before and one after
  std::string doubt{};
};

struct GenerateBenchReport {
  int threads = 0;
  std::int64_t parameters = 0;
  std::size_t weight_bytes = 0;  // that a step reads: all weights but an embedding table that is only looked up
  std::size_t state_bytes = 0;   // of one sequence; a step reads and writes them, which `rate` does not count
  std::vector<PromptBenchRow> prompts;
  std::vector<GenerateBenchRow> rows;
};

// Called with each row as it is measured; of the report, what comes before it is set by then.
struct GenerateBenchProgress {
  std::function<void(const PromptBenchRow&)> prompt = [](const PromptBenchRow&) {};
  std::function<void(const GenerateBenchReport&, const GenerateBenchRow&)> decoding = [](const auto&, const auto&) {};
};

[[nodiscard]] GenerateBenchReport run_generate_bench(const GenerateBenchOptions& options,
                                                     const GenerateBenchProgress& progress);

}  // namespace qdelta::bench
