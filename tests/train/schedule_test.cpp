// The learning rate, against values worked out by hand and the paper's recipe.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "testing.h"

namespace qdelta::testing {
namespace {

const LearningRateSchedule kSmall{.peak = 1, .warmup = 4, .total = 12, .min_ratio = 0.1};

TEST(Schedule, WarmsUpInEqualSteps) {
  EXPECT_DOUBLE_EQ(learning_rate(kSmall, 1), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(kSmall, 2), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(kSmall, 3), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(kSmall, 4), 1);
}

// Eight steps of cosine: cos of pi/4, pi/2, 3 pi/4 are 1/sqrt 2, 0 and -1/sqrt 2.
TEST(Schedule, FallsAsHalfACosine) {
  EXPECT_NEAR(learning_rate(kSmall, 6), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(learning_rate(kSmall, 8), 0.55, 1e-15);
  EXPECT_NEAR(learning_rate(kSmall, 10), 0.1 + 0.9 * (1 - std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(kSmall, 12), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(kSmall, 1000), 0.1);
}

// The factors of cosine_scheduler_lambda (flame) for num_warmup_steps 1024 and num_training_steps 28600, computed there
// with Python's floats.
TEST(Schedule, IsThePapersRecipe) {
  const LearningRateSchedule paper;
  EXPECT_NEAR(learning_rate(paper, 1), 1e-3 / 1024, 1e-18);
  EXPECT_NEAR(learning_rate(paper, 512), 5e-4, 1e-18);
  EXPECT_DOUBLE_EQ(learning_rate(paper, 1024), 1e-3);
  EXPECT_NEAR(learning_rate(paper, 1025), 1e-3 * 0.9999999970797522, 1e-17);
  EXPECT_NEAR(learning_rate(paper, 14'812), 5.5e-4, 1e-17);  // halfway down
  EXPECT_NEAR(learning_rate(paper, 20'000), 1e-3 * 0.299247932485447, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(paper, 28'600), 1e-4);
}

TEST(Schedule, RisesThenFalls) {
  for (std::int64_t step = 2; step <= kSmall.total; ++step) {
    const double change = learning_rate(kSmall, step) - learning_rate(kSmall, step - 1);
    EXPECT_EQ(change > 0, step <= kSmall.warmup) << step;
  }
}

TEST(Schedule, MayHaveNoWarmUpOrNothingElse) {
  const LearningRateSchedule cosine{.peak = 2, .warmup = 0, .total = 2, .min_ratio = 0};
  EXPECT_NEAR(learning_rate(cosine, 1), 1, 1e-15);
  EXPECT_EQ(learning_rate(cosine, 2), 0);
  const LearningRateSchedule rising{.peak = 2, .warmup = 4, .total = 4, .min_ratio = 0.5};
  EXPECT_EQ(learning_rate(rising, 4), 2);
  EXPECT_EQ(learning_rate(rising, 5), 1);
  const LearningRateSchedule constant{.peak = 2, .warmup = 0, .total = 5, .min_ratio = 1};
  for (std::int64_t step = 1; step < 8; ++step) EXPECT_DOUBLE_EQ(learning_rate(constant, step), 2);
}

TEST(Schedule, SaysWhatMakesNoSense) {
  const auto with = [](auto change) {
    LearningRateSchedule schedule;
    change(schedule);
    return schedule;
  };
  using S = LearningRateSchedule;
  EXPECT_NO_THROW(S().check());
  expect_error(Status::invalid_argument, {"-1"}, [&] {
    with([](S& s) { s.peak = -1; }).check();
    return 0;
  });
  expect_error(Status::invalid_argument, {"peak", "nan"}, [&] {
    with([](S& s) { s.peak = NAN; }).check();
    return 0;
  });
  expect_error(Status::invalid_argument, {"1024", "10"}, [&] {
    with([](S& s) { s.total = 10; }).check();
    return 0;
  });
  expect_error(Status::invalid_argument, {"-5"}, [&] {
    with([](S& s) { s.warmup = -5; }).check();
    return 0;
  });
  expect_error(Status::invalid_argument, {"0 steps"}, [&] {
    with([](S& s) { s.total = 0; }).check();
    return 0;
  });
  expect_error(Status::invalid_argument, {"1.5"}, [&] {
    with([](S& s) { s.min_ratio = 1.5; }).check();
    return 0;
  });
  expect_error(Status::invalid_argument, {"step 0", "from 1"}, [] { return learning_rate({}, 0); });
}

TEST(Schedules, EachHasItsCurve) {
  LearningRateSchedule schedule{.peak = 2, .warmup = 10, .total = 110, .min_ratio = 0.1};
  const auto at = [&](ScheduleKind kind, std::int64_t step) {
    schedule.kind = kind;
    schedule.check();
    return learning_rate(schedule, step);
  };
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant, ScheduleKind::wsd,
                                  ScheduleKind::inverse_sqrt}) {
    EXPECT_DOUBLE_EQ(at(kind, 5), 1) << name_of(kind);
    EXPECT_DOUBLE_EQ(at(kind, 10), 2) << name_of(kind);
    EXPECT_EQ(schedule_named(name_of(kind)), kind);
  }
  EXPECT_DOUBLE_EQ(at(ScheduleKind::linear, 60), 1.1);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::linear, 110), 0.2);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::constant, 500), 2);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::inverse_sqrt, 40), 1);
  schedule.decay = 20;
  EXPECT_DOUBLE_EQ(at(ScheduleKind::wsd, 90), 2);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::wsd, 100), 1.1);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::wsd, 110), 0.2);
  schedule.decay = 101;
  expect_error(Status::invalid_argument, {"101", "110"}, [&] { schedule.check(); });
  expect_error(Status::invalid_argument, {"'triangle'", "cosine", "wsd"},
               [&] { static_cast<void>(schedule_named("triangle")); });
}

TEST(Schedules, AnExtensionHasStepsOfItsOwn) {
  const LearningRateSchedule first{.peak = 1, .warmup = 0, .total = 10, .min_ratio = 0};
  const std::vector<LearningRateSchedule> more{
      {.peak = 3, .warmup = 2, .total = 4, .min_ratio = 1, .kind = ScheduleKind::constant, .decay = 0},
      {.peak = 5, .warmup = 0, .total = 4, .min_ratio = 1, .kind = ScheduleKind::constant, .decay = 0}};
  EXPECT_DOUBLE_EQ(learning_rate(first, more, 10), 0);
  EXPECT_DOUBLE_EQ(learning_rate(first, more, 11), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(first, more, 14), 3);
  EXPECT_DOUBLE_EQ(learning_rate(first, more, 15), 5);
  EXPECT_DOUBLE_EQ(learning_rate(first, more, 99), 5);
}

}  // namespace
}  // namespace qdelta::testing
