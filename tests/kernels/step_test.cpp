// One token at a time, in place on a pool of states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/recurrence_case.h"
#include "kernels/strided_tensor.h"

namespace qdelta::testing {
namespace {

// The whole batch, token by token; gives o and the states it ends in.
Results<Tensor> step_by_step(const RecurrenceCase& problem) {
  Results<Tensor> out;
  out.o = nan_tensor(problem.spec.dtype, problem.spec.values());
  out.ht = converted(problem.h0.view(), DType::f32);
  for (std::int64_t t = 0; t < problem.spec.tokens; ++t) run(step_arguments(problem, t, out.o.view(), out.ht.view()));
  return out;
}

class StepOf : public ::testing::TestWithParam<Rule> {
 protected:
  static CaseSpec spec() {
    CaseSpec made;
    made.rule = GetParam();
    made.batch = 3;
    made.tokens = 20;
    made.heads = 2;
    made.shared = 2;
    made.key_dim = 18;
    made.value_dim = 37;
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, StepOf, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(StepOf, EveryTokenIsTheSequence) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool norm : {true, false}) {
      CaseSpec made = spec();
      made.dtype = dtype;
      made.qk_l2norm = norm;
      SCOPED_TRACE(describe(made));
      const RecurrenceCase problem = random_case(made, 61);
      const Results<Tensor> stepped = step_by_step(problem);
      expect_close(stepped, reference_of(problem), {});
      // And so it is the same as a sequence at once, in particular as prefill and decode together.
      const Results<Tensor> chunked = run_forward(problem, {Form::chunk, 16, 1, false});
      EXPECT_LE(relative_error(stepped.ht.view(), to_doubles(chunked.ht.view())), 2e-6);
      EXPECT_LE(relative_error(stepped.o.view(), to_doubles(chunked.o.view())), dtype == DType::f32 ? 2e-6 : 1e-3);
    }
  }
}

TEST_P(StepOf, OneTokenIsASequenceOfOne) {
  CaseSpec made = spec();
  made.tokens = 1;
  const RecurrenceCase problem = random_case(made, 62);
  const Results<Tensor> stepped = step_by_step(problem);
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> sequence = run_forward(problem, how);
    EXPECT_LE(relative_error(stepped.o.view(), to_doubles(sequence.o.view())), 1e-6);
    EXPECT_LE(relative_error(stepped.ht.view(), to_doubles(sequence.ht.view())), 1e-6);
  }
}

TEST_P(StepOf, RowsFindTheirStatesByIndex) {
  CaseSpec made = spec();
  made.tokens = 1;
  const RecurrenceCase problem = random_case(made, 63);
  const Results<Tensor> expected = step_by_step(problem);
  const std::vector<std::int64_t> places{5, 0, 3};
  Random random(64);
  const Tensor before = random_tensor(random, DType::f32, {7, made.value_heads(), made.key_dim, made.value_dim}, -1, 1);
  for (const DType dtype : {DType::i32, DType::i64}) {
    for (const std::int64_t stride : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} with stride {}", name_of(dtype), stride));
      Tensor pool = converted(before.view(), DType::f32);
      Tensor index(dtype, {static_cast<std::int64_t>(places.size()) * stride});
      for (std::size_t r = 0; r < places.size(); ++r) {
        const std::size_t at = r * static_cast<std::size_t>(stride);
        if (dtype == DType::i32) index.as<std::int32_t>()[at] = static_cast<std::int32_t>(places[r]);
        if (dtype == DType::i64) index.as<std::int64_t>()[at] = places[r];
        const Tensor entry = converted(narrowed(problem.h0.view(), 0, static_cast<std::int64_t>(r), 1), DType::f32);
        std::memcpy(narrowed(pool.view(), 0, places[r], 1).data, entry.data(), entry.bytes());
      }
      Tensor o = nan_tensor(made.dtype, made.values());
      RecurrenceStep args = step_arguments(problem, 0, o.view(), pool.view());
      args.index = ConstTensorView(index.data(), dtype, {3});
      args.index.stride[0] = stride;
      run(args);

      EXPECT_TRUE(same_bits(o, expected.o));
      for (std::int64_t p = 0; p < 7; ++p) {
        const auto row = std::find(places.begin(), places.end(), p);
        const Tensor now = converted(narrowed(pool.view(), 0, p, 1), DType::f32);
        if (row == places.end()) {
          EXPECT_TRUE(same_bits(now, converted(narrowed(before.view(), 0, p, 1), DType::f32)))
              << "state " << p << " belongs to no row";
        } else {
          EXPECT_TRUE(same_bits(now, converted(narrowed(expected.ht.view(), 0, row - places.begin(), 1), DType::f32)))
              << "state " << p;
        }
      }
    }
  }
}

TEST_P(StepOf, AnyWidths) {
  const std::vector<std::int64_t> value_dims =
      quick() ? std::vector<std::int64_t>{1, 17, 65}
              : std::vector<std::int64_t>{1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 130};
  for (const std::int64_t key_dim : {1, 3, 16, 33, 130}) {
    for (const std::int64_t value_dim : value_dims) {
      CaseSpec made = spec();
      made.batch = 1;
      made.heads = 1;
      made.tokens = 3;
      made.key_dim = key_dim;
      made.value_dim = value_dim;
      SCOPED_TRACE(describe(made));
      const RecurrenceCase problem = random_case(made, 65);
      expect_close(step_by_step(problem), reference_of(problem), {});
    }
  }
}

// States whose rows, heads and places in the pool are apart; only the elements of a row lie side by side.
TEST(Step, StatesMayBePadded) {
  CaseSpec spec;
  spec.batch = 2;
  spec.tokens = 1;
  spec.heads = 2;
  spec.value_dim = 37;
  const RecurrenceCase problem = random_case(spec, 66);
  const Results<Tensor> expected = step_by_step(problem);
  for (const MemoryLayout& layout :
       {MemoryLayout{"padded", {}, 1, 5, 3, false}, MemoryLayout{"keys outermost", {2, 1, 0, 3}, 1, 1, 0, false}}) {
    SCOPED_TRACE(layout.name);
    StridedTensor states(problem.h0, layout);
    StridedTensor o(nan_tensor(DType::f32, spec.values()), MemoryLayout{"o", {}, 2, 1, 1, false});
    run(step_arguments(problem, 0, o.view(), states.view()));
    EXPECT_TRUE(same_bits(o.content(), expected.o));
    EXPECT_TRUE(same_bits(states.content(), expected.ht));
    EXPECT_TRUE(o.guards_untouched());
    EXPECT_TRUE(states.guards_untouched());
  }
}

TEST(Step, RowsOfOneElementHaveNoStrideToSpeakOf) {
  CaseSpec spec;
  spec.tokens = 1;
  spec.value_dim = 1;
  const RecurrenceCase problem = random_case(spec, 67);
  const Results<Tensor> expected = step_by_step(problem);
  StridedTensor states(problem.h0, MemoryLayout{"spread", {}, 4, 3, 0, false});
  Tensor o = nan_tensor(DType::f32, spec.values());
  run(step_arguments(problem, 0, o.view(), states.view()));
  EXPECT_TRUE(same_bits(o, expected.o));
  EXPECT_TRUE(same_bits(states.content(), expected.ht));
  EXPECT_TRUE(states.guards_untouched());
}

TEST(Step, NoRowsLeaveThePoolAlone) {
  CaseSpec spec;
  spec.batch = 0;
  spec.tokens = 1;
  const RecurrenceCase problem = random_case(spec, 68);
  Random random(69);
  Tensor pool = random_tensor(random, DType::f32, {2, 1, spec.key_dim, spec.value_dim}, -1, 1);
  const Tensor before = converted(pool.view(), DType::f32);
  Tensor o = nan_tensor(DType::f32, spec.values());
  run(step_arguments(problem, 0, o.view(), pool.view()));
  EXPECT_TRUE(same_bits(pool, before));
}

// Fewer rows than states and no index: the first states are taken.
TEST(Step, WithoutIndexTheFirstStatesAreTaken) {
  CaseSpec spec;
  spec.batch = 2;
  spec.tokens = 1;
  const RecurrenceCase problem = random_case(spec, 70);
  const Results<Tensor> expected = step_by_step(problem);
  Tensor pool(DType::f32, {5, 1, spec.key_dim, spec.value_dim});
  std::memcpy(pool.data(), problem.h0.data(), problem.h0.bytes());
  const Tensor rest = converted(narrowed(pool.view(), 0, 2, 3), DType::f32);
  Tensor o = nan_tensor(DType::f32, spec.values());
  run(step_arguments(problem, 0, o.view(), pool.view()));
  EXPECT_TRUE(same_bits(o, expected.o));
  EXPECT_TRUE(same_bits(converted(narrowed(pool.view(), 0, 0, 2), DType::f32), expected.ht));
  EXPECT_TRUE(same_bits(converted(narrowed(pool.view(), 0, 2, 3), DType::f32), rest));
}

}  // namespace
}  // namespace qdelta::testing
