#include "train/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace qdelta {

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
}

double learning_rate(const LearningRateSchedule& schedule, std::int64_t step) {
  require(step >= 1, "there is no learning rate for step {}: steps count from 1", step);
  if (step <= schedule.warmup) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  // The end is written out because cos(pi) times a rounded progress might miss it.
  if (step >= schedule.total) return schedule.peak * schedule.min_ratio;
  const double progress =
      static_cast<double>(step - schedule.warmup) / static_cast<double>(schedule.total - schedule.warmup);
  const double falling = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return schedule.peak * (schedule.min_ratio + (1 - schedule.min_ratio) * falling);
}

}  // namespace qdelta
