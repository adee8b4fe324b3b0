// At the edges of what inputs can be: wherever the double-precision oracle is finite and float32 can hold its numbers,
// every form is finite and as close to it as anywhere else (1e-5 for outputs, 5e-5 for gradients).
#include "kernels/extremes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace qdelta::testing {
namespace {

// Below this a float32 loses digits; what the oracle finds there counts as zero.
constexpr double kVanishing = 1e-37;

class Extremes : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Inputs, Extremes, ::testing::Range(std::size_t{0}, extremes().size()),
                         [](const auto& test) { return extremes()[test.param].name; });

TEST_P(Extremes, StayCloseToTheOracle) {
  for (const Rule rule : all_rules()) {
    const RecurrenceCase problem = extreme_case(extremes()[GetParam()], rule);
    SCOPED_TRACE(describe(problem.spec));
    const Reference expected = reference_of(problem);
    for (const auto& [name, values] : expected.fields()) {
      for (const double value : *values) {
        ASSERT_TRUE(std::isfinite(static_cast<float>(value)))
            << name << ": the case is none, the oracle gives " << value;
      }
    }
    for (const RunOptions& how : all_forms()) {
      SCOPED_TRACE(describe(how));
      const double slack = extremes()[GetParam()].slack;
      expect_close(run_both(problem, how), expected, {slack * 1e-5, slack * 5e-5, kVanishing});
    }
  }
}

// float32 holds these rows, if not their squares: their direction is as good as any.
TEST(ExtremeRows, LongerThanTheRootOfTheLargestFloat) {
  for (const Rule rule : {Rule::longhorn, Rule::q_delta}) {
    CaseSpec spec;
    spec.rule = rule;
    RecurrenceCase problem = random_case(spec, 72);
    scale(problem.q, 1e25F);
    scale(problem.k, 1e25F);
    const Reference expected = reference_of(problem);
    for (const RunOptions& how : all_forms()) {
      SCOPED_TRACE(describe(spec) + " " + describe(how));
      expect_close(run_both(problem, how), expected, {1e-5, 5e-5, kVanishing});
    }
  }
}

// The gradient of a normalised row of one or two elements is what is left of two numbers nearly the same. Its error is
// that of the numbers, so it is measured against the gradient before the row's direction is taken out.
TEST(ExtremeRows, NormOfNarrowRows) {
  for (const std::int64_t key_dim : {1, 2}) {
    CaseSpec spec;
    spec.key_dim = key_dim;
    const RecurrenceCase problem = random_case(spec, 73);
    const Reference expected = reference_of(problem);
    // The same problem for rows that are normalised already.
    OracleShape shape = oracle_shape(spec);
    OracleInputs<double> in = oracle_inputs(problem);
    shape.qk_l2norm = false;
    std::vector<double> inverse_norms[2];
    for (int which = 0; which < 2; ++which) {
      std::vector<double>& rows = which == 0 ? in.q : in.k;
      for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(key_dim)) {
        double squares = kNormEpsilon;
        for (std::int64_t i = 0; i < key_dim; ++i) squares += rows[at + i] * rows[at + i];
        for (std::int64_t i = 0; i < key_dim; ++i) {
          rows[at + i] /= std::sqrt(squares);
          inverse_norms[which].push_back(1 / std::sqrt(squares));
        }
      }
    }
    const OracleInputs<double> before =
        oracle_backward<double>(shape, in, {to_doubles(problem.d_o.view()), to_doubles(problem.d_ht.view())});
    for (const RunOptions& how : all_forms()) {
      SCOPED_TRACE(fmt::format("K = {}, {}", key_dim, describe(how)));
      Results<Tensor> got = run_both(problem, how);
      for (int which = 0; which < 2; ++which) {
        const std::vector<double> values = to_doubles(which == 0 ? got.dq.view() : got.dk.view());
        double error = 0;
        double size = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double exact = (which == 0 ? expected.dq : expected.dk)[i];
          const double unprojected = (which == 0 ? before.q : before.k)[i] * inverse_norms[which][i];
          error += (values[i] - exact) * (values[i] - exact);
          size += unprojected * unprojected;
        }
        EXPECT_LE(std::sqrt(error / size), 2e-6) << (which == 0 ? "dq" : "dk");
      }
      got.dq = Tensor();
      got.dk = Tensor();
      expect_close(got, expected, {});
    }
  }
}

// Errors do not build up over a long sequence, even where nothing is ever forgotten.
TEST(ExtremeLength, ThousandsOfTokens) {
  for (const Rule rule : {Rule::delta, Rule::q_delta, Rule::linear}) {
    CaseSpec spec;
    spec.rule = rule;
    spec.tokens = quick() ? 300 : 3000;
    spec.key_dim = 12;
    spec.value_dim = 8;
    spec.lowest_g = rule == Rule::q_delta ? -1e-3 : 0;
    SCOPED_TRACE(describe(spec));
    const RecurrenceCase problem = random_case(spec, 74);
    const Reference expected = reference_of(problem);
    for (const RunOptions& how : all_forms()) {
      SCOPED_TRACE(describe(how));
      expect_close(run_both(problem, how), expected, {});
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
