// The table of rules: names, traits that say what is so, and each rule's small backward against the complex step.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <complex>
#include <set>
#include <string>

#include "rule/rule.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Complex = std::complex<double>;

constexpr double kStep = 1e-30;

constexpr std::array<double RuleInputs<double>::*, 4> kInputs{
    &RuleInputs<double>::g, &RuleInputs<double>::beta, &RuleInputs<double>::lambda, &RuleInputs<double>::k_dot_k};
constexpr std::array<Complex RuleInputs<Complex>::*, 4> kComplexInputs{
    &RuleInputs<Complex>::g, &RuleInputs<Complex>::beta, &RuleInputs<Complex>::lambda, &RuleInputs<Complex>::k_dot_k};
constexpr std::array<double RuleOutputs<double>::*, 4> kOutputs{&RuleOutputs<double>::log_decay,
                                                                &RuleOutputs<double>::erase, &RuleOutputs<double>::mix,
                                                                &RuleOutputs<double>::write};
constexpr std::array<Complex RuleOutputs<Complex>::*, 4> kComplexOutputs{
    &RuleOutputs<Complex>::log_decay, &RuleOutputs<Complex>::erase, &RuleOutputs<Complex>::mix,
    &RuleOutputs<Complex>::write};

RuleInputs<double> random_inputs(Random& random) {
  return {uniform(random, -2, 0), uniform(random, 0.1, 2), uniform(random, 0.1, 2), uniform(random, 0.1, 3)};
}

TEST(RuleTable, NamesLeadBackToTheirRules) {
  std::set<std::string_view> names;
  for (const Rule rule : all_rules()) {
    const RuleTraits& traits = traits_of(rule);
    EXPECT_EQ(rule_from_name(traits.name), rule) << traits.name;
    EXPECT_FALSE(traits.title.empty()) << traits.name;
    EXPECT_FALSE(traits.formula.empty()) << traits.name;
    names.insert(traits.name);
  }
  EXPECT_EQ(names.size(), kRuleCount) << "two rules share a name";
}

TEST(RuleTable, IsInTheOrderOfTheEnum) {
  EXPECT_EQ(traits_of(Rule::linear).name, "linear");
  EXPECT_EQ(traits_of(Rule::retnet).name, "retnet");
  EXPECT_EQ(traits_of(Rule::mamba2).name, "mamba2");
  EXPECT_EQ(traits_of(Rule::longhorn).name, "longhorn");
  EXPECT_EQ(traits_of(Rule::delta).name, "delta");
  EXPECT_EQ(traits_of(Rule::gated_delta).name, "gated_delta");
  EXPECT_EQ(traits_of(Rule::q_delta).name, "q_delta");
}

TEST(RuleTable, UnknownNamesHaveNoRule) {
  for (const char* name : {"", "q_delt", "q_delta ", "Q_DELTA", "gated"}) EXPECT_EQ(rule_from_name(name), std::nullopt);
}

// Where a model takes the gates of each rule from.
TEST(RuleTable, GatesOfEachRule) {
  const auto gates_of = [](Rule rule) {
    const RuleTraits& traits = traits_of(rule);
    std::string text;
    if (traits.learns_decay) text += traits.decay_is_optional() ? "decay? " : "decay ";
    if (traits.fixed_log_decay != nullptr) text += "fixed ";
    if (traits.beta_is_step) text += "step ";
    if (traits.learns_beta()) text += "beta ";
    if (traits.reads_lambda) text += "lambda ";
    return text;
  };
  EXPECT_EQ(gates_of(Rule::linear), "");
  EXPECT_EQ(gates_of(Rule::retnet), "fixed ");
  EXPECT_EQ(gates_of(Rule::mamba2), "decay step ");
  EXPECT_EQ(gates_of(Rule::longhorn), "beta ");
  EXPECT_EQ(gates_of(Rule::delta), "beta ");
  EXPECT_EQ(gates_of(Rule::gated_delta), "decay? beta ");
  EXPECT_EQ(gates_of(Rule::q_delta), "decay? beta lambda ");
  EXPECT_DOUBLE_EQ(traits_of(Rule::retnet).fixed_log_decay(0), std::log(1.0 - 1.0 / 32));
  EXPECT_DOUBLE_EQ(traits_of(Rule::retnet).fixed_log_decay(3), std::log(1.0 - 1.0 / 256));
}

class EachRule : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(RuleTable, EachRule, ::testing::ValuesIn(all_rules()), rule_test_name);

// Every entry of the Jacobian: one input has the imaginary step, one output the unit gradient.
TEST_P(EachRule, BackwardIsTheDerivativeOfForward) {
  Random random(17);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const RuleInputs<double> in = random_inputs(random);
    for (std::size_t i = 0; i < kInputs.size(); ++i) {
      RuleInputs<Complex> stepped{in.g, in.beta, in.lambda, in.k_dot_k};
      stepped.*kComplexInputs[i] += Complex(0, kStep);
      const RuleOutputs<Complex> out = rule_forward(GetParam(), stepped);
      for (std::size_t o = 0; o < kOutputs.size(); ++o) {
        RuleOutputs<double> unit;
        unit.*kOutputs[o] = 1;
        const RuleInputs<double> gradient = rule_backward(GetParam(), in, unit);
        EXPECT_NEAR(gradient.*kInputs[i], std::imag(out.*kComplexOutputs[o]) / kStep, 1e-14)
            << "input " << i << ", output " << o;
      }
    }
  }
}

TEST_P(EachRule, TraitsSayWhatIsReadAndErased) {
  const RuleTraits& traits = traits_of(GetParam());
  Random random(18);
  const RuleInputs<double> in = random_inputs(random);
  const RuleOutputs<double> out = rule_forward(GetParam(), in);
  EXPECT_EQ(traits.erases, out.erase != 0);

  const auto changes = [&](double RuleInputs<double>::*input) {
    RuleInputs<double> other = in;
    other.*input += 0.25;
    const RuleOutputs<double> moved = rule_forward(GetParam(), other);
    return moved.log_decay != out.log_decay || moved.erase != out.erase || moved.mix != out.mix ||
           moved.write != out.write;
  };
  EXPECT_TRUE(changes(&RuleInputs<double>::g));
  EXPECT_EQ(changes(&RuleInputs<double>::beta), traits.reads_beta);
  EXPECT_EQ(changes(&RuleInputs<double>::lambda), traits.reads_lambda);
}

TEST_P(EachRule, InputsNotReadHaveZeroGradient) {
  const RuleTraits& traits = traits_of(GetParam());
  Random random(19);
  const RuleOutputs<double> ones{1, 1, 1, 1};
  const RuleInputs<double> gradient = rule_backward(GetParam(), random_inputs(random), ones);
  EXPECT_EQ(gradient.beta != 0, traits.reads_beta);
  EXPECT_EQ(gradient.lambda != 0, traits.reads_lambda);
}

}  // namespace
}  // namespace qdelta::testing
