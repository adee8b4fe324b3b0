#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "eval/python_random.h"

namespace qdelta::eval {
namespace {

// In [0, 1) with 53 bits, as Python's random().
double uniform(std::mt19937& generator) {
  const auto high = static_cast<double>(generator() >> 5U);
  const auto low = static_cast<double>(generator() >> 6U);
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> sample_deviation(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

std::optional<double> perplexity_error(std::span<const double> values, const BootstrapOptions& options) {
  if (options.draws < 1) return std::nullopt;
  const std::int64_t chunk = std::min<std::int64_t>(1000, options.draws);
  const std::int64_t chunks = options.draws / chunk;
  std::vector<double> draws(static_cast<std::size_t>(chunk * chunks));
  const auto count = static_cast<double>(values.size());
  parallel_for(chunks, thread_count(options.threads), [&](std::int64_t index, int /*worker*/) {
    PythonSeed seed(static_cast<std::uint32_t>(index));
    std::mt19937 generator(seed);
    for (std::int64_t n = 0; n < chunk; ++n) {
      double sum = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        sum += values[static_cast<std::size_t>(uniform(generator) * count)];
      draws[static_cast<std::size_t>(index * chunk + n)] = std::exp(-sum / count);
    }
  });
  return sample_deviation(draws);
}

}  // namespace

Estimate aggregate(Aggregation aggregation, std::span<const Sample> samples, const BootstrapOptions& bootstrap) {
  require(!samples.empty(), "there are no examples to take a mean of");
  std::vector<double> values;
  double weight = 0;
  for (const Sample& sample : samples) {
    values.push_back(sample.value);
    weight += sample.weight;
  }
  Estimate estimate;
  switch (aggregation) {
    case Aggregation::mean:
      estimate.value = mean_of(values);
      if (const auto deviation = sample_deviation(values)) {
        estimate.error = *deviation / std::sqrt(static_cast<double>(values.size()));
      }
      break;
    case Aggregation::perplexity:
      estimate.value = std::exp(-mean_of(values));
      estimate.error = perplexity_error(values, bootstrap);
      break;
    case Aggregation::weighted_perplexity:
    case Aggregation::bits_per_byte: {
      require(weight > 0, "the examples have no words to share their log-likelihood");
      const double loss = -std::accumulate(values.begin(), values.end(), 0.0) / weight;
      estimate.value = aggregation == Aggregation::bits_per_byte ? loss / std::numbers::ln2 : std::exp(loss);
      break;
    }
  }
  return estimate;
}

}  // namespace qdelta::eval
