// A sequence cut in two, its state carried over, is the sequence; and so are its gradients.
#include <gtest/gtest.h>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

constexpr std::int64_t kWhole = 100;

RecurrenceCase whole_case(Rule rule) {
  CaseSpec spec;
  spec.rule = rule;
  spec.batch = 2;
  spec.tokens = kWhole;
  spec.heads = 1;
  spec.shared = 2;
  spec.key_dim = 33;
  spec.value_dim = 20;
  return random_case(spec, 31);
}

// The tokens [begin, begin + count) of every tensor with a time axis.
RecurrenceInputs tokens_of(RecurrenceInputs in, std::int64_t begin, std::int64_t count) {
  for (ConstTensorView* view : {&in.q, &in.k, &in.v, &in.g, &in.beta, &in.lambda}) {
    *view = narrowed(*view, 1, begin, count);
  }
  return in;
}

RecurrenceForward tokens_of(RecurrenceForward args, std::int64_t begin, std::int64_t count) {
  args.in = tokens_of(args.in, begin, count);
  args.o = narrowed(args.o, 1, begin, count);
  return args;
}

RecurrenceBackward tokens_of(RecurrenceBackward args, std::int64_t begin, std::int64_t count) {
  args.in = tokens_of(args.in, begin, count);
  args.d_o = narrowed(args.d_o, 1, begin, count);
  for (TensorView* view : {&args.dq, &args.dk, &args.dv, &args.dg, &args.dbeta, &args.dlambda}) {
    *view = narrowed(*view, 1, begin, count);
  }
  return args;
}

// Both parts write into the same results, each its tokens; the state and its gradient pass between them.
Results<Tensor> run_in_parts(const RecurrenceCase& problem, const RunOptions& how, std::int64_t cut) {
  Results<Tensor> out = make_results(problem.spec);
  Tensor state = nan_tensor(DType::f32, problem.spec.states());
  Tensor d_state = nan_tensor(DType::f32, problem.spec.states());

  RecurrenceForward forward = forward_arguments(problem, out, how);
  RecurrenceForward first = tokens_of(forward, 0, cut);
  first.ht = state.view();
  run(first, how.device());
  RecurrenceForward second = tokens_of(forward, cut, kWhole - cut);
  second.in.h0 = state.view();
  run(second, how.device());

  const RecurrenceBackward backward = backward_arguments(problem, out, how);
  RecurrenceBackward second_back = tokens_of(backward, cut, kWhole - cut);
  second_back.in.h0 = state.view();
  second_back.dh0 = d_state.view();
  run(second_back, how.device());
  RecurrenceBackward first_back = tokens_of(backward, 0, cut);
  first_back.d_ht = d_state.view();
  run(first_back, how.device());
  return out;
}

class SplitInvariance : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, SplitInvariance, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(SplitInvariance, OfOutputsAndGradients) {
  const RecurrenceCase problem = whole_case(GetParam());
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> whole = run_both(problem, how);
    const auto values = [](const Tensor& tensor) { return to_doubles(tensor.view()); };
    const Reference expected{values(whole.o),     values(whole.ht),      values(whole.dq),
                             values(whole.dk),    values(whole.dv),      values(whole.dg),
                             values(whole.dbeta), values(whole.dlambda), values(whole.dh0)};
    for (const std::int64_t cut : {0, 1, 7, 16, 33, 64, 65, 99, 100}) {
      if (quick() && cut % 2 == 0) continue;
      SCOPED_TRACE(fmt::format("cut at {}", cut));
      expect_close(run_in_parts(problem, how, cut), expected, {2e-6, 4e-6});
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
