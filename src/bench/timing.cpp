#include "bench/timing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace qdelta::bench {
namespace {

constexpr int kFewestCalls = 3;   // below that, best and median say nothing about each other
constexpr double kSpread = 1.25;  // the median over the best; quiet machines stay below 1.1
constexpr double kAbove = 1.1;    // a rate over its limit: more than two measurements of one thing differ by
constexpr int kRounds = 3;

std::vector<double> times_of(const std::function<void()>& call, int min_calls, double min_seconds) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  std::vector<double> times;
  const double start = now();
  while (static_cast<int>(times.size()) < min_calls || now() - start < min_seconds) {
    const double begin = now();
    call();
    times.push_back(now() - begin);
  }
  return times;
}

}  // namespace

Timing timing_of(std::vector<double> seconds) {
  require(!seconds.empty(), "there are no timings");
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return {.best = *std::min_element(seconds.begin(), seconds.end()),
          .median = *middle,
          .calls = static_cast<int>(seconds.size())};
}

bool is_steady(const Timing& timing) { return timing.calls >= kFewestCalls && timing.median <= kSpread * timing.best; }

Timing measure(const std::function<void()>& call, int min_calls, double min_seconds) {
  call();  // caches, page tables, lazily created threads
  return steadiest([&] { return times_of(call, min_calls, min_seconds); });
}

Timing steadiest(const std::function<std::vector<double>()>& timed_round) {
  Timing result = timing_of(timed_round());
  for (int round = 1; round < kRounds && result.calls >= kFewestCalls && !is_steady(result); ++round) {
    const Timing again = timing_of(timed_round());
    const double best = std::min(result.best, again.best);
    if (again.median < result.median) result = again;
    result.best = best;
  }
  return result;
}

Limit limit_of(double work, const Timing& timing) { return {work / timing.best, timing}; }

Limit larger(const Limit& one, const Limit& other) { return one.rate < other.rate ? other : one; }

std::string doubt_of(const Timing& timing, double rate, const Limit& limit) {
  const auto spread = [](const Timing& of) {
    return fmt::format("half of its timings took {:.1f} times as long as the best or longer", of.median / of.best);
  };
  std::vector<std::string> reasons;
  if (timing.calls < kFewestCalls) {
    reasons.push_back(fmt::format("too few timings ({}), expected at least {}", timing.calls, kFewestCalls));
  } else if (!is_steady(timing)) {
    reasons.push_back(spread(timing));
  }
  if (rate > kAbove * limit.rate) {
    reasons.push_back(
        fmt::format("{:.1f} times its limit, which cannot be: the limit was measured too low", rate / limit.rate));
  }
  if (!is_steady(limit.timing)) reasons.push_back("of its limit " + spread(limit.timing));
  return fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace qdelta::bench
