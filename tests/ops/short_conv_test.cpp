// y[t][c] = silu( bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c] ), with zeros, a state, or the rows
// `before` the first sequence, before the first token
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

struct ConvSizes {
  std::vector<std::int64_t> offsets;
  std::int64_t taps, channels;
  bool bias, state, before = false;

  [[nodiscard]] std::int64_t rows() const { return offsets.back(); }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

// Every product of a sum: visit(row of y, row of x, channel, tap), with the row of x counted from the first of its
// sequence and negative before it.
struct ConvTerm {
  std::int64_t sequence, first, row, before, channel, tap;
};
template <class Visit>
void for_each_term(const ConvSizes& n, const Visit& visit) {
  for (std::int64_t s = 0; s < n.sequences(); ++s) {
    const std::int64_t first = n.offsets[static_cast<std::size_t>(s)];
    for (std::int64_t t = first; t < n.offsets[static_cast<std::size_t>(s) + 1]; ++t) {
      for (std::int64_t c = 0; c < n.channels; ++c) {
        for (std::int64_t j = 0; j < n.taps; ++j) visit({s, first, t, t - first - n.taps + 1 + j, c, j});
      }
    }
  }
}

// The slot of a sequence's state: in a larger pool, in another order.
std::int64_t slot_of(const ConvSizes& n, std::int64_t sequence) { return n.sequences() - sequence; }

// Before the activation.
std::vector<double> convolved(const ConvSizes& n, OpValues& v) {
  std::vector<double> sums(static_cast<std::size_t>(n.rows() * n.channels));
  const std::vector<double>& x = v["x"];
  const std::vector<double>& weight = v["weight"];
  const std::vector<double>& bias = v["bias"];
  const std::vector<double>& state = v["state"];
  const std::vector<double>& before = v["before"];
  for (std::size_t i = 0; n.bias && i < sums.size(); ++i) sums[i] = bias[i % static_cast<std::size_t>(n.channels)];
  for_each_term(n, [&](const ConvTerm& term) {
    double value = 0;
    if (term.before >= 0) {
      value = x[at(term.first + term.before, n.channels, term.channel)];
    } else if (n.state) {
      value = state[at(slot_of(n, term.sequence) * (n.taps - 1) + n.taps - 1 + term.before, n.channels, term.channel)];
    } else if (n.before && term.sequence == 0) {
      value = before[at(n.taps - 1 + term.before, n.channels, term.channel)];
    }
    sums[at(term.row, n.channels, term.channel)] += weight[at(term.channel, n.taps, term.tap)] * value;
  });
  return sums;
}

// The last taps - 1 rows of what was before and the sequence.
void update_states(const ConvSizes& n, OpValues& v) {
  const std::vector<double> old = v["state"];
  const std::int64_t keep = n.taps - 1;
  for (std::int64_t s = 0; s < n.sequences(); ++s) {
    const std::int64_t first = n.offsets[static_cast<std::size_t>(s)];
    const std::int64_t length = n.offsets[static_cast<std::size_t>(s) + 1] - first;
    for (std::int64_t i = 0; i < keep; ++i) {
      const std::int64_t row = length + i - keep;
      for (std::int64_t c = 0; c < n.channels; ++c) {
        v["state"][at(slot_of(n, s) * keep + i, n.channels, c)] =
            row >= 0 ? v["x"][at(first + row, n.channels, c)]
                     : old[at(slot_of(n, s) * keep + keep + row, n.channels, c)];
      }
    }
  }
}

void short_conv_oracle_backward(const ConvSizes& n, OpValues& v) {
  std::vector<double> d = convolved(n, v);
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double s = sigmoid(d[i]);
    d[i] = v["dy"][i] * s * (1 + d[i] * (1 - s));
    if (n.bias) v["dbias"][i % static_cast<std::size_t>(n.channels)] += d[i];
  }
  std::vector<double>& dx = v["dx"];
  std::vector<double>& dweight = v["dweight"];
  const std::vector<double>& x = v["x"];
  const std::vector<double>& weight = v["weight"];
  std::vector<double>& dbefore = v["dbefore"];
  dx.assign(dx.size(), 0);
  dbefore.assign(dbefore.size(), 0);
  for_each_term(n, [&](const ConvTerm& term) {
    const bool is_before = term.before < 0;
    if (is_before && !(n.before && term.sequence == 0)) return;
    const std::size_t from = is_before ? at(n.taps - 1 + term.before, n.channels, term.channel)
                                       : at(term.first + term.before, n.channels, term.channel);
    const std::size_t tap = at(term.channel, n.taps, term.tap);
    const double gradient = d[at(term.row, n.channels, term.channel)];
    (is_before ? dbefore : dx)[from] += weight[tap] * gradient;
    dweight[tap] += (is_before ? v["before"] : x)[from] * gradient;
  });
}

OpCase short_conv_case(const ConvSizes& n, DType type) {
  const Shape shape{n.rows(), n.channels};
  OpCase c{.op = "short_conv",
           .shape = fmt::format("{} in {} x {}, W {}{}{}", n.rows(), n.sequences(), n.channels, n.taps,
                                n.bias ? " bias" : "",
                                n.state    ? " state"
                                : n.before ? " before"
                                           : "")};
  c.differences = n.channels < 1000;  // the same formula, and time
  c.integers("offsets", DType::i64, n.offsets);
  c.in("x", type, shape);
  c.in("weight", kF32, {n.channels, n.taps}).placed = false;
  if (n.bias) c.in("bias", kF32, {n.channels});
  c.out("y", type, shape);
  if (n.state) {
    std::vector<std::int64_t> slots;
    for (std::int64_t s = 0; s < n.sequences(); ++s) slots.push_back(slot_of(n, s));
    c.integers("slots", DType::i64, slots);
    c.inout("state", kF32, {n.sequences() + 2, n.taps - 1, n.channels}, 1, kExact);
  }
  if (n.before) c.in("before", kF32, {n.taps - 1, n.channels}).placed = false;
  c.forward = [](const Device& device, OpTensors& t, Workspace& workspace) {
    short_conv_forward(device,
                       {.x = t["x"],
                        .weight = t["weight"],
                        .y = t["y"],
                        .offsets = t.span<const std::int64_t>("offsets"),
                        .state = t["state"],
                        .slots = t.span<const std::int64_t>("slots"),
                        .bias = t["bias"],
                        .before = t["before"]},
                       workspace);
  };
  c.oracle_forward = [=](OpValues& v) {
    const std::vector<double> sums = convolved(n, v);
    for (std::size_t i = 0; i < sums.size(); ++i) v["y"][i] = sums[i] * sigmoid(sums[i]);
    if (n.state) update_states(n, v);
  };
  if (n.state) return c;  // training starts without
  c.in("dy", type, shape);
  c.out("dx", type, shape);
  c.sum("dweight", kF32, {n.channels, n.taps}, {.terms = n.rows()}).placed = false;
  if (n.bias) c.sum("dbias", kF32, {n.channels}, {.terms = n.rows()});
  if (n.before) c.out("dbefore", kF32, {n.taps - 1, n.channels}).placed = false;
  c.backward = [](const Device& device, OpTensors& t, Workspace& workspace) {
    short_conv_backward(device,
                        {.x = t["x"],
                         .weight = t["weight"],
                         .dy = t["dy"],
                         .dx = t["dx"],
                         .dweight = t["dweight"],
                         .offsets = t.span<const std::int64_t>("offsets"),
                         .bias = t["bias"],
                         .dbias = t["dbias"],
                         .before = t["before"],
                         .dbefore = t["dbefore"]},
                        workspace);
  };
  c.oracle_backward = [=](OpValues& v) { short_conv_oracle_backward(n, v); };
  return c;
}

TEST(Ops, ShortConv) {
  const std::vector<std::vector<std::int64_t>> cases{
      {1}, {5}, {100}, {1, 1, 1, 1, 1}, {2, 0, 13, 8}, {3, 0, 1, 40, 2, 33, 1, 1, 70, 0}, {32, 32, 64}, {2, 2, 0, 3}};
  for (const std::vector<std::int64_t>& lengths : cases) {
    ConvSizes n{.offsets = {0}, .taps = 0, .channels = 0, .bias = false, .state = false};
    for (const std::int64_t length : lengths) n.offsets.push_back(n.offsets.back() + length);
    for (const std::int64_t taps : {1, 2, 3, 4, 6}) {
      for (const std::int64_t channels : {8, 37, 90, 1040}) {
        if (channels == 1040 && (taps == 3 || (quick() && taps != 4))) continue;
        n.taps = taps;
        n.channels = channels;
        for (const char* start : {"zeros", "state", "before"}) {
          n.state = std::string_view(start) == "state";
          n.before = std::string_view(start) == "before";
          if ((n.state || n.before) && taps == 1) continue;
          for (const bool bias : {false, true}) {
            if (channels == 1040 && bias != (taps > 2)) continue;
            n.bias = bias;
            for (const DType type : activation_types()) check_op(short_conv_case(n, type));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
