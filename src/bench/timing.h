// Timings that were repeated, and whether they can be relied upon. On a machine that other programs share, threads lose
// their cores in the middle of an op: one time says nothing, and neither does a median when most of them were hit.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace qdelta::bench {

// Seconds of a call, out of so many calls.
struct Timing {
  double best = 0, median = 0;
  int calls = 0;
};
[[nodiscard]] Timing timing_of(std::vector<double> seconds);

// Enough calls, and half of them near the best.
[[nodiscard]] bool is_steady(const Timing& timing);

// Of rounds of timings: the first where it is steady; else up to three, and the one with the lowest median counts,
// beside the best of all.
[[nodiscard]] Timing steadiest(const std::function<std::vector<double>()>& timed_round);

// Times calls after one that does not count, in rounds of at least `min_calls` and until `min_seconds` have gone by.
[[nodiscard]] Timing measure(const std::function<void()>& call, int min_calls = 5, double min_seconds = 0.3);

// The most that a machine does of something a second, measured: by the best of its timings.
struct Limit {
  double rate = 0;
  Timing timing;
};
[[nodiscard]] Limit limit_of(double work, const Timing& timing);
[[nodiscard]] Limit larger(const Limit& one, const Limit& other);

// Why a rate of so much a second, and its share of a limit, cannot be relied upon; "" where it can. The one place that
// decides it, for every benchmark.
[[nodiscard]] std::string doubt_of(const Timing& timing, double rate, const Limit& limit);

}  // namespace qdelta::bench
