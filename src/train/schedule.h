// The learning rate over a run: a linear warm-up, then one of
//
//   cosine    peak (m + (1 - m) (1 + cos(pi p)) / 2)            m = min_ratio, p = (step - warmup) / (total - warmup)
//   linear    peak (m + (1 - m) (1 - p))
//   constant  peak
//   wsd       peak, and over the last `decay` steps down in a line to m peak (warmup-stable-decay)
//   inverse_sqrt   peak sqrt(warmup / step), with at least 1 for warmup
//
//   lr(step) = peak * step / warmup                             step <= warmup
//
// Steps count from 1: lr(step) is used by update number `step`. So the first update moves by peak / warmup, update
// `warmup` by the whole peak and update `total` by m * peak. The cosine's are the factors of flame's
// cosine_scheduler_lambda and of transformers' cosine_with_min_lr. There LambdaLR counts from 0, so that update 1 has a
// rate of zero and does nothing; here that update is not wasted, and the rest of the curve is one update early.
//
// A run that was extended goes through one schedule after the other, each with steps of its own from 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace qdelta {

enum class ScheduleKind { cosine, linear, constant, wsd, inverse_sqrt };
[[nodiscard]] ScheduleKind schedule_named(std::string_view name);
[[nodiscard]] std::string_view name_of(ScheduleKind kind);
[[nodiscard]] std::string schedule_names();

// The defaults are the paper's for 340M parameters.
struct LearningRateSchedule {
  double peak = 1e-3;
  std::int64_t warmup = 1024;   // 0: none, the curve starts at once
  std::int64_t total = 28'600;  // steps of the whole run, the warm-up included
  double min_ratio = 0.1;       // of the peak, at the end
  ScheduleKind kind = ScheduleKind::cosine;
  std::int64_t decay = 0;  // wsd: steps of the decay at the end; 0: a tenth of all

  // Throws Error(invalid_argument) that names the value which makes no sense.
  void check() const;
  [[nodiscard]] std::int64_t decay_steps() const { return decay > 0 ? decay : (total + 9) / 10; }
};

// For any step from 1; past the end it stays as it was there.
[[nodiscard]] double learning_rate(const LearningRateSchedule& schedule, std::int64_t step);
// Of a run with extensions.
[[nodiscard]] double learning_rate(const LearningRateSchedule& first, std::span<const LearningRateSchedule> extensions,
                                   std::int64_t step);

}  // namespace qdelta
