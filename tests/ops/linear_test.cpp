// y = add + x w^T,  dx = dy w (or +=),  dw += dy^T x
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

enum class Add { nothing, itself, other };

struct LinearSizes {
  std::int64_t rows, in, out;
};

// `to` += a b, [n, k] times [k, m]; any of a and b may be transposed.
struct Product {
  std::int64_t n, k, m;
  bool a_transposed, b_transposed;
};
void add_product(const Product& p, const std::vector<double>& a, const std::vector<double>& b,
                 std::vector<double>& to) {
  for (std::int64_t i = 0; i < p.n; ++i) {
    for (std::int64_t j = 0; j < p.m; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k)
        sum += a[p.a_transposed ? at(k, p.n, i) : at(i, p.k, k)] * b[p.b_transposed ? at(j, p.k, k) : at(k, p.m, j)];
      to[at(i, p.m, j)] += sum;
    }
  }
}

OpCase linear_case(const LinearSizes& n, DType type, DType out, Add add) {
  const std::int64_t N = n.rows;
  const std::int64_t I = n.in;
  const std::int64_t O = n.out;
  const bool sums = add != Add::nothing;
  OpCase c{.op = "linear", .shape = fmt::format("{} x {} to {}, {}", N, I, O, text_of(out))};
  c.in("x", type, {N, I});
  c.in("w", type, {O, I}, 1 / std::sqrt(static_cast<double>(I)));
  c.in("dy", type, {N, O});
  if (add == Add::other) c.in("add", out, {N, O});
  if (add == Add::itself) {
    c.inout("y", out, {N, O});
  } else {
    c.out("y", out, {N, O});
  }
  if (sums) {
    c.sum("dx", out, {N, I});
  } else {
    c.out("dx", out, {N, I});
  }
  c.sum("dw", kF32, {O, I});
  c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
    linear_forward(device, {.x = t["x"], .w = t["w"], .y = t["y"], .add = add == Add::itself ? t["y"] : t["add"]});
  };
  c.backward = [=](const Device& device, OpTensors& t, Workspace&) {
    linear_backward(device, {.x = t["x"], .w = t["w"], .dy = t["dy"], .dx = t["dx"], .dw = t["dw"], .add_dx = sums});
  };
  c.oracle_forward = [=](OpValues& v) {
    if (add == Add::nothing) v["y"].assign(v["y"].size(), 0);
    if (add == Add::other) v["y"] = v["add"];
    add_product({N, I, O, false, true}, v["x"], v["w"], v["y"]);
  };
  c.oracle_backward = [=](OpValues& v) {
    if (!sums) v["dx"].assign(v["dx"].size(), 0);
    add_product({N, O, I, false, false}, v["dy"], v["w"], v["dx"]);
    add_product({O, N, I, true, false}, v["dy"], v["x"], v["dw"]);
  };
  return c;
}

TEST(Ops, Linear) {
  for (const LinearSizes& n : {LinearSizes{1, 16, 24},
                               {2, 520, 33},
                               {3, 5, 7},
                               {3, 64, 40},
                               {4, 33, 7},
                               {33, 40, 72},
                               {40, 33, 300},
                               {130, 96, 256},
                               {300, 16, 9},
                               {300, 129, 65}}) {
    for (const DType type : activation_types()) {
      for (const DType out : activation_types()) {
        if (type == kF32 && out == kBF16) continue;
        for (const Add add : {Add::nothing, Add::itself, Add::other}) check_op(linear_case(n, type, out, add));
      }
    }
  }
}

// Large enough that threads share the work.
TEST(Ops, LinearOfManyRows) { check_op(linear_case({600, 130, 700}, kF32, kF32, Add::nothing)); }

// The accuracy of true float32 products, which tf32 does not have.
TEST(Ops, LinearInFloat32IsNotRounded) {
  const std::int64_t N = 256;
  const std::int64_t I = 512;
  const std::int64_t O = 384;
  OpCase c{.op = "linear", .shape = "not rounded"};
  c.in("x", kF32, {N, I});
  c.in("w", kF32, {O, I});
  c.out("y", kF32, {N, O}, {.relative = 1e-6});
  c.forward = [](const Device& device, OpTensors& t, Workspace&) {
    linear_forward(device, {.x = t["x"], .w = t["w"], .y = t["y"], .add = {}});
  };
  c.oracle_forward = [=](OpValues& v) {
    v["y"].assign(v["y"].size(), 0);
    add_product({N, I, O, false, true}, v["x"], v["w"], v["y"]);
  };
  check_op(c);
}

using Floats = std::vector<float>;

TensorView view_of(Floats& values, const Shape& shape) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::f32, shape};
}

TEST(LinearOnCpu, AFewRowsAreTheSameAloneAndTogether) {
  Random random(10);
  const std::int64_t I = 77;
  const std::int64_t O = 131;
  Floats x(static_cast<std::size_t>(9 * I));
  Floats w(static_cast<std::size_t>(O * I));
  for (float& value : x) value = random.normal();
  for (float& value : w) value = random.normal();
  Floats together(static_cast<std::size_t>(9 * O));
  linear_forward({.threads = 2},
                 {.x = view_of(x, {9, I}), .w = view_of(w, {O, I}), .y = view_of(together, {9, O}), .add = {}});
  for (std::int64_t r = 0; r < 9; ++r) {
    Floats row(x.begin() + r * I, x.begin() + (r + 1) * I);
    Floats alone(static_cast<std::size_t>(O));
    linear_forward({.threads = 1},
                   {.x = view_of(row, {1, I}), .w = view_of(w, {O, I}), .y = view_of(alone, {1, O}), .add = {}});
    EXPECT_EQ(alone, Floats(together.begin() + r * O, together.begin() + (r + 1) * O)) << "row " << r;
  }
}

// Rows of x that overlap are no matrix for oneDNN.
TEST(LinearOnCpu, AProductThatTheLibraryRefusesIsAnError) {
  const std::int64_t N = 32;  // more than few
  Floats x(static_cast<std::size_t>(N) * 8);
  Floats w(5 * 8);
  Floats y(static_cast<std::size_t>(N) * 5);
  TensorView overlapping = view_of(x, {N, 8});
  overlapping.stride[0] = 4;
  expect_error(Status::invalid_argument, {"oneDNN", "[32, 8] by [8, 5]", "invalid"}, [&] {
    linear_forward({.threads = 1}, {.x = overlapping, .w = view_of(w, {5, 8}), .y = view_of(y, {N, 5}), .add = {}});
    return 0;
  });
}

}  // namespace
}  // namespace qdelta::testing
