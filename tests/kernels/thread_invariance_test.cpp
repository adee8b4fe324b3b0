// The number of threads changes no bit of any result.
#include <gtest/gtest.h>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

constexpr std::array kThreads{2, 3, 5, 8};

std::vector<CaseSpec> specs() {
  std::vector<CaseSpec> all;
  CaseSpec one_head;  // fewer heads than threads: the column groups of a head are divided
  one_head.tokens = 100;
  one_head.key_dim = 24;
  one_head.value_dim = 200;
  all.push_back(one_head);
  CaseSpec few_heads = one_head;
  few_heads.shared = 3;
  few_heads.value_dim = 65;
  all.push_back(few_heads);
  CaseSpec many_heads = one_head;
  many_heads.batch = 2;
  many_heads.heads = 4;
  many_heads.shared = 2;
  many_heads.value_dim = 70;
  many_heads.tokens = 40;
  all.push_back(many_heads);
  CaseSpec packed = few_heads;
  packed.cu_seqlens = {0, 3, 3, 70, 100};
  all.push_back(packed);
  CaseSpec short_sequence = one_head;
  short_sequence.tokens = 5;
  all.push_back(short_sequence);
  return all;
}

class ThreadInvariance : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, ThreadInvariance, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(ThreadInvariance, OfSequences) {
  for (CaseSpec spec : specs()) {
    spec.rule = GetParam();
    for (const DType dtype : {DType::f32, DType::bf16}) {
      spec.dtype = dtype;
      SCOPED_TRACE(describe(spec));
      const RecurrenceCase problem = random_case(spec, 21);
      for (const int chunk : {16, 64}) {
        const Results<Tensor> alone = run_both(problem, {Form::chunk, chunk, 1, true});
        for (const int threads : kThreads) {
          SCOPED_TRACE(fmt::format("chunk {}, {} threads", chunk, threads));
          expect_same_bits(run_both(problem, {Form::chunk, chunk, threads, true}), alone);
        }
      }
      const Results<Tensor> alone = run_forward(problem, {Form::recurrent, 0, 1, true});
      for (const int threads : kThreads) {
        SCOPED_TRACE(fmt::format("recurrent, {} threads", threads));
        expect_same_bits(run_forward(problem, {Form::recurrent, 0, threads, true}), alone);
      }
    }
  }
}

TEST_P(ThreadInvariance, OfSteps) {
  for (const std::int64_t rows : {1, 9}) {
    CaseSpec spec;
    spec.rule = GetParam();
    spec.batch = rows;
    spec.tokens = 1;
    spec.heads = 1;
    spec.shared = rows == 1 ? 1 : 2;
    spec.key_dim = 24;
    spec.value_dim = 200;
    const RecurrenceCase problem = random_case(spec, 22);
    const auto step = [&](int threads) {
      Results<Tensor> out;
      out.ht = converted(problem.h0.view(), DType::f32);
      out.o = nan_tensor(DType::f32, spec.values());
      run(step_arguments(problem, 0, out.o.view(), out.ht.view()), {.threads = threads});
      return out;
    };
    const Results<Tensor> alone = step(1);
    for (const int threads : kThreads) {
      SCOPED_TRACE(fmt::format("{} rows, {} threads", rows, threads));
      expect_same_bits(step(threads), alone);
    }
  }
}

// Repeating a run changes nothing either.
TEST(ThreadInvariance, OfRepeatedRuns) {
  const CaseSpec spec = specs()[1];
  const RecurrenceCase problem = random_case(spec, 23);
  const Results<Tensor> first = run_both(problem, {Form::chunk, 32, 5, true});
  for (int repeat = 0; repeat < 10; ++repeat) expect_same_bits(run_both(problem, {Form::chunk, 32, 5, true}), first);
}

}  // namespace
}  // namespace qdelta::testing
