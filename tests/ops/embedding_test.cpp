// y[n] = table[ids[n]],  dtable[ids[n]] += dy[n]
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

OpCase embedding_case(const std::vector<std::int32_t>& ids, const Shape& table, DType type, DType out) {
  const auto N = static_cast<std::int64_t>(ids.size());
  const std::int64_t D = table[1];
  OpCase c{.op = "embedding", .shape = fmt::format("{} of {} x {}", N, table[0], D)};
  c.integers("ids", DType::i32, ids);
  c.in("table", type, table);
  c.out("y", out, {N, D});
  c.in("dy", type, {N, D});
  c.sum("dtable", kF32, table);
  c.forward = [](const Device& device, OpTensors& t, Workspace&) {
    embedding_forward(device, {.ids = t.span<const std::int32_t>("ids"), .table = t["table"], .y = t["y"]});
  };
  c.backward = [](const Device& device, OpTensors& t, Workspace& workspace) {
    embedding_backward(device, {.ids = t.span<const std::int32_t>("ids"), .dy = t["dy"], .dtable = t["dtable"]},
                       workspace);
  };
  c.oracle_forward = [=](OpValues& v) {
    std::vector<double>& y = v["y"];
    const std::vector<double>& from = v["table"];
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t d = 0; d < D; ++d) y[at(n, D, d)] = from[at(ids[static_cast<std::size_t>(n)], D, d)];
    }
  };
  c.oracle_backward = [=](OpValues& v) {
    std::vector<double>& dtable = v["dtable"];
    const std::vector<double>& dy = v["dy"];
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t d = 0; d < D; ++d) dtable[at(ids[static_cast<std::size_t>(n)], D, d)] += dy[at(n, D, d)];
    }
  };
  return c;
}

TEST(Ops, Embedding) {
  Random random(3);
  struct Sizes {
    std::int64_t rows, width, vocabulary;
  };
  for (const Sizes& n :
       {Sizes{1, 8, 5}, {6, 70, 8}, {700, 33, 50}, {3000, 64, 40}, {257, 1032, 1000}, {64, 16, 70000}}) {
    for (const DType type : activation_types()) {
      for (const DType out : activation_types()) {
        std::vector<std::int32_t> ids;  // one of them often
        for (std::int64_t i = 0; i < n.rows; ++i)
          ids.push_back(static_cast<std::int32_t>(chance(random, 0.4) ? 3 : random.integer(0, n.vocabulary - 1)));
        check_op(embedding_case(ids, {n.vocabulary, n.width}, type, out));
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
