#include "train/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace qdelta {
namespace {

constexpr std::array<std::string_view, 5> kNames{"cosine", "linear", "constant", "wsd", "inverse_sqrt"};

// Between the peak (progress 0) and the lowest rate (progress 1).
double between(const LearningRateSchedule& schedule, double falling) {
  return schedule.peak * (schedule.min_ratio + (1 - schedule.min_ratio) * falling);
}

}  // namespace

ScheduleKind schedule_named(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  require(found != kNames.end(), "there is no schedule '{}'; there are {}", name, schedule_names());
  return static_cast<ScheduleKind>(found - kNames.begin());
}

std::string_view name_of(ScheduleKind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

std::string schedule_names() { return fmt::format("{}", fmt::join(kNames, ", ")); }

void LearningRateSchedule::check() const {
  require(std::isfinite(peak) && peak >= 0, "the peak learning rate is {}; it must be a finite number, not negative",
          peak);
  require(total >= 1, "the schedule has {} steps in total; it needs at least 1", total);
  require(total <= std::int64_t{1} << 53, "the schedule has {} steps in total; nobody will see the end of it", total);
  require(warmup >= 0, "the warm-up has {} steps; 0 means none", warmup);
  require(warmup <= total, "the warm-up of {} steps is longer than the whole run of {}; shorten it, or set it to 0",
          warmup, total);
  require(min_ratio >= 0 && min_ratio <= 1,
          "the lowest learning rate is {} of the peak; it must be a fraction between 0 and 1", min_ratio);
  require(decay >= 0, "the decay at the end has {} steps; 0 means a tenth of all", decay);
  require(kind != ScheduleKind::wsd || warmup + decay_steps() <= total,
          "a warm-up of {} steps and a decay of {} do not fit into a run of {}", warmup, decay_steps(), total);
}

double learning_rate(const LearningRateSchedule& schedule, std::int64_t step) {
  require(step >= 1, "there is no learning rate for step {}: steps count from 1", step);
  if (step <= schedule.warmup) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  const auto at = static_cast<double>(std::min(step, schedule.total));
  if (schedule.kind == ScheduleKind::constant) return schedule.peak;
  if (schedule.kind == ScheduleKind::inverse_sqrt) {
    return schedule.peak * std::sqrt(static_cast<double>(std::max<std::int64_t>(schedule.warmup, 1)) / at);
  }
  // The end is written out because cos(pi) times a rounded progress might miss it.
  if (step >= schedule.total) return schedule.peak * schedule.min_ratio;
  const auto total = static_cast<double>(schedule.total);
  if (schedule.kind == ScheduleKind::wsd) {
    return between(schedule, std::min(1.0, (total - at) / static_cast<double>(schedule.decay_steps())));
  }
  const auto warmup = static_cast<double>(schedule.warmup);
  const double progress = (at - warmup) / (total - warmup);
  if (schedule.kind == ScheduleKind::linear) return between(schedule, 1 - progress);
  return between(schedule, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

double learning_rate(const LearningRateSchedule& first, std::span<const LearningRateSchedule> extensions,
                     std::int64_t step) {
  const LearningRateSchedule* schedule = &first;
  for (const LearningRateSchedule& extension : extensions) {
    if (step <= schedule->total) break;
    step -= schedule->total;
    schedule = &extension;
  }
  return learning_rate(*schedule, step);
}

}  // namespace qdelta
