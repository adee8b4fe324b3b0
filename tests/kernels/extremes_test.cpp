// At the edges of what inputs can be: wherever the double-precision oracle is finite and float32 can hold its numbers,
// every form is finite and as close to it as anywhere else (1e-5 for outputs, 5e-5 for gradients).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

constexpr float kEndless = std::numeric_limits<float>::infinity();
// Below this a float32 loses digits; what the oracle finds there counts as zero.
constexpr double kVanishing = 1e-37;

void fill(Tensor& tensor, float value) {
  for (float& element : tensor.as<float>()) element = value;
}
void scale(Tensor& tensor, float factor) {
  for (float& element : tensor.as<float>()) element *= factor;
}
// Every token's row is that of the first.
void repeat_first_token(Tensor& tensor) {
  const std::span<float> values = tensor.as<float>();
  const auto row = static_cast<std::size_t>(tensor.elements() / tensor.shape()[1]);
  for (std::size_t i = row; i < values.size(); ++i) values[i] = values[i - row];
}

struct Extreme {
  std::string name;
  std::function<void(RecurrenceCase&)> make;
  double slack = 1;  // times the usual tolerance
};
// Each of T reflections along one and the same key repeats the same rounding of its length, so the errors do not
// average out: some T * 2^-24 instead of its root.
constexpr double kRepeatedRounding = 5;

const std::vector<Extreme>& extremes() {
  static const std::vector<Extreme> all{
      {"strong_decay", [](RecurrenceCase& c) { fill(c.g, -50); }},
      {"total_decay", [](RecurrenceCase& c) { fill(c.g, -kEndless); }},
      {"no_decay", [](RecurrenceCase& c) { fill(c.g, 0); }},
      {"decays_of_all_kinds",
       [](RecurrenceCase& c) {
         Random random(1);
         for (float& g : c.g.as<float>()) {
           g = pick<float>(random, {0.0F, -0.0F, -1e-8F, -1e-3F, -1.0F, -20.0F, -88.0F, -104.0F, -1e30F, -kEndless});
         }
       }},
      {"beta_0", [](RecurrenceCase& c) { fill(c.beta, 0); }},
      {"beta_1", [](RecurrenceCase& c) { fill(c.beta, 1); }},
      {"beta_2", [](RecurrenceCase& c) { fill(c.beta, 2); }},
      {"beta_and_lambda_up_to_2",
       [](RecurrenceCase& c) {
         scale(c.beta, 2);
         scale(c.lambda, 2);
       }},
      {"lambda_0", [](RecurrenceCase& c) { fill(c.lambda, 0); }},
      {"identical_keys", [](RecurrenceCase& c) { repeat_first_token(c.k); }},
      {"identical_keys_written_over",
       [](RecurrenceCase& c) {
         repeat_first_token(c.k);
         fill(c.beta, 1);
         fill(c.g, 0);
       }},
      {"identical_keys_reflected",
       [](RecurrenceCase& c) {
         repeat_first_token(c.k);
         fill(c.beta, 2);
         fill(c.lambda, 0);
         fill(c.g, 0);
       },
       kRepeatedRounding},
      {"identical_keys_and_queries_reflected",
       [](RecurrenceCase& c) {
         repeat_first_token(c.k);
         std::memcpy(c.q.data(), c.k.data(), c.k.bytes());
         fill(c.beta, 1);
         fill(c.lambda, 1);
         fill(c.g, 0);
       },
       kRepeatedRounding},
      {"zero_keys", [](RecurrenceCase& c) { fill(c.k, 0); }},
      {"zero_queries", [](RecurrenceCase& c) { fill(c.q, 0); }},
      {"some_zero_rows",
       [](RecurrenceCase& c) {
         const auto row = static_cast<std::size_t>(c.spec.key_dim * c.spec.heads);
         for (std::size_t i = 0; i < c.k.as<float>().size(); ++i) {
           if (i / row % 3 == 0) c.k.as<float>()[i] = 0;
           if (i / row % 4 == 0) c.q.as<float>()[i] = 0;
         }
       }},
      {"zero_values", [](RecurrenceCase& c) { fill(c.v, 0); }},
      {"zero_everything",
       [](RecurrenceCase& c) {
         for (Tensor* tensor : {&c.q, &c.k, &c.v, &c.g, &c.beta, &c.lambda, &c.h0, &c.d_o, &c.d_ht}) fill(*tensor, 0);
       }},
      {"huge_values",
       [](RecurrenceCase& c) {
         scale(c.v, 1e30F);
         scale(c.h0, 1e30F);
       }},
      {"huge_values_on_a_small_state", [](RecurrenceCase& c) { scale(c.v, 1e30F); }},
      {"huge_rows",
       [](RecurrenceCase& c) {
         scale(c.q, 1e15F);
         scale(c.k, 1e15F);
       }},
      {"tiny_rows",
       [](RecurrenceCase& c) {
         scale(c.q, 1e-8F);
         scale(c.k, 1e-8F);
       }},
      {"tiny_values",
       [](RecurrenceCase& c) {
         scale(c.v, 1e-30F);
         scale(c.h0, 1e-30F);
       }},
      {"huge_gradients",
       [](RecurrenceCase& c) {
         scale(c.d_o, 1e30F);
         scale(c.d_ht, 1e30F);
       }},
  };
  return all;
}

class Extremes : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Inputs, Extremes, ::testing::Range(std::size_t{0}, extremes().size()),
                         [](const auto& test) { return extremes()[test.param].name; });

TEST_P(Extremes, StayCloseToTheOracle) {
  for (const Rule rule : all_rules()) {
    CaseSpec spec;
    spec.rule = rule;
    spec.tokens = 70;
    spec.heads = 2;
    spec.key_dim = 24;
    spec.value_dim = 20;
    SCOPED_TRACE(describe(spec));
    RecurrenceCase problem = random_case(spec, 71);
    extremes()[GetParam()].make(problem);
    const Reference expected = reference_of(problem);
    for (const auto& [name, values] : expected.fields()) {
      for (const double value : *values) {
        ASSERT_TRUE(std::isfinite(static_cast<float>(value)))
            << name << ": the case is none, the oracle gives " << value;
      }
    }
    for (const Execution& how : all_forms()) {
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
    for (const Execution& how : all_forms()) {
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
    for (const Execution& how : all_forms()) {
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
    for (const Execution& how : all_forms()) {
      SCOPED_TRACE(describe(how));
      expect_close(run_both(problem, how), expected, {});
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
