// The learning rate over a run: a linear warm-up, then half a cosine down to a fraction of the peak.
//
//   lr(step) = peak * step / warmup                                              step <= warmup
//   lr(step) = peak * (m + (1 - m) * (1 + cos(pi * progress)) / 2)               after it, m = min_ratio
//              progress = (step - warmup) / (total - warmup)
//
// Steps count from 1: lr(step) is used by update number `step`. So the first update moves by peak / warmup, update
// `warmup` by the whole peak and update `total` by m * peak. These are the factors of flame's cosine_scheduler_lambda
// and of transformers' cosine_with_min_lr. There LambdaLR counts from 0, so that update 1 has a rate of zero and does
// nothing; here that update is not wasted, and the rest of the curve is one update early.
#pragma once

#include <cstdint>

namespace qdelta {

// The defaults are the paper's for 340M parameters.
struct LearningRateSchedule {
  double peak = 1e-3;
  std::int64_t warmup = 1024;   // 0: none, the cosine starts at once
  std::int64_t total = 28'600;  // steps of the whole run, the warm-up included
  double min_ratio = 0.1;       // of the peak, at the end

  // Throws Error(invalid_argument) that names the value which makes no sense.
  void check() const;
};

// For any step from 1; past the end it stays at the lowest rate.
[[nodiscard]] double learning_rate(const LearningRateSchedule& schedule, std::int64_t step);

}  // namespace qdelta
