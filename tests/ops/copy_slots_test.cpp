// rows[n] = pool[slots[n]];   pool[slots[n]] = rows[n]
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

const std::vector<std::int64_t> kSlots{4, 0, 5, 2};

TensorView flat(const TensorView& values, std::int64_t rows) {
  return {values.data, kF32, {rows, values.shape.elements() / rows}};
}

// Operands are vectors, since the harness would put the rows of matrices apart.
OpCase slots_case(const std::string& op, std::int64_t width) {
  OpCase c{.op = op, .shape = fmt::format("{} of 7 x {}", kSlots.size(), width)};
  c.integers("slots", DType::i64, kSlots);
  return c;
}

TEST(Ops, GatherSlots) {
  for (const std::int64_t width : {1, 3, 64, 8193, 20000}) {
    OpCase c = slots_case("gather_slots", width);
    c.in("pool", kF32, {7 * width});
    c.out("rows", kF32, {4 * width}, kExact);
    c.forward = [](const Device& device, OpTensors& t, Workspace&) {
      gather_slots(
          device,
          {.pool = flat(t["pool"], 7), .slots = t.span<const std::int64_t>("slots"), .rows = flat(t["rows"], 4)});
    };
    c.oracle_forward = [=](OpValues& v) {
      for (std::size_t n = 0; n < kSlots.size(); ++n) {
        for (std::int64_t i = 0; i < width; ++i) {
          v["rows"][at(static_cast<std::int64_t>(n), width, i)] = v["pool"][at(kSlots[n], width, i)];
        }
      }
    };
    check_op(c);
  }
}

TEST(Ops, ScatterSlots) {
  for (const std::int64_t width : {1, 3, 64, 8193, 20000}) {
    OpCase c = slots_case("scatter_slots", width);
    c.in("rows", kF32, {4 * width});
    c.inout("pool", kF32, {7 * width}, 1, kExact);
    c.forward = [](const Device& device, OpTensors& t, Workspace&) {
      scatter_slots(
          device,
          {.pool = flat(t["pool"], 7), .slots = t.span<const std::int64_t>("slots"), .rows = flat(t["rows"], 4)});
    };
    c.oracle_forward = [=](OpValues& v) {
      for (std::size_t n = 0; n < kSlots.size(); ++n) {
        for (std::int64_t i = 0; i < width; ++i) {
          v["pool"][at(kSlots[n], width, i)] = v["rows"][at(static_cast<std::int64_t>(n), width, i)];
        }
      }
    };
    check_op(c);
  }
}

TEST(Ops, SlotsChecksItsArguments) {
  std::vector<float> pool(12), rows(8);
  const std::vector<std::int64_t> slots{1, 3};
  const auto view = [](std::vector<float>& values, std::int64_t count) {
    return flat({reinterpret_cast<std::byte*>(values.data()), kF32, {static_cast<std::int64_t>(values.size())}}, count);
  };
  const CopySlots args{.pool = view(pool, 3), .slots = slots, .rows = view(rows, 2)};
  EXPECT_NE(message_of([&] { gather_slots({}, args); }).find("there is no state 3 in a pool of 3"), std::string::npos);
  const CopySlots wide{.pool = view(pool, 4), .slots = slots, .rows = view(rows, 2)};
  EXPECT_NE(message_of([&] { scatter_slots({}, wide); }).find("2 slots of a pool"), std::string::npos);
}

}  // namespace
}  // namespace qdelta::testing
