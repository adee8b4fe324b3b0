// rms_norm: y = weight x / rms,  rms = sqrt(mean x^2 + epsilon), whose dx is added to;
// gated_norm: the same for each head, times silu(gate) or sigmoid(gate) where there is one, and dx is written.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "ops/op_memory.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

double inverse_rms_of(const double* x, std::int64_t width, float epsilon) {
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += x[i] * x[i];
  return 1 / std::sqrt(sum / static_cast<double>(width) + double{epsilon});
}

// dx += the gradient of weight x / rms in a row, where `d` is that of the result times the weight.
void add_norm_gradient(const double* x, const std::vector<double>& d, float epsilon, double* dx) {
  const auto width = static_cast<std::int64_t>(d.size());
  const double inverse = inverse_rms_of(x, width, epsilon);
  double dot = 0;
  for (std::int64_t i = 0; i < width; ++i) dot += d[static_cast<std::size_t>(i)] * x[i];
  for (std::int64_t i = 0; i < width; ++i)
    dx[i] += inverse * d[static_cast<std::size_t>(i)] -
             inverse * inverse * inverse * dot / static_cast<double>(width) * x[i];
}

struct NormTypes {
  DType x, y, dx;
};

double norm_weight(double weight) { return std::abs(weight) < double{kLeastNormWeight} ? kLeastNormWeight : weight; }

// What the forward saves: y of the case's x, rounded to its type, so that the oracle's backward reads the same numbers.
std::vector<double> saved_y(const OpCase& c, std::int64_t N, std::int64_t D, DType type, float epsilon) {
  const auto initial = [&](const char* name) -> const std::vector<double>& {
    return std::find_if(c.operands.begin(), c.operands.end(), [&](const Operand& o) { return o.name == name; })
        ->initial;
  };
  const std::vector<double>& x = initial("x");
  std::vector<double> y(x.size());
  for (std::int64_t n = 0; n < N; ++n) {
    const double inverse = inverse_rms_of(&x[at(n, D, 0)], D, epsilon);
    for (std::int64_t d = 0; d < D; ++d) {
      const double weight = norm_weight(initial("weight")[static_cast<std::size_t>(d)]);
      y[at(n, D, d)] = rounded_to(type, weight * x[at(n, D, d)] * inverse);
    }
  }
  return y;
}

OpCase rms_norm_case(std::int64_t N, std::int64_t D, const NormTypes& types, bool rounded) {
  constexpr float kEpsilon = 1e-5F;
  OpCase c{.op = "rms_norm",
           .shape = fmt::format("{} x {}, {} {} {}", N, D, text_of(types.x), text_of(types.y), text_of(types.dx))};
  // A single number has a norm with a kink, and where y is rounded so is the gradient.
  c.differences = D > 1 && types.y == kF32;
  c.in("x", types.x, {N, D}, 2);
  Operand& weight_operand = c.in("weight", kF32, {D});
  if (D > 2) weight_operand.initial[2] = 0;  // its gradient is not
  c.out("y", types.y, {N, D});
  c.out("inverse_rms", kF32, {N});
  c.in("saved", types.y, {N, D}).initial = saved_y(c, N, D, types.y, kEpsilon);
  c.in("dy", types.y, {N, D});
  c.sum("dx", types.dx, {N, D});
  c.sum("dweight", kF32, {D}, {.terms = N});
  if (rounded) c.out("rounded", kBF16, {N, D}).gpu_only = true;
  c.forward = [](const Device& device, OpTensors& t, Workspace&) {
    rms_norm_forward(
        device,
        {.x = t["x"], .weight = t["weight"], .y = t["y"], .inverse_rms = t["inverse_rms"], .epsilon = kEpsilon});
  };
  c.backward = [](const Device& device, OpTensors& t, Workspace& workspace) {
    rms_norm_backward(device,
                      {.y = t["saved"],
                       .weight = t["weight"],
                       .inverse_rms = t["inverse_rms"],
                       .dy = t["dy"],
                       .dx = t["dx"],
                       .dweight = t["dweight"],
                       .rounded = t["rounded"]},
                      workspace);
  };
  c.oracle_forward = [=](OpValues& v) {
    const std::vector<double>& x = v["x"];
    const std::vector<double>& weight = v["weight"];
    std::vector<double>& y = v["y"];
    for (std::int64_t n = 0; n < N; ++n) {
      const double inverse = inverse_rms_of(&x[at(n, D, 0)], D, kEpsilon);
      v["inverse_rms"][static_cast<std::size_t>(n)] = inverse;
      for (std::int64_t d = 0; d < D; ++d)
        y[at(n, D, d)] = weight[static_cast<std::size_t>(d)] * x[at(n, D, d)] * inverse;
    }
  };
  c.oracle_backward = [=](OpValues& v) {
    const std::vector<double>& y = v["saved"];
    const std::vector<double>& dy = v["dy"];
    const std::vector<double>& weight = v["weight"];
    std::vector<double>& dweight = v["dweight"];
    for (std::int64_t n = 0; n < N; ++n) {
      const double inverse = v["inverse_rms"][static_cast<std::size_t>(n)];
      double mean = 0;
      for (std::int64_t d = 0; d < D; ++d) mean += dy[at(n, D, d)] * y[at(n, D, d)] / static_cast<double>(D);
      for (std::int64_t d = 0; d < D; ++d) {
        const auto column = static_cast<std::size_t>(d);
        const double normed = y[at(n, D, d)] / norm_weight(weight[column]);
        dweight[column] += dy[at(n, D, d)] * normed;
        v["dx"][at(n, D, d)] += inverse * (weight[column] * dy[at(n, D, d)] - normed * mean);
      }
    }
    if (rounded) v["rounded"] = v["dx"];
  };
  return c;
}

TEST(Ops, RmsNorm) {
  for (const std::int64_t D : {1, 7, 37, 64, 256, 264, 1000, 1024, 1032, 2048, 8192}) {
    for (const std::int64_t N : {1, 37, 70, 700}) {
      if (N == 700 && D > 256) continue;
      if (N == 70 && D != 37) continue;
      for (const DType x : activation_types()) {
        for (const DType y : activation_types()) {
          for (const DType dx : activation_types()) {
            check_op(rms_norm_case(N, D, {x, y, dx}, false));
            if (gpu_here()) check_op(rms_norm_case(N, D, {x, y, dx}, true));
          }
        }
      }
    }
  }
}

struct GatedNormSizes {
  std::int64_t rows, heads, width;
  bool gated, y_again;
  GateActivation activation = GateActivation::silu;
};

// The forward for one element, from its row: what comes before the gate, and the gate.
struct GatedNormElement {
  double norm, gate, gate_slope;
};
void for_each_gated(const GatedNormSizes& n, OpValues& v, float epsilon,
                    const std::function<void(std::size_t at, std::size_t column, const GatedNormElement&)>& visit) {
  const std::vector<double>& x = v["x"];
  const std::vector<double>& gate = v["gate"];
  for (std::int64_t head = 0; head < n.rows * n.heads; ++head) {
    const double inverse = inverse_rms_of(&x[at(head, n.width, 0)], n.width, epsilon);
    for (std::int64_t i = 0; i < n.width; ++i) {
      const std::size_t element = at(head, n.width, i);
      GatedNormElement is{.norm = x[element] * inverse, .gate = 1, .gate_slope = 0};
      if (n.gated) {
        const double z = gate[element];
        const double s = sigmoid(z);
        const bool silu = n.activation == GateActivation::silu;
        is.gate = silu ? z * s : s;
        is.gate_slope = silu ? s * (1 + z * (1 - s)) : s * (1 - s);
      }
      visit(element, static_cast<std::size_t>(i), is);
    }
  }
}

std::string gate_name(const GatedNormSizes& n) {
  if (!n.gated) return ", no gate";
  return n.activation == GateActivation::sigmoid ? ", sigmoid" : "";
}

OpCase gated_norm_case(const GatedNormSizes& n, DType type) {
  constexpr float kEpsilon = 1e-6F;
  const Shape shape{n.rows, n.heads * n.width};
  OpCase c{.op = "gated_norm", .shape = fmt::format("{} x {} x {}{}", n.rows, n.heads, n.width, gate_name(n))};
  c.in("x", type, shape);
  if (n.gated) c.in("gate", type, shape, 2);
  c.in("weight", kF32, {n.width});
  c.out("y", type, shape);
  if (n.y_again) {  // in the place of dy
    c.inout("dy", type, shape);
  } else {
    c.in("dy", type, shape);
  }
  c.out("dx", type, shape);
  if (n.gated) c.out("dgate", type, shape);
  c.sum("dweight", kF32, {n.width}, {.terms = n.rows});
  c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
    gated_norm_forward(device, {.x = t["x"],
                                .gate = t["gate"],
                                .weight = t["weight"],
                                .y = t["y"],
                                .epsilon = kEpsilon,
                                .activation = n.activation});
  };
  c.backward = [=](const Device& device, OpTensors& t, Workspace& workspace) {
    gated_norm_backward(device,
                        {.x = t["x"],
                         .gate = t["gate"],
                         .weight = t["weight"],
                         .dy = t["dy"],
                         .dx = t["dx"],
                         .dgate = t["dgate"],
                         .dweight = t["dweight"],
                         .epsilon = kEpsilon,
                         .y = n.y_again ? t["dy"] : TensorView(),
                         .activation = n.activation},
                        workspace);
  };
  c.oracle_forward = [=](OpValues& v) {
    std::vector<double>& y = v["y"];
    const std::vector<double>& weight = v["weight"];
    for_each_gated(n, v, kEpsilon, [&](std::size_t element, std::size_t column, const GatedNormElement& is) {
      y[element] = weight[column] * is.norm * is.gate;
    });
  };
  c.oracle_backward = [=](OpValues& v) {
    const std::vector<double>& weight = v["weight"];
    std::vector<double>& dy = v["dy"];
    std::vector<double> scaled(dy.size());
    for_each_gated(n, v, kEpsilon, [&](std::size_t element, std::size_t column, const GatedNormElement& is) {
      scaled[element] = dy[element] * weight[column] * is.gate;
      v["dweight"][column] += dy[element] * is.norm * is.gate;
      if (n.gated) v["dgate"][element] = dy[element] * weight[column] * is.norm * is.gate_slope;
    });
    v["dx"].assign(v["dx"].size(), 0);
    for (std::int64_t head = 0; head < n.rows * n.heads; ++head) {
      const std::size_t first = at(head, n.width, 0);
      const auto begin = scaled.begin() + static_cast<std::ptrdiff_t>(first);
      add_norm_gradient(&v["x"][first], {begin, begin + n.width}, kEpsilon, &v["dx"][first]);
    }
    if (n.y_again) dy = v["y"];
  };
  return c;
}

TEST(Ops, GatedNorm) {
  for (const std::int64_t V : {16, 18, 128, 256, 300, 1100}) {
    for (const std::int64_t heads : {1, 3}) {
      for (const DType type : activation_types()) {
        for (const bool gated : {true, false})
          check_op(gated_norm_case({45, heads, V, gated, heads > 1 || V == 18}, type));
        check_op(gated_norm_case({45, heads, V, true, heads > 1 || V == 18, GateActivation::sigmoid}, type));
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
