// The benchmark of serving: a server of this process, driven over loopback by clients of this process, beside what
// bench generate measures of the same model in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/generate_bench.h"
#include "bench/load_driver.h"
#include "kernels/device.h"
#include "model/config.h"

namespace qdelta::bench {

// Whole numbers from `low` to `high`, all equally likely.
struct Range {
  std::int64_t low = 0, high = 0;
};

struct ServeBenchOptions {
  ModelConfig model;
  std::vector<std::int64_t> clients{1, 16, 128};  // of the closed loops, one after the other
  double rate = 0;                                // requests per second of an open loop after them; 0: none
  Range prompt{200, 200}, tokens{128, 128};
  std::vector<std::int64_t> prefixes;  // tokens that prompts have in common, for the time to the first token
  std::vector<std::string> replay;     // bodies of requests, instead of drawn ones
  float temperature = 0.8F;
  double warm_up = 3, seconds = 10;
  Device device;
};

struct ServeBenchRow {
  std::int64_t clients = 0;
  double rate = 0;  // of an open loop
  LoadResult load;
  double tokens_per_s = 0;
  double generate_tokens_per_s = 0;  // of bench generate with as many sequences
  // What bench generate's figures come to when prompts are read between the steps, as the server must.
  double with_prompts_tokens_per_s = 0;
  std::string doubt{};  // why the figures cannot be relied upon; "": they can
};

// The time to the first token, one client: of prompts with nothing in common, and of such that begin with the same
// tokens, whose state the server has kept. Both have kNewTokens more.
inline constexpr std::int64_t kNewTokens = 20;
struct PrefixBenchRow {
  std::int64_t tokens = 0;
  LoadResult unlike{}, cached{};
  [[nodiscard]] double share() const {
    return percentile(cached.first_token, 0.5) / percentile(unlike.first_token, 0.5);
  }
};

// Of a closed loop, from what came in each part of its time; its limit is bench generate with as many sequences. An
// open loop sends when it likes, so its parts say nothing.
[[nodiscard]] std::string doubt_of_load(const LoadResult& load, const Timing& generate_step, std::int64_t clients);

struct ServeBenchReport {
  GenerateBenchReport generate;
  std::vector<ServeBenchRow> rows;
  std::vector<PrefixBenchRow> prefixes;
};

struct ServeBenchProgress {
  std::function<void(const ServeBenchRow&)> load;
  std::function<void(const PrefixBenchRow&)> prefix;
};

[[nodiscard]] ServeBenchReport run_serve_bench(const ServeBenchOptions& options, const ServeBenchProgress& progress);

}  // namespace qdelta::bench
