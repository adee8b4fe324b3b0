// The scan's oracle: a value by hand, and its gradient against the complex-step derivative of its own forward.
#include "rule/selective_scan_oracle.h"

#include <gtest/gtest.h>

#include <complex>

#include "testing.h"

namespace qdelta::testing {
namespace {

using Complex = std::complex<double>;
using Values = ScanOracleInputs<double>;
using Member = std::vector<double> Values::*;
using ComplexMember = std::vector<Complex> ScanOracleInputs<Complex>::*;

TEST(ScanOracle, OneChannelByHand) {
  // softplus(log(e - 1)) = 1 and A = -1: the state halves by e at each token, then takes B x.
  const double one = std::log(std::exp(1.0) - 1);
  const Values in{{2, 3}, {one, one}, {0.5, 0.25}, {1, 4}, {}, {0}, {10}, {0}, {8}};
  const ScanOracleOutputs<double> out = scan_oracle_forward<double>({{0, 2}, 1, 1}, in);
  const double first = 8 * std::exp(-1) + 1;
  const double second = first * std::exp(-1) + 0.75;
  EXPECT_NEAR(out.y[0], first + 20, 1e-12);
  EXPECT_NEAR(out.y[1], 4 * second + 30, 1e-12);
  EXPECT_NEAR(out.ht[0], second, 1e-12);
}

Values random_inputs(Random& random, const ScanOracleShape& shape, bool gate) {
  const auto fill = [&](std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = double{random.normal()};
    return values;
  };
  const std::int64_t wide = shape.tokens() * shape.channels;
  const std::int64_t narrow = shape.tokens() * shape.states;
  return {fill(wide),
          fill(wide),
          fill(narrow),
          fill(narrow),
          fill(gate ? wide : 0),
          fill(shape.channels * shape.states),
          fill(shape.channels),
          fill(shape.channels),
          fill(shape.sequences() * shape.states * shape.channels)};
}

TEST(ScanOracle, GradientIsTheComplexStepDerivative) {
  const std::vector<std::pair<Member, ComplexMember>> members{
      {&Values::x, &ScanOracleInputs<Complex>::x},       {&Values::dt, &ScanOracleInputs<Complex>::dt},
      {&Values::B, &ScanOracleInputs<Complex>::B},       {&Values::C, &ScanOracleInputs<Complex>::C},
      {&Values::z, &ScanOracleInputs<Complex>::z},       {&Values::A_log, &ScanOracleInputs<Complex>::A_log},
      {&Values::skip, &ScanOracleInputs<Complex>::skip}, {&Values::dt_bias, &ScanOracleInputs<Complex>::dt_bias},
      {&Values::h0, &ScanOracleInputs<Complex>::h0},
  };
  Random random(4);
  for (const bool gate : {true, false}) {
    const ScanOracleShape shape{{0, 3, 3, 4, 9}, 2, 3};
    const Values in = random_inputs(random, shape, gate);
    const Values weights = random_inputs(random, shape, gate);  // its x and h0 weigh y and ht
    const Values gradients = scan_oracle_backward(shape, in, weights.x, weights.h0);
    for (std::size_t m = 0; m < members.size(); ++m) {
      for (std::size_t i = 0; i < (in.*members[m].first).size(); ++i) {
        ScanOracleInputs<Complex> moved;
        for (const auto& [real, complex] : members) (moved.*complex).assign((in.*real).begin(), (in.*real).end());
        (moved.*members[m].second)[i] += Complex(0, 1e-30);
        const ScanOracleOutputs<Complex> out = scan_oracle_forward(shape, moved);
        double derivative = 0;
        for (std::size_t k = 0; k < out.y.size(); ++k) derivative += weights.x[k] * out.y[k].imag() * 1e30;
        for (std::size_t k = 0; k < out.ht.size(); ++k) derivative += weights.h0[k] * out.ht[k].imag() * 1e30;
        EXPECT_NEAR((gradients.*members[m].first)[i], derivative, 1e-12 * (1 + std::abs(derivative)))
            << "input " << m << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
