// The `top` largest logits of each row, the largest first, of equal ones the first.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

OpCase top_logits_case(std::int64_t rows, std::int64_t vocabulary, std::int64_t top) {
  OpCase c{.op = "top_logits", .shape = fmt::format("{} of {} x {}", top, rows, vocabulary)};
  c.in("logits", kF32, {rows, vocabulary}, 3);
  c.out("tokens", DType::i32, {rows * top}, kExact);
  c.out("values", kF32, {rows * top}, kExact);
  c.forward = [=](const Device& device, OpTensors& t, Workspace&) {
    top_logits(device, {.logits = t["logits"],
                        .top = top,
                        .tokens = t.span<std::int32_t>("tokens"),
                        .values = t.span<float>("values")});
  };
  c.oracle_forward = [=](OpValues& v) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* z = &v["logits"][at(r, vocabulary, 0)];
      std::vector<std::int64_t> order(static_cast<std::size_t>(vocabulary));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [z](std::int64_t a, std::int64_t b) { return z[a] > z[b]; });
      for (std::int64_t k = 0; k < top; ++k) {
        const std::int64_t token = order[static_cast<std::size_t>(k)];
        v["tokens"][at(r, top, k)] = static_cast<double>(token);
        v["values"][at(r, top, k)] = z[token];
      }
    }
  };
  return c;
}

TEST(Ops, TopLogits) {
  for (const auto& [vocabulary, top] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {2, 2}, {5, 1}, {7, 7}, {100, 20}, {600, 600}, {1003, 20}, {32000, 1}, {32000, 20}}) {
    check_op(top_logits_case(5, vocabulary, top));
  }
}

// Equal logits, in one thread's columns and in those of different threads, rows of nothing else, and infinities.
TEST(Ops, TopLogitsOfEqualOnesTheFirst) {
  constexpr std::int64_t kVocabulary = 1700;
  OpCase c = top_logits_case(4, kVocabulary, 20);
  c.shape += ", equal";
  for (Operand& operand : c.operands) {
    if (operand.name != "logits") continue;
    for (std::int64_t i = 0; i < kVocabulary; ++i) {
      operand.initial[at(0, kVocabulary, i)] = std::floor(operand.initial[at(0, kVocabulary, i)]);
      operand.initial[at(1, kVocabulary, i)] = 0.5;
      operand.initial[at(2, kVocabulary, i)] = i % 512 == 3 ? 7 : -static_cast<double>(i);
      operand.initial[at(3, kVocabulary, i)] = i == 900 ? INFINITY : i % 300 == 0 ? 1 : -INFINITY;
    }
  }
  check_op(c);
}

TEST(Ops, TopLogitsChecksItsArguments) {
  std::vector<float> logits(6);
  std::vector<std::int32_t> tokens(2);
  std::vector<float> values(2);
  TopLogits args{.logits = {reinterpret_cast<const std::byte*>(logits.data()), kF32, {2, 3}},
                 .top = 4,
                 .tokens = tokens,
                 .values = values};
  EXPECT_NE(message_of([&] { top_logits({}, args); }).find("the 4 largest of 3 logits"), std::string::npos);
  args.top = 2;
  EXPECT_NE(message_of([&] { top_logits({}, args); }).find("2 tokens and 2 values for 2 of 2 rows"), std::string::npos);
}

}  // namespace
}  // namespace qdelta::testing
