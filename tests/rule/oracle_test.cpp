// The oracle: by hand, at the places where rules meet, and its gradient against the complex step through itself.
#include "rule/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <string>
#include <tuple>

#include "oracle_case.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Complex = std::complex<double>;

// ---------------------------------------------------------------------------------------------------------------------
// By hand: one token, width one.

struct ByHand {
  Rule rule;
  double state, output;
};

class OneToken : public ::testing::TestWithParam<ByHand> {};
// h0 = 2, decay 1/2, q = 2, k = 3, v = 7, beta = 1/2, lambda = 1/4, scale 1/10: the decayed state is 1.
INSTANTIATE_TEST_SUITE_P(Oracle, OneToken,
                         ::testing::Values(ByHand{Rule::linear, 1 + 3 * 7.0, 4.4}, ByHand{Rule::retnet, 22, 4.4},
                                           ByHand{Rule::mamba2, 1 + 3 * 3.5, 2.3},
                                           ByHand{Rule::longhorn, 1 + 3 * (7.0 - 3) / 11, 0.2 * 23 / 11},
                                           ByHand{Rule::delta, 1 + 3 * (3.5 - 1.5), 1.4},
                                           ByHand{Rule::gated_delta, 7, 1.4},
                                           ByHand{Rule::q_delta, 1 + 3 * (3.5 - 0.5 * 3.5), 1.25}),
                         [](const auto& test) { return std::string(traits_of(test.param.rule).name); });

TEST_P(OneToken, IsAsComputedByHand) {
  const OracleShape shape{{0, 1}, 1, 1, 1, 1, GetParam().rule, 0.1, false};
  const OracleInputs<double> in{{2}, {3}, {7}, {std::log(0.5)}, {0.5}, {0.25}, {2}};
  const OracleOutputs<double> out = oracle_forward(shape, in);
  EXPECT_NEAR(out.ht[0], GetParam().state, 1e-13);
  EXPECT_NEAR(out.o[0], GetParam().output, 1e-13);
}

TEST(Oracle, NormDividesByTheLengthWithItsEpsilon) {
  // |q| = 5, |k| = 13; linear attention with v = 1 and scale 1 gives q.k of the normalised rows.
  const OracleShape shape{{0, 1}, 1, 1, 2, 1, Rule::linear, 1, true};
  const OracleInputs<double> in{{3, 4}, {5, 12}, {1}, {0}, {0}, {0}, {}};
  const double expected = (3 * 5 + 4 * 12) / std::sqrt((25 + 1e-6) * (169 + 1e-6));
  EXPECT_NEAR(oracle_forward(shape, in).o[0], expected, 1e-15);
}

TEST(Oracle, SequencesDoNotSeeEachOther) {
  Random random(3);
  OracleShape shape{{0, 3, 3, 7}, 1, 2, 4, 3, Rule::q_delta, 0.5, true};
  const OracleCase whole = random_oracle_case(random, shape, true);
  const OracleOutputs<double> out = oracle_forward(shape, whole.in);
  const std::int64_t states = shape.v_heads * shape.state_size();
  for (std::int64_t n = 0; n < shape.sequences(); ++n) {
    const std::int64_t begin = shape.offsets[n];
    const std::int64_t end = shape.offsets[n + 1];
    const auto part = [&](const std::vector<double>& all, std::int64_t width) {
      return std::vector<double>(all.begin() + begin * width, all.begin() + end * width);
    };
    const auto state = [&](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + n * states, all.begin() + (n + 1) * states);
    };
    OracleShape alone = shape;
    alone.offsets = {0, end - begin};
    const OracleInputs<double> in{part(whole.in.q, 4), part(whole.in.k, 4),    part(whole.in.v, 6),
                                  part(whole.in.g, 2), part(whole.in.beta, 2), part(whole.in.lambda, 2),
                                  state(whole.in.h0)};
    const OracleOutputs<double> expected = oracle_forward(alone, in);
    EXPECT_EQ(part(out.o, 6), expected.o) << "sequence " << n;
    EXPECT_EQ(state(out.ht), expected.ht) << "sequence " << n;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The gradient.

using GradientParameters = std::tuple<Rule, bool, bool>;  // rule, norm, initial state
class OracleGradient : public ::testing::TestWithParam<GradientParameters> {};
INSTANTIATE_TEST_SUITE_P(Oracle, OracleGradient,
                         ::testing::Combine(::testing::ValuesIn(all_rules()), ::testing::Bool(), ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(traits_of(std::get<0>(test.param)).name) +
                                  (std::get<1>(test.param) ? "_norm" : "_raw") +
                                  (std::get<2>(test.param) ? "_state" : "_fresh");
                         });

OracleCase gradient_case(const GradientParameters& parameters, bool final_state_counts) {
  Random random(41);
  // Two packed sequences, and one query/key head for three value heads.
  const OracleShape shape{{0, 4, 6}, 1, 3, 3, 2, std::get<0>(parameters), 0.7, std::get<1>(parameters)};
  return random_oracle_case(random, shape, std::get<2>(parameters), final_state_counts);
}

// Every entry of every input in turn has the imaginary step.
TEST_P(OracleGradient, IsTheComplexStepDerivative) {
  constexpr double kStep = 1e-30;
  for (const bool final_state_counts : {true, false}) {
    const OracleCase problem = gradient_case(GetParam(), final_state_counts);
    OracleInputs<double> gradient = oracle_backward(problem.shape, problem.in, problem.d);
    OracleInputs<Complex> stepped = as_complex(problem.in);
    const auto inputs = fields_of(stepped);
    const auto gradients = fields_of(gradient);
    for (std::size_t field = 0; field < inputs.size(); ++field) {
      const std::string_view name = inputs[field].first;
      std::vector<Complex>& values = *inputs[field].second;
      const std::vector<double>& given = *gradients[field].second;
      if (name == "h0" && values.empty()) continue;  // its gradient has a test of its own
      std::vector<double> exact;
      for (Complex& value : values) {
        value += Complex(0, kStep);
        exact.push_back(std::imag(problem.loss(oracle_forward(problem.shape, stepped))) / kStep);
        value = std::real(value);
      }
      ASSERT_EQ(given.size(), exact.size()) << name;
      double largest = 0;
      for (const double value : exact) largest = std::max(largest, std::abs(value));
      for (std::size_t i = 0; i < exact.size(); ++i) {
        EXPECT_NEAR(given[i], exact[i], 1e-13 * largest) << "d" << name << "[" << i << "]";
      }
    }
  }
}

// A missing initial state is zeros, and has the gradient that zeros have.
TEST_P(OracleGradient, OfAMissingStateIsThatOfZeros) {
  OracleCase problem = gradient_case(GetParam(), true);
  problem.in.h0.clear();
  const OracleInputs<double> missing = oracle_backward(problem.shape, problem.in, problem.d);
  problem.in.h0.assign(problem.d.ht.size(), 0.0);
  const OracleInputs<double> zeros = oracle_backward(problem.shape, problem.in, problem.d);
  EXPECT_EQ(missing.h0, zeros.h0);
  EXPECT_EQ(missing.q, zeros.q);
  EXPECT_EQ(missing.g, zeros.g);
}

TEST_P(OracleGradient, OfInputsNotReadIsZero) {
  const OracleCase problem = gradient_case(GetParam(), true);
  const OracleInputs<double> gradient = oracle_backward(problem.shape, problem.in, problem.d);
  const auto all_zero = [](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
  };
  const RuleTraits& traits = traits_of(problem.shape.rule);
  EXPECT_EQ(all_zero(gradient.beta), !traits.reads_beta);
  EXPECT_EQ(all_zero(gradient.lambda), !traits.reads_lambda);
}

// ---------------------------------------------------------------------------------------------------------------------
// Where rules meet.

class RulesMeet : public ::testing::Test {
 protected:
  static OracleCase make() {
    Random random(23);
    const OracleShape shape{{0, 9}, 2, 4, 5, 3, Rule::q_delta, 0.4, true};
    return random_oracle_case(random, shape, true);
  }
  static OracleOutputs<double> outputs(const OracleCase& problem, Rule rule) {
    OracleShape shape = problem.shape;
    shape.rule = rule;
    return oracle_forward(shape, problem.in);
  }
  static OracleInputs<double> gradients(const OracleCase& problem, Rule rule) {
    OracleShape shape = problem.shape;
    shape.rule = rule;
    return oracle_backward(shape, problem.in, problem.d);
  }
  // Outputs and the gradients of q, k, v, g and h0, to the last bit.
  static void expect_same(const OracleCase& problem, Rule a, Rule b) {
    EXPECT_EQ(outputs(problem, a).o, outputs(problem, b).o);
    EXPECT_EQ(outputs(problem, a).ht, outputs(problem, b).ht);
    const OracleInputs<double> of_a = gradients(problem, a);
    const OracleInputs<double> of_b = gradients(problem, b);
    EXPECT_EQ(of_a.q, of_b.q);
    EXPECT_EQ(of_a.k, of_b.k);
    EXPECT_EQ(of_a.v, of_b.v);
    EXPECT_EQ(of_a.g, of_b.g);
    EXPECT_EQ(of_a.h0, of_b.h0);
  }
  static void set(std::vector<double>& values, double value) { std::fill(values.begin(), values.end(), value); }
};

TEST_F(RulesMeet, QDeltaWithoutLambdaIsGatedDelta) {
  OracleCase problem = make();
  EXPECT_GT(relative_error(outputs(problem, Rule::q_delta).o, outputs(problem, Rule::gated_delta).o), 0.05);
  set(problem.in.lambda, 0);
  expect_same(problem, Rule::q_delta, Rule::gated_delta);
  EXPECT_EQ(gradients(problem, Rule::q_delta).beta, gradients(problem, Rule::gated_delta).beta);
}

TEST_F(RulesMeet, GatedDeltaWithoutDecayIsDelta) {
  OracleCase problem = make();
  set(problem.in.g, 0);
  expect_same(problem, Rule::gated_delta, Rule::delta);
}

TEST_F(RulesMeet, Mamba2WithUnitStepIsRetNetAndRetNetWithoutDecayIsLinear) {
  OracleCase problem = make();
  EXPECT_GT(relative_error(outputs(problem, Rule::mamba2).o, outputs(problem, Rule::retnet).o), 0.05);
  set(problem.in.beta, 1);
  expect_same(problem, Rule::mamba2, Rule::retnet);
  set(problem.in.g, 0);
  expect_same(problem, Rule::retnet, Rule::linear);
}

// Without beta nothing is read or written: only the decay is left.
TEST_F(RulesMeet, ErasingRulesWithoutBetaOnlyDecay) {
  OracleCase problem = make();
  set(problem.in.beta, 0);
  for (const Rule rule : {Rule::longhorn, Rule::delta, Rule::gated_delta, Rule::q_delta}) {
    EXPECT_LT(relative_error(outputs(problem, rule).o, outputs(problem, Rule::mamba2).o), 1e-14);
    EXPECT_LT(relative_error(outputs(problem, rule).ht, outputs(problem, Rule::mamba2).ht), 1e-14);
  }
}

TEST_F(RulesMeet, LonghornIsDeltaWithItsOwnStep) {
  OracleCase problem = make();
  problem.shape.qk_l2norm = false;
  const OracleOutputs<double> longhorn = outputs(problem, Rule::longhorn);
  EXPECT_GT(relative_error(longhorn.o, outputs(problem, Rule::delta).o), 0.05);
  const OracleShape& shape = problem.shape;
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    for (std::int64_t head = 0; head < shape.v_heads; ++head) {
      double k_dot_k = 0;
      for (std::int64_t i = 0; i < shape.key_dim; ++i) {
        const double k = problem.in.k[(t * shape.q_heads + head / 2) * shape.key_dim + i];
        k_dot_k += k * k;
      }
      double& beta = problem.in.beta[t * shape.v_heads + head];
      beta /= 1 + beta * k_dot_k;
    }
  }
  EXPECT_LT(relative_error(longhorn.o, outputs(problem, Rule::delta).o), 1e-14);
}

// A state of orthonormal keys has nothing to erase along the next one.
TEST_F(RulesMeet, DeltaOnOrthonormalKeysIsLinear) {
  Random random(29);
  const std::int64_t tokens = 6;
  const OracleShape shape{{0, tokens}, 1, 1, tokens, 3, Rule::delta, 1, false};
  OracleCase problem = random_oracle_case(random, shape, false);
  set(problem.in.k, 0);
  for (std::int64_t t = 0; t < tokens; ++t) problem.in.k[t * tokens + t] = 1;
  set(problem.in.beta, 1);
  set(problem.in.g, 0);
  EXPECT_EQ(outputs(problem, Rule::delta).ht, outputs(problem, Rule::linear).ht);
}

// What the delta rule is for: a unit key written with beta = 1 reads back its value.
TEST_F(RulesMeet, DeltaReadsBackTheLastValue) {
  OracleCase problem = make();
  set(problem.in.beta, 1);
  problem.in.q = problem.in.k;
  problem.shape.scale = 1;
  problem.shape.qk_l2norm = true;
  EXPECT_LT(relative_error(outputs(problem, Rule::gated_delta).o, problem.in.v), 1e-5);  // the norm's epsilon
}

}  // namespace
}  // namespace qdelta::testing
