// to = from, row by row, converted; with a row stride of 0 in `from` all rows are the same one.
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
        }
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
