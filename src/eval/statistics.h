// From the values of single examples to a result and its standard error, with lm-evaluation-harness's formulas.
//
//   mean                  m = sum x_i / n,   error = sqrt(sum (x_i - m)^2 / (n - 1)) / sqrt(n)
//   perplexity            exp(-m) of log-likelihoods, error: the sample deviation over bootstrap draws
//   weighted_perplexity   exp(-sum ll_i / sum w_i), no error
//   bits_per_byte         -sum ll_i / sum w_i / log 2, no error
//
// The harness draws its bootstrap from Python's random numbers, in chunks of 1000 draws with the seeds 0, 1, 2 and so
// on. Here the same numbers are drawn, so that equal log-likelihoods give an equal error.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace qdelta::eval {

enum class Aggregation { mean, perplexity, weighted_perplexity, bits_per_byte };

// What one example contributes to a metric; the weight only counts where the aggregation is a weighted one.
struct Sample {
  double value = 0;
  double weight = 1;
};

struct Estimate {
  double value = 0;
  std::optional<double> error;  // none where the harness gives none, or there are too few examples
};

struct BootstrapOptions {
  std::int64_t draws = 100'000;  // 0: no error for what needs a bootstrap
  int threads = 0;               // 0: all; the result does not depend on it
};

// Throws where there are no samples.
[[nodiscard]] Estimate aggregate(Aggregation aggregation, std::span<const Sample> samples,
                                 const BootstrapOptions& bootstrap);

}  // namespace qdelta::eval
