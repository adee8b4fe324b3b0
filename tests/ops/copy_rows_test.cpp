// to = from (or +=), row by row, converted; with a row stride of 0 in `from` all rows are the same one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

TEST(Ops, CopyRows) {
  for (const Shape& shape : {Shape{37, 72}, Shape{5, 6}, Shape{1, 1}}) {
    for (const bool repeated : {false, true}) {
      for (const DType from : activation_types()) {
        for (const DType to : activation_types()) {
          OpCase c{.op = "copy_rows",
                   .shape = fmt::format("{} x {}{}", shape[0], shape[1], repeated ? ", one row" : "")};
          c.in("from", from, {repeated ? 1 : shape[0], shape[1]});
          c.out("to", to, shape, kExact);
          c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
            TensorView source = t["from"];
            source.shape = shape;
            if (repeated) source.stride[0] = 0;
            copy_rows(device, {.from = source, .to = t["to"]});
          };
          c.oracle_forward = [](OpValues& v) {
            const std::vector<double>& source = v["from"];
            for (std::size_t i = 0; i < v["to"].size(); ++i) v["to"][i] = source[i % source.size()];
          };
          check_op(c);
          c.op = "copy_rows, added";
          c.operands.pop_back();
          c.inout("to", to, shape);
          c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
            TensorView source = t["from"];
            source.shape = shape;
            if (repeated) source.stride[0] = 0;
            copy_rows(device, {.from = source, .to = t["to"], .add = true});
          };
          c.oracle_forward = [](OpValues& v) {
            const std::vector<double>& source = v["from"];
            for (std::size_t i = 0; i < v["to"].size(); ++i) v["to"][i] += source[i % source.size()];
          };
          check_op(c);
        }
      }
    }
  }
}

// out += a b.
TEST(Ops, AddProduct) {
  for (const std::int64_t count : {1, 255, 1000}) {
    OpCase c{.op = "add_product", .shape = fmt::format("{}", count)};
    c.in("a", kF32, {count});
    c.in("b", kF32, {count});
    c.inout("out", kF32, {count});
    c.forward = [](const Device& device, OpTensors& t, Workspace&) {
      add_product(device, {.a = t.span<float>("a"), .b = t.span<float>("b"), .out = t.span<float>("out")});
    };
    c.oracle_forward = [](OpValues& v) {
      for (std::size_t i = 0; i < v["out"].size(); ++i) v["out"][i] += v["a"][i] * v["b"][i];
    };
    check_op(c);
  }
}

}  // namespace
}  // namespace qdelta::testing
