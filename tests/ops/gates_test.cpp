// step = softplus(a + dt_bias),  g = -exp(A_log) step,  beta = factor sigmoid(b) or step,
// lambda = factor sigmoid(l + lambda_bias)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

constexpr double kFactor = 2;
constexpr float kConstantLambdaBias = -0.8F;

// Which inputs there are.
struct GateInputs {
  bool a, b, l, bias, step_is_beta;
};

GatesForward gates_arguments(const OpTensors& t, const GateInputs& which) {
  return {.a = which.a ? t["a"] : TensorView(),
          .b = which.b ? t["b"] : TensorView(),
          .l = which.l ? t["l"] : TensorView(),
          .A_log = t["A_log"],
          .dt_bias = t["dt_bias"],
          .lambda_bias = t["lambda_bias"],
          .constant_lambda_bias = kConstantLambdaBias,
          .g = t["g"],
          .beta = t["beta"],
          .lambda = t["lambda"],
          .step_is_beta = which.step_is_beta,
          .factor = static_cast<float>(kFactor)};
}

double lambda_bias_of(OpValues& v, const GateInputs& which) {
  return which.bias ? v["lambda_bias"][0] : double{kConstantLambdaBias};
}

void gates_oracle_forward(OpValues& v, const GateInputs& which, std::size_t heads) {
  for (std::size_t i = 0; which.a && i < v["g"].size(); ++i) {
    const double step = std::log1p(std::exp(v["a"][i] + v["dt_bias"][i % heads]));
    v["g"][i] = -std::exp(v["A_log"][i % heads]) * step;
    if (which.step_is_beta) v["beta"][i] = step;
  }
  for (std::size_t i = 0; which.b && i < v["beta"].size(); ++i) v["beta"][i] = kFactor * sigmoid(v["b"][i]);
  const double bias = lambda_bias_of(v, which);
  for (std::size_t i = 0; which.l && i < v["lambda"].size(); ++i) v["lambda"][i] = kFactor * sigmoid(v["l"][i] + bias);
}

void gates_oracle_backward(OpValues& v, const GateInputs& which, std::size_t heads) {
  for (std::size_t i = 0; which.a && i < v["g"].size(); ++i) {
    const std::size_t head = i % heads;
    const double slope = sigmoid(v["a"][i] + v["dt_bias"][head]);
    const double d_step = -v["dg"][i] * std::exp(v["A_log"][head]) + (which.step_is_beta ? v["dbeta"][i] : 0);
    v["da"][i] = d_step * slope;
    v["ddt_bias"][head] += d_step * slope;
    v["dA_log"][head] += v["dg"][i] * v["g"][i];
  }
  // d is dy times the slope of factor sigmoid(x + bias).
  const auto through_sigmoid = [](const std::vector<double>& x, double bias, const std::vector<double>& dy,
                                  std::vector<double>& d) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double s = sigmoid(x[i] + bias);
      d[i] = dy[i] * kFactor * s * (1 - s);
    }
  };
  if (which.b) through_sigmoid(v["b"], 0, v["dbeta"], v["db"]);
  if (which.l) through_sigmoid(v["l"], lambda_bias_of(v, which), v["dlambda"], v["dl"]);
  for (std::size_t i = 0; which.bias && i < v["dl"].size(); ++i) v["dlambda_bias"][0] += v["dl"][i];
}

OpCase gates_case(std::int64_t N, std::int64_t HV, const GateInputs& which, DType type) {
  const Shape shape{N, HV};
  OpCase c{.op = "gates",
           .shape = fmt::format("{} x {},{}{}{}{}", N, HV, which.a ? " a" : "", which.b ? " b" : "",
                                which.l ? " l" : "", which.bias ? " bias" : "")};
  // A result that is left out keeps what was there.
  const auto result = [&](const std::string& name, bool wanted) {
    if (wanted) {
      c.out(name, kF32, shape);
    } else {
      c.in(name, kF32, shape);
    }
  };
  // With a factor of 2 the slope at the ends is a difference of nearly equal numbers.
  const Bound slope{.relative = type == kF32 ? 2e-5 : 0};
  if (which.a) c.in("a", type, shape, 3);
  if (which.b) c.in("b", type, shape, 3);
  if (which.l) c.in("l", type, shape, 3);
  c.in("A_log", kF32, {HV});
  c.in("dt_bias", kF32, {HV});
  if (which.bias) c.in("lambda_bias", kF32, {1});
  result("g", which.a);
  result("beta", which.b || which.step_is_beta);
  result("lambda", which.l);
  for (const char* name : {"dg", "dbeta", "dlambda"}) c.in(name, kF32, shape);
  if (which.a) {
    c.out("da", type, shape);
    c.sum("dA_log", kF32, {HV}, {.terms = N});
    c.sum("ddt_bias", kF32, {HV}, {.terms = N});
  } else {
    c.in("dA_log", kF32, {HV});
    c.in("ddt_bias", kF32, {HV});
  }
  if (which.b) c.out("db", type, shape, slope);
  if (which.l) c.out("dl", type, shape, slope);
  if (which.bias) c.sum("dlambda_bias", kF32, {1}, {.terms = N * HV});
  c.forward = [=](const Device& device, OpTensors& t, Workspace&) { gates_forward(device, gates_arguments(t, which)); };
  c.backward = [=](const Device& device, OpTensors& t, Workspace& workspace) {
    gates_backward(device,
                   {.forward = gates_arguments(t, which),
                    .dg = t["dg"],
                    .dbeta = t["dbeta"],
                    .dlambda = t["dlambda"],
                    .da = t["da"],
                    .db = t["db"],
                    .dl = t["dl"],
                    .dA_log = t["dA_log"],
                    .ddt_bias = t["ddt_bias"],
                    .dlambda_bias = t["dlambda_bias"]},
                   workspace);
  };
  const auto heads = static_cast<std::size_t>(HV);
  c.oracle_forward = [=](OpValues& v) { gates_oracle_forward(v, which, heads); };
  c.oracle_backward = [=](OpValues& v) { gates_oracle_backward(v, which, heads); };
  return c;
}

TEST(Ops, Gates) {
  for (const std::int64_t HV : {1, 5, 6, 33, 300}) {
    for (const std::int64_t N : {1, 90, 300}) {
      if ((N == 90) != (HV == 5)) continue;
      for (const GateInputs& which : {GateInputs{true, true, true, true, false},
                                      {true, true, false, false, false},
                                      {true, false, false, false, true},
                                      {false, true, true, false, false}}) {
        for (const DType type : activation_types()) check_op(gates_case(N, HV, which, type));
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
