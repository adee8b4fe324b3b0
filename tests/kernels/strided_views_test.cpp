// Tensors may lie in memory in any way. Results are the same bits as for row-major ones, every element is written, and
// nothing else is.
#include <gtest/gtest.h>

#include "kernels/recurrence_case.h"
#include "kernels/strided_tensor.h"

namespace qdelta::testing {
namespace {

const std::vector<MemoryLayout>& layouts() {
  static const std::vector<MemoryLayout> all{
      {"padded_rows", {}, 1, 5, 0, false},
      {"padded_everywhere", {}, 1, 3, 7, false},
      {"heads_first", {0, 2, 1, 3}, 1, 0, 0, false},  // [B, H, T, K] seen as [B, T, H, K]
      {"width_outermost", {3, 0, 2, 1}, 1, 1, 0, false},
      {"every_third", {}, 3, 2, 1, false},
      {"backwards", {}, 1, 1, 0, true},
  };
  return all;
}

class StridedViews : public ::testing::TestWithParam<std::tuple<std::size_t, DType>> {
 protected:
  static const MemoryLayout& layout() { return layouts()[std::get<0>(GetParam())]; }
  static CaseSpec spec() {
    CaseSpec made;
    made.dtype = std::get<1>(GetParam());
    made.batch = 2;
    made.tokens = 37;
    made.heads = 2;
    made.shared = 2;
    made.key_dim = 19;
    made.value_dim = 70;
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, StridedViews,
                         ::testing::Combine(::testing::Range(std::size_t{0}, layouts().size()),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& test) {
                           return layouts()[std::get<0>(test.param)].name + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

// The tensors of a problem and of its results, all in one layout.
struct StridedCase : CaseAt<StridedTensor, MemoryLayout> {
  StridedTensor o, ht, dq, dk, dv, dg, dbeta, dlambda, dh0;

  StridedCase(const RecurrenceCase& problem, const Results<Tensor>& out, const MemoryLayout& layout)
      : CaseAt(problem, layout),
        o(out.o, layout),
        ht(out.ht, layout),
        dq(out.dq, layout),
        dk(out.dk, layout),
        dv(out.dv, layout),
        dg(out.dg, layout),
        dbeta(out.dbeta, layout),
        dlambda(out.dlambda, layout),
        dh0(out.dh0, layout) {}

  [[nodiscard]] Results<Tensor> contents() const {
    return {o.content(),  ht.content(),    dq.content(),      dk.content(), dv.content(),
            dg.content(), dbeta.content(), dlambda.content(), dh0.content()};
  }
  [[nodiscard]] bool guards_untouched() const {
    for (const StridedTensor* tensor :
         {&q, &k, &v, &g, &beta, &lambda, &h0, &d_o, &d_ht, &o, &ht, &dq, &dk, &dv, &dg, &dbeta, &dlambda, &dh0}) {
      if (!tensor->guards_untouched()) return false;
    }
    return true;
  }
};

TEST_P(StridedViews, OfSequences) {
  const RecurrenceCase problem = random_case(spec(), 51);
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> expected = run_both(problem, how);
    StridedCase strided(problem, make_results(spec()), layout());
    run(forward_arguments(strided, strided, how), how.device());
    run(backward_arguments(strided, strided, how), how.device());
    expect_same_bits(strided.contents(), expected);
    EXPECT_TRUE(strided.guards_untouched());
  }
}

TEST_P(StridedViews, OfChunkStates) {
  const RecurrenceCase problem = random_case(spec(), 52);
  const RunOptions how{Form::chunk, 16, 0, true};
  const Results<Tensor> expected = run_both(problem, how);
  Results<Tensor> out = make_results(spec());
  const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), how.execution());
  StridedTensor states(nan_tensor(DType::f32, {chunks, spec().value_heads(), spec().key_dim, spec().value_dim}),
                       layout());
  RecurrenceForward forward = forward_arguments(problem, out, how);
  forward.chunk_states = states.view();
  run(forward, how.device());
  RecurrenceBackward backward = backward_arguments(problem, out, how);
  backward.chunk_states = states.view();
  run(backward, how.device());
  expect_same_bits(out, expected);
  EXPECT_TRUE(states.guards_untouched());
}

// Packed sequences in strided memory.
TEST_P(StridedViews, OfPackedSequences) {
  CaseSpec packed = spec();
  packed.batch = 1;
  packed.cu_seqlens = {0, 5, 5, 37};
  const RecurrenceCase problem = random_case(packed, 53);
  const RunOptions how{Form::chunk, 16, 0, true};
  const Results<Tensor> expected = run_forward(problem, how);
  StridedCase strided(problem, make_results(packed), layout());
  run(forward_arguments(strided, strided, how), how.device());
  EXPECT_TRUE(same_bits(strided.o.content(), expected.o));
  EXPECT_TRUE(same_bits(strided.ht.content(), expected.ht));
  EXPECT_TRUE(strided.guards_untouched());
}

// A stride of zero: one value for many places, as for a decay that all tokens share.
TEST(StridedInputs, MayRepeat) {
  CaseSpec spec;
  spec.heads = 2;
  RecurrenceCase problem = random_case(spec, 54);
  const std::span<float> g = problem.g.as<float>();
  for (std::size_t i = 2; i < g.size(); ++i) g[i] = g[i % 2];
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> expected = run_both(problem, how);
    Results<Tensor> out = make_results(spec);
    RecurrenceForward forward = forward_arguments(problem, out, how);
    forward.in.g.stride[1] = 0;
    run(forward, how.device());
    RecurrenceBackward backward = backward_arguments(problem, out, how);
    backward.in.g.stride[1] = 0;
    run(backward, how.device());
    expect_same_bits(out, expected);
  }
}

// Each tensor may have a type of its own.
TEST(MixedTypes, AreConvertedOneByOne) {
  CaseSpec spec;
  spec.value_dim = 40;
  RecurrenceCase problem = random_case(spec, 55);
  for (Tensor RecurrenceCase::*rounded : {&RecurrenceCase::k, &RecurrenceCase::g, &RecurrenceCase::d_o}) {
    problem.*rounded = converted((problem.*rounded).view(), DType::bf16);
  }
  const Reference expected = reference_of(problem);
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    Results<Tensor> out = make_results(spec);
    out.o = nan_tensor(DType::bf16, spec.values());
    out.dk = nan_tensor(DType::bf16, spec.keys());
    out.dlambda = nan_tensor(DType::bf16, spec.gates());
    run(forward_arguments(problem, out, how), how.device());
    run(backward_arguments(problem, out, how), how.device());
    expect_close(out, expected, {});
  }
}

}  // namespace
}  // namespace qdelta::testing
