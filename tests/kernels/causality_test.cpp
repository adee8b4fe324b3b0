// What is NaN or infinite in a token reaches no earlier token, no other head and no other sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Place {
  std::string name;
  Tensor RecurrenceCase::*tensor;
};
const std::vector<Place>& places() {
  static const std::vector<Place> all{{"q", &RecurrenceCase::q},       {"k", &RecurrenceCase::k},
                                      {"v", &RecurrenceCase::v},       {"g", &RecurrenceCase::g},
                                      {"beta", &RecurrenceCase::beta}, {"lambda", &RecurrenceCase::lambda}};
  return all;
}

bool is_read(Rule rule, const Place& place) {
  if (place.name == "beta") return traits_of(rule).reads_beta;
  return place.name != "lambda" || traits_of(rule).reads_lambda;
}

// One element of token t of the first head of the last row of the batch.
void poison(RecurrenceCase& problem, const Place& place, std::int64_t t, float value) {
  Tensor& tensor = problem.*place.tensor;
  const TensorView view = tensor.view();
  const std::int64_t row = (problem.spec.batch - 1) * view.step(0) + t * view.step(1);
  tensor.as<float>()[static_cast<std::size_t>(row + (view.shape.rank == 4 ? view.extent(3) / 2 : 0))] = value;
}

bool same(const ConstTensorView& a, const ConstTensorView& b) {
  return same_bits(converted(a, a.dtype), converted(b, b.dtype));
}

class Causality : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, Causality, ::testing::ValuesIn(all_rules()), rule_test_name);

CaseSpec outputs_spec(Rule rule) {
  CaseSpec spec;
  spec.rule = rule;
  spec.batch = 2;
  spec.tokens = 45;
  spec.heads = 2;
  spec.shared = 2;
  spec.key_dim = 9;
  spec.value_dim = 20;
  return spec;
}

// The poisoned problem against the clean one: nothing changes before token t, in the other rows of the batch, or in the
// heads that share nothing with the first; and the poison does reach its own token, unless nobody reads it.
void expect_contained(const Results<Tensor>& got, const Results<Tensor>& expected, std::int64_t t, bool read) {
  EXPECT_TRUE(same(narrowed(got.o.view(), 1, 0, t), narrowed(expected.o.view(), 1, 0, t))) << "earlier tokens";
  EXPECT_TRUE(same(narrowed(got.o.view(), 0, 0, 1), narrowed(expected.o.view(), 0, 0, 1))) << "other rows";
  EXPECT_TRUE(same(narrowed(got.ht.view(), 0, 0, 1), narrowed(expected.ht.view(), 0, 0, 1))) << "other rows";
  EXPECT_TRUE(same(narrowed(got.o.view(), 2, 2, 2), narrowed(expected.o.view(), 2, 2, 2))) << "other heads";
  EXPECT_TRUE(same(narrowed(got.ht.view(), 1, 2, 2), narrowed(expected.ht.view(), 1, 2, 2))) << "other heads";
  EXPECT_NE(same(got.o.view(), expected.o.view()), read);
}

TEST_P(Causality, OfOutputs) {
  const CaseSpec spec = outputs_spec(GetParam());
  const RecurrenceCase clean = random_case(spec, 81);
  for (const RunOptions& how : all_forms()) {
    const Results<Tensor> expected = run_forward(clean, how);
    for (const Place& place : places()) {
      for (const std::int64_t t : {0, 1, 13, 16, 31, 44}) {
        if (quick() && t != 13) continue;
        for (const float value : {kNaN, kInfinity, -kInfinity}) {
          SCOPED_TRACE(fmt::format("{}, {} in {} of token {}", describe(how), value, place.name, t));
          RecurrenceCase poisoned = random_case(spec, 81);
          poison(poisoned, place, t, value);
          expect_contained(run_forward(poisoned, how), expected, t, is_read(GetParam(), place));
        }
      }
    }
  }
}

// Through the products of bfloat16 as well, where the processor has them.
TEST_P(Causality, OfOutputsInBFloat16) {
  const CaseSpec spec = outputs_spec(GetParam());
  const RecurrenceCase clean = in_bfloat16(random_case(spec, 81));
  for (const int chunk : kChunkLengths) {
    const RunOptions how{Form::chunk, chunk, 1, true};
    const Results<Tensor> expected = run_forward(clean, how);
    for (const Place& place : places()) {
      SCOPED_TRACE(fmt::format("{}, {}", describe(how), place.name));
      RecurrenceCase poisoned = random_case(spec, 81);
      poison(poisoned, place, 21, kNaN);
      expect_contained(run_forward(in_bfloat16(poisoned), how), expected, 21, is_read(GetParam(), place));
    }
  }
}

// The same within one packed row: a sequence after the poisoned one is as if nothing had happened, backward too.
TEST_P(Causality, OfPackedSequences) {
  CaseSpec spec;
  spec.rule = GetParam();
  spec.tokens = 40;
  spec.cu_seqlens = {0, 11, 24, 40};
  spec.value_dim = 20;
  const RecurrenceCase clean = random_case(spec, 82);
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> expected = run_both(clean, how);
    for (const Place& place : places()) {
      SCOPED_TRACE(place.name);
      RecurrenceCase poisoned = random_case(spec, 82);
      poison(poisoned, place, 15, kNaN);  // in the second sequence
      const Results<Tensor> got = run_both(poisoned, how);
      const auto of_got = got.fields();
      const auto of_expected = expected.fields();
      for (std::size_t i = 0; i < of_got.size(); ++i) {
        const bool state = of_got[i].first == "ht" || of_got[i].first == "dh0";
        const ConstTensorView a = of_got[i].second->view();
        const ConstTensorView b = of_expected[i].second->view();
        for (const std::int64_t sequence : {0, 2}) {
          const std::int64_t begin = spec.cu_seqlens[static_cast<std::size_t>(sequence)];
          const std::int64_t count = spec.cu_seqlens[static_cast<std::size_t>(sequence) + 1] - begin;
          EXPECT_TRUE(state ? same(narrowed(a, 0, sequence, 1), narrowed(b, 0, sequence, 1))
                            : same(narrowed(a, 1, begin, count), narrowed(b, 1, begin, count)))
              << of_got[i].first << " of sequence " << sequence;
        }
      }
    }
  }
}

// Of the rows of a step, only the poisoned one is.
TEST_P(Causality, OfSteps) {
  CaseSpec spec;
  spec.rule = GetParam();
  spec.batch = 3;
  spec.tokens = 1;
  spec.value_dim = 20;
  const auto step = [](const RecurrenceCase& problem) {
    Results<Tensor> out;
    out.o = nan_tensor(DType::f32, problem.spec.values());
    out.ht = converted(problem.h0.view(), DType::f32);
    run(step_arguments(problem, 0, out.o.view(), out.ht.view()));
    return out;
  };
  const Results<Tensor> expected = step(random_case(spec, 83));
  for (const Place& place : places()) {
    SCOPED_TRACE(place.name);
    RecurrenceCase poisoned = random_case(spec, 83);
    poison(poisoned, place, 0, kNaN);
    const Results<Tensor> got = step(poisoned);
    EXPECT_TRUE(same(narrowed(got.o.view(), 0, 0, 2), narrowed(expected.o.view(), 0, 0, 2)));
    EXPECT_TRUE(same(narrowed(got.ht.view(), 0, 0, 2), narrowed(expected.ht.view(), 0, 0, 2)));
    EXPECT_NE(same(got.o.view(), expected.o.view()), is_read(GetParam(), place));
  }
}

// A NaN in one value column stays in its column: rows of the state do not mix values.
TEST_P(Causality, OfValueColumns) {
  CaseSpec spec;
  spec.rule = GetParam();
  spec.value_dim = 70;
  const RecurrenceCase clean = random_case(spec, 84);
  RecurrenceCase poisoned = random_case(spec, 84);
  poison(poisoned, places()[2], 3, kNaN);  // column 35
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> expected = run_forward(clean, how);
    const Results<Tensor> got = run_forward(poisoned, how);
    for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, 35}, {36, 34}}) {
      EXPECT_TRUE(same(narrowed(got.o.view(), 3, begin, count), narrowed(expected.o.view(), 3, begin, count)));
      EXPECT_TRUE(same(narrowed(got.ht.view(), 3, begin, count), narrowed(expected.ht.view(), 3, begin, count)));
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
