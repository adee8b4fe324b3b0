// y = silu(gate) . up
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

OpCase swiglu_case(const Shape& shape, DType type, bool y_again) {
  OpCase c{.op = "swiglu", .shape = fmt::format("{} x {}", shape[0], shape[1])};
  c.in("gate", type, shape, 4);
  c.in("up", type, shape);
  c.out("y", type, shape);
  if (y_again) {  // in the place of dy
    c.inout("dy", type, shape);
  } else {
    c.in("dy", type, shape);
  }
  c.out("dgate", type, shape);
  c.out("dup", type, shape);
  c.forward = [](const Device& device, OpTensors& t, Workspace&) {
    swiglu_forward(device, {.gate = t["gate"], .up = t["up"], .y = t["y"]});
  };
  c.backward = [=](const Device& device, OpTensors& t, Workspace&) {
    swiglu_backward(device, {.gate = t["gate"],
                             .up = t["up"],
                             .dy = t["dy"],
                             .dgate = t["dgate"],
                             .dup = t["dup"],
                             .y = y_again ? t["dy"] : TensorView()});
  };
  c.oracle_forward = [](OpValues& v) {
    for (std::size_t i = 0; i < v["y"].size(); ++i) v["y"][i] = v["gate"][i] * sigmoid(v["gate"][i]) * v["up"][i];
  };
  c.oracle_backward = [=](OpValues& v) {
    for (std::size_t i = 0; i < v["dy"].size(); ++i) {
      const double z = v["gate"][i];
      const double s = sigmoid(z);
      v["dgate"][i] = v["dy"][i] * v["up"][i] * s * (1 + z * (1 - s));
      v["dup"][i] = v["dy"][i] * z * s;
    }
    if (y_again) v["dy"] = v["y"];
  };
  return c;
}

TEST(Ops, Swiglu) {
  for (const std::int64_t F : {1, 8, 37, 41, 264, 1000}) {
    for (const DType type : activation_types()) check_op(swiglu_case({51, F}, type, F > 8));
  }
}

}  // namespace
}  // namespace qdelta::testing
