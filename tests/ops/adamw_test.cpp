// m <- b1 m + (1 - b1) g s,  v <- b2 v + (1 - b2) (g s)^2,
// p <- p - lr ( m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p )
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

AdamW adamw_arguments(const OpTensors& t, const AdamW& options) {
  AdamW args = options;
  args.parameters = t.span<float>("parameters");
  args.m = t.span<float>("m");
  args.v = t.span<float>("v");
  args.gradients = t.span<const float>("gradients");
  args.rounded = t.span<BFloat16>("rounded");
  return args;
}

void adamw_oracle(OpValues& values, const AdamW& options, double scale) {
  const double b1 = options.beta1;
  const double b2 = options.beta2;
  const auto t = static_cast<double>(options.step);
  std::vector<double>& p = values["parameters"];
  std::vector<double>& m = values["m"];
  std::vector<double>& v = values["v"];
  const std::vector<double>& g = values["gradients"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double gradient = scale * g[i];
    m[i] = b1 * m[i] + (1 - b1) * gradient;
    v[i] = b2 * v[i] + (1 - b2) * gradient * gradient;
    const double step =
        m[i] / (1 - std::pow(b1, t)) / (std::sqrt(v[i] / (1 - std::pow(b2, t))) + double{options.epsilon});
    p[i] -= double{options.learning_rate} * (step + double{options.weight_decay} * p[i]);
  }
}

OpCase adamw_case(const std::string& op, std::int64_t count, bool rounded) {
  OpCase c{.op = op, .shape = fmt::format("{}", count)};
  c.inout("parameters", kF32, {count});
  c.inout("m", kF32, {count}, 0.1);
  c.inout("v", kF32, {count}, 0.1);
  for (double& value : c.operands.back().initial) value = static_cast<float>(value * value);
  c.in("gradients", kF32, {count});
  if (rounded) c.out("rounded", kBF16, {count}).gpu_only = true;
  for (Operand& operand : c.operands) operand.placed = true;
  // The rounding of the very parameters that were written.
  c.also = [](const OpValues& got) {
    if (!got.contains("rounded")) return;
    for (std::size_t i = 0; i < got.at("rounded").size(); ++i) {
      const auto parameter = static_cast<float>(got.at("parameters")[i]);
      ASSERT_EQ(static_cast<float>(got.at("rounded")[i]), static_cast<float>(BFloat16(parameter))) << i;
    }
  };
  return c;
}

TEST(Ops, AdamW) {
  AdamW options;
  options.gradient_scale = 0.3F;
  options.step = 3;
  for (const std::int64_t count : {1, 5, 4096, 10007}) {
    for (const bool rounded : {false, true}) {
      OpCase c = adamw_case("adamw", count, rounded);
      c.forward = [=](const Device& device, OpTensors& t, Workspace&) { adamw(device, adamw_arguments(t, options)); };
      c.oracle_forward = [=](OpValues& v) {
        adamw_oracle(v, options, double{options.gradient_scale});
        if (rounded) v["rounded"] = v["parameters"];
      };
      check_op(c);
    }
  }
}

TEST(Ops, AdamWOverSeveralStepsFollowsTheFormula) {
  AdamW options;
  options.learning_rate = 0.01F;
  options.epsilon = 1e-8F;
  options.gradient_scale = 0.5F;
  for (std::int64_t steps = 1; steps <= 5; ++steps) {
    OpCase c = adamw_case("adamw", 3, false);
    c.shape = fmt::format("3, {} steps", steps);
    for (Operand& operand : c.operands) {
      operand.initial.assign(3, 0);
      if (operand.name == "parameters") operand.initial = {1.0, -2.0, 0.5};
      if (operand.name == "parameters") operand.bound.absolute = 1e-6;
      if (operand.name == "gradients") operand.initial = {double{0.1F}, double{-0.4F}, 0};
    }
    c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
      AdamW args = adamw_arguments(t, options);
      for (args.step = 1; args.step <= steps; ++args.step) adamw(device, args);
    };
    c.oracle_forward = [=](OpValues& v) {
      AdamW args = options;
      for (args.step = 1; args.step <= steps; ++args.step) adamw_oracle(v, args, 0.5);
    };
    check_op(c);
  }
}

// Gradients that are longer than the norm they are clipped to, shorter ones, and such as are not finite.
TEST(Ops, ClippedAdamW) {
  AdamW options;
  options.gradient_scale = 0.5F;
  options.step = 3;
  for (const std::int64_t count : {1, 5, 4096, 10007}) {
    for (const float max_norm : {0.0F, 0.6F, 1e6F}) {
      for (const double bad : {0.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        const bool finite = bad == 0;
        OpCase c = adamw_case("clipped_adamw", count, finite);
        c.shape += fmt::format(", norm {}{}", max_norm, finite ? "" : ", not finite");
        if (finite) {
          c.returned("norm", {.relative = 1e-12});
        } else {  // nothing changes
          for (Operand& operand : c.operands) {
            operand.use = Use::in;
            if (operand.name == "gradients") operand.initial[operand.initial.size() / 2] = bad;
          }
        }
        c.forward = [=](const Device& device, OpTensors& t, Workspace& workspace) {
          const double norm = clipped_adamw(device, adamw_arguments(t, options), max_norm, workspace);
          if (finite) (*t.host)["norm"] = {norm};
          EXPECT_EQ(std::isfinite(norm), finite);
        };
        c.oracle_forward = [=](OpValues& v) {
          if (!finite) return;
          double squares = 0;
          for (const double value : v["gradients"]) squares += value * value;
          const double norm = std::sqrt(squares);
          v["norm"] = {norm};
          const double clip = max_norm > 0 ? std::min(1.0, double{max_norm} / (norm + 1e-6)) : 1;
          adamw_oracle(v, options, clip * double{options.gradient_scale});
          v["rounded"] = v["parameters"];
        };
        check_op(c);
      }
    }
  }
}

TEST(Ops, SumOfValues) {
  for (const std::int64_t count : {1, 1000, 4099, quick() ? 30001 : 3000001}) {
    OpCase c{.op = "sum_of_values", .shape = fmt::format("{}", count)};
    c.in("values", kF32, {count}).placed = true;
    c.returned("sum", {.absolute = 1e-9 * static_cast<double>(count)});
    c.forward = [](const Device& device, OpTensors& t, Workspace& workspace) {
      (*t.host)["sum"] = {sum_of_values(device, t.span<const float>("values"), workspace)};
    };
    c.oracle_forward = [](OpValues& v) {
      double sum = 0;
      for (const double value : v["values"]) sum += value;
      v["sum"] = {sum};
    };
    check_op(c);
  }
}

}  // namespace
}  // namespace qdelta::testing
