// loss[n] = log sum_v exp(logits[n][v]) - logits[n][target[n]],  dlogits = scale (softmax - onehot)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

struct LossSizes {
  std::vector<std::int32_t> targets;
  std::int64_t vocabulary;
  float scale;
  bool gradient, best;  // best: and the sums

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(targets.size()); }
};

// Rows that do not count have neither loss nor gradient, whatever their logits are.
void cross_entropy_oracle(const LossSizes& n, OpValues& v) {
  for (std::int64_t r = 0; r < n.rows(); ++r) {
    double* logits = &v["logits"][at(r, n.vocabulary, 0)];
    const std::int64_t target = n.targets[static_cast<std::size_t>(r)];
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < n.vocabulary; ++i) best = logits[i] > logits[best] ? i : best;
    const double largest = logits[best];
    double sum = 0;
    for (std::int64_t i = 0; i < n.vocabulary; ++i) sum += std::exp(logits[i] - largest);
    if (n.best) v["log_sum"][static_cast<std::size_t>(r)] = std::log(sum) + largest;
    v["loss"][static_cast<std::size_t>(r)] = target < 0 ? 0 : std::log(sum) + largest - logits[target];
    if (n.best) v["best"][static_cast<std::size_t>(r)] = static_cast<double>(best);
    for (std::int64_t i = 0; n.gradient && i < n.vocabulary; ++i) {
      const double softmax = std::exp(logits[i] - largest) / sum;
      logits[i] = target < 0 ? 0 : double{n.scale} * (softmax - (i == target ? 1 : 0));
    }
  }
}

OpCase cross_entropy_case(const LossSizes& n, DType type, double spread, const Bound& bound = {}) {
  OpCase c{.op = "cross_entropy", .shape = fmt::format("{} x {}", n.rows(), n.vocabulary)};
  c.integers("targets", DType::i32, n.targets);
  if (n.gradient) {
    c.inout("logits", type, {n.rows(), n.vocabulary}, spread, bound);
  } else {
    c.in("logits", type, {n.rows(), n.vocabulary}, spread);
  }
  c.out("loss", kF32, {n.rows()}, bound);
  if (n.best) c.out("best", DType::i32, {n.rows()}, kExact);
  if (n.best) c.out("log_sum", kF32, {n.rows()});
  c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
    cross_entropy(device, {.logits = t["logits"],
                           .targets = t.span<const std::int32_t>("targets"),
                           .loss = t.span<float>("loss"),
                           .best = t.span<std::int32_t>("best"),
                           .log_sum = t.span<float>("log_sum"),
                           .gradient = n.gradient,
                           .scale = n.scale});
  };
  c.oracle_forward = [=](OpValues& v) { cross_entropy_oracle(n, v); };
  return c;
}

TEST(Ops, CrossEntropy) {
  Random random(11);
  for (const std::int64_t vocabulary : {1, 5, 53, 100, 1003, 4096, 40003}) {
    for (const DType type : activation_types()) {
      for (const bool gradient : {false, true}) {
        for (const bool best : {true, false}) {
          LossSizes n{.targets = {}, .vocabulary = vocabulary, .scale = 0.25F, .gradient = gradient, .best = best};
          for (int row = 0; row < 9; ++row)
            n.targets.push_back(row % 4 == 2 ? -1 : static_cast<std::int32_t>(random.integer(0, vocabulary - 1)));
          // A single class has the loss and the gradient zero, but for rounding.
          check_op(cross_entropy_case(n, type, 5, {.absolute = vocabulary == 1 ? 1e-6 : -1}));
        }
      }
    }
  }
}

// The oracle's gradient is in the place of the logits, so the harness does not see that it is one.
TEST(Ops, CrossEntropyOracleHasTheGradientOfItsLoss) {
  Random random(8);
  LossSizes n{
      .targets = {0, 52, 7, -1, 7, 31, 16, 15, 2}, .vocabulary = 53, .scale = 1, .gradient = true, .best = false};
  std::vector<double> logits(9 * 53);
  for (double& value : logits) value = 3 * double{random.normal()};
  std::vector<double> weights(9);
  for (double& value : weights) value = random.normal();
  std::vector<double> direction(logits.size());
  for (double& value : direction) value = random.normal();
  const auto at_step = [&](double step) {
    OpValues v{{"logits", logits}, {"loss", std::vector<double>(9)}};
    for (std::size_t i = 0; i < logits.size(); ++i) v["logits"][i] += step * direction[i];
    cross_entropy_oracle(n, v);
    return v;
  };
  const auto loss = [&](double step) {
    const OpValues v = at_step(step);
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * v.at("loss")[i];
    return sum;
  };
  const OpValues here = at_step(0);
  double slope = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) slope += here.at("logits")[i] * weights[i / 53] * direction[i];
  const double h = 1e-3;
  EXPECT_NEAR((4 * (loss(h / 2) - loss(-h / 2)) / h - (loss(h) - loss(-h)) / (2 * h)) / 3, slope, 1e-8);
}

// Logits of which most vanish beside the largest, and a row that does not count.
TEST(Ops, CrossEntropySurvivesHugeLogits) {
  for (const std::int64_t vocabulary : {3, 100, 5003}) {
    for (const float low : {-100.0F, -1e4F, -INFINITY}) {
      for (const DType type : activation_types()) {
        SCOPED_TRACE(fmt::format("low {}", low));
        const LossSizes n{
            .targets = {0, 1, -1}, .vocabulary = vocabulary, .scale = 0.5F, .gradient = true, .best = false};
        // The CPU's least exponential is not 0.
        OpCase c = cross_entropy_case(n, type, 0, {.absolute = std::numeric_limits<float>::min()});
        c.shape += ", huge";
        for (Operand& operand : c.operands) {
          if (operand.name == "loss") operand.bound.absolute = 1e-6;
          if (operand.name != "logits") continue;
          const auto round = [&](float value) {
            return double{type == kBF16 ? static_cast<float>(BFloat16(value)) : value};
          };
          operand.initial.assign(static_cast<std::size_t>(3 * vocabulary), round(low));
          for (const std::int64_t row : {0, 1}) operand.initial[at(row, vocabulary, 0)] = round(1e4F);
          operand.initial[at(2, vocabulary, 1)] = NAN;
        }
        c.also = [](const OpValues& got) { EXPECT_EQ(got.at("loss")[2], 0); };
        check_op(c);
      }
    }
  }
}

TEST(Ops, CrossEntropyIgnoresNegativeTargets) {
  const LossSizes n{.targets = {1, -1}, .vocabulary = 3, .scale = 1, .gradient = true, .best = true};
  OpCase c = cross_entropy_case(n, kF32, 1, {.absolute = 2 * std::numeric_limits<float>::min()});
  for (Operand& operand : c.operands) {
    if (operand.name == "logits") operand.initial = {1e4, -1e4, 0, 1, 2, 3};
  }
  c.also = [](const OpValues& got) {
    EXPECT_FLOAT_EQ(static_cast<float>(got.at("loss")[0]), 2e4F);
    EXPECT_EQ(got.at("loss")[1], 0);
    EXPECT_EQ(got.at("best"), (std::vector<double>{0, 2}));
    EXPECT_FLOAT_EQ(static_cast<float>(got.at("logits")[0]), 1.0F);
    EXPECT_FLOAT_EQ(static_cast<float>(got.at("logits")[1]), -1.0F);
    EXPECT_EQ(got.at("logits")[4], 0);
  };
  check_op(c);
}

}  // namespace
}  // namespace qdelta::testing
