// qdelta_forward, qdelta_backward and qdelta_chunk_count: the same bits as the C++ kernels, whatever the layout.
#include "capi_testing.h"
#include "kernels/recurrence_reference.h"

namespace qdelta::testing {
namespace {

class Rules : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(All, Rules, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(Rules, EveryFormGivesTheBitsOfTheKernels) {
  for (const qdelta_form form : {QDELTA_CHUNK, QDELTA_RECURRENT, QDELTA_ORACLE, QDELTA_AUTO}) {
    Problem problem(GetParam());
    problem.options.form = form;
    CProblem c(problem);
    ASSERT_TRUE(ok(c.forward()));
    ASSERT_TRUE(ok(c.backward()));
    c.expect_results(problem.expected());
  }
}

// Not only the same as the kernels: right. The oracle form was compared with itself above.
TEST_P(Rules, FormsAgreeWithTheOracle) {
  Problem problem(GetParam());
  CProblem c(problem);
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  problem.options.form = QDELTA_ORACLE;
  for (const auto& [name, values] : problem.expected()) {
    const Tensor got = c.tensors.at(name).values();
    EXPECT_LT(relative_error(got.view(), to_doubles(values.view())), 1e-5) << name;
  }
}

TEST_P(Rules, InputsThatTheRuleDoesNotReadMayBeNull) {
  const Problem problem(GetParam());
  CProblem c(problem);
  if (!traits_of(GetParam()).reads_beta) c.in.beta = nullptr;
  if (!traits_of(GetParam()).reads_lambda) c.in.lambda = nullptr;
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  c.expect_results(problem.expected());
}

struct NamedLayout {
  const char* name;
  Layout layout;
};
class Layouts : public ::testing::TestWithParam<NamedLayout> {};
INSTANTIATE_TEST_SUITE_P(
    All, Layouts,
    ::testing::Values(NamedLayout{"null_strides", {}}, NamedLayout{"row_major", {true, false, 1, 0}},
                      NamedLayout{"byte_offset", {false, false, 1, 40}}, NamedLayout{"heads_first", {true, true, 1, 0}},
                      NamedLayout{"every_second", {true, false, 2, 0}},
                      NamedLayout{"heads_first_every_third_from_an_offset", {true, true, 3, 16}}),
    [](const ::testing::TestParamInfo<NamedLayout>& test) { return std::string(test.param.name); });

TEST_P(Layouts, GiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const qdelta_form form : {QDELTA_CHUNK, QDELTA_RECURRENT, QDELTA_ORACLE, QDELTA_AUTO}) {
      Problem problem(Rule::q_delta, dtype);
      problem.options.form = form;
      CProblem c(problem, GetParam().layout);
      ASSERT_TRUE(ok(c.forward()));
      ASSERT_TRUE(ok(c.backward()));
      c.expect_results(problem.expected());
    }
  }
}

TEST_P(Layouts, GiveTheSameBitsOfPackedSequences) {
  const Problem problem(Rule::q_delta, DType::f32, {1, 100, 2, 2, 16, 20}, {0, 3, 3, 70, 100});
  for (const DType offset_type : {DType::i32, DType::i64}) {
    CProblem c(problem, GetParam().layout, offset_type);
    ASSERT_TRUE(ok(c.forward()));
    ASSERT_TRUE(ok(c.backward()));
    c.expect_results(problem.expected());
  }
}

TEST(Operators, BFloat16IsCloseToFloat) {
  Problem narrow(Rule::q_delta, DType::bf16);
  CProblem c(narrow);
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  Problem wide(Rule::q_delta, DType::f32);
  for (auto& [name, values] : wide.tensors) values = converted(std::as_const(narrow.tensors[name]).view(), DType::f32);
  for (const auto& [name, values] : wide.expected()) {
    const Tensor got = c.tensors.at(name).values();
    EXPECT_LT(relative_error(got.view(), to_doubles(values.view())), 0.01) << name;
  }
}

TEST(Operators, OptionalOutputsMayBeNull) {
  const Problem problem(Rule::q_delta);
  CProblem c(problem);
  c.out.ht = nullptr;
  c.d_in.dbeta = c.d_in.dlambda = c.d_in.dh0 = nullptr;
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  std::map<std::string, Tensor> expected = problem.expected();
  for (const char* name : {"ht", "dbeta", "dlambda", "dh0"}) expected.erase(name);
  c.expect_results(expected);
}

TEST(Operators, MissingStatesAreZeros) {
  Problem problem(Rule::q_delta);
  for (const char* name : {"h0", "d_ht"}) problem.tensors[name] = Tensor(DType::f32, problem.states());
  CProblem c(problem);
  c.in.h0 = nullptr;
  c.d_out.d_ht = nullptr;
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  c.expect_results(problem.expected());
}

TEST(Operators, EveryOptionIsPassedOn) {
  Problem problem(Rule::q_delta);
  problem.options.scale = -0.75F;
  problem.options.qk_l2norm = 0;
  problem.options.chunk = 16;
  problem.options.threads = 3;
  // Without the norm q and k are long, and the state would explode.
  for (const char* name : {"q", "k"}) {
    for (float& value : problem.tensors[name].as<float>()) value *= 0.2F;
  }
  CProblem c(problem);
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  c.expect_results(problem.expected());
  // And each makes a difference, or cannot.
  const Tensor o = c.tensors.at("o").values();
  c.options.threads = 1;
  ASSERT_TRUE(ok(c.forward()));
  EXPECT_TRUE(same_bits(c.tensors.at("o").values(), o));
  c.options.qk_l2norm = 1;
  ASSERT_TRUE(ok(c.forward()));
  EXPECT_FALSE(same_bits(c.tensors.at("o").values(), o));
  c.options.qk_l2norm = 0;
  c.options.scale = 0;
  ASSERT_TRUE(ok(c.forward()));
  EXPECT_FALSE(same_bits(c.tensors.at("o").values(), o));
}

TEST(Operators, ChunkStatesOfTheForwardServeTheBackward) {
  const std::vector<std::vector<std::int64_t>> packings = {{}, {0, 1, 1, 64, 130, 200}};
  for (const std::vector<std::int64_t>& offsets : packings) {
    for (const std::int32_t chunk : {0, 16, 128}) {
      Problem problem(Rule::q_delta, DType::f32, {offsets.empty() ? 2 : 1, 200, 1, 2, 16, 16}, offsets);
      problem.options.chunk = chunk;
      CProblem c(problem);
      const std::int64_t chunks = qdelta_chunk_count(&c.options, &c.in);
      const std::int64_t length = chunk == 0 ? kDefaultChunk : chunk;
      std::int64_t expected = 2 * ceil_div(200, length);
      if (!offsets.empty()) {
        expected = 0;
        for (std::size_t n = 0; n + 1 < offsets.size(); ++n) expected += ceil_div(offsets[n + 1] - offsets[n], length);
      }
      ASSERT_EQ(chunks, expected);
      DlTensor states(DType::f32, {chunks, 2, 16, 16});
      c.out.chunk_states = states.get();
      ASSERT_TRUE(ok(c.forward()));
      EXPECT_TRUE(states.surroundings_untouched());
      c.d_out.chunk_states = states.get();
      ASSERT_TRUE(ok(c.backward()));
      // A forward that keeps states has a default of its own, so what is expected is asked for with the length spelled
      // out.
      problem.options.chunk = static_cast<std::int32_t>(length);
      c.expect_results(problem.expected());
      // The first chunk starts from h0.
      const Tensor saved = states.values();
      EXPECT_EQ(std::memcmp(saved.data(), problem.tensors["h0"].data(), sizeof(float) * 2 * 16 * 16), 0);
    }
  }
}

TEST(Operators, EmptyTensorsNeedNoMemory) {
  Problem problem(Rule::q_delta, DType::f32, {2, 0, 1, 1, 8, 8});
  CProblem c(problem);
  for (const char* name : {"q", "k", "v", "g", "beta", "lambda", "d_o", "o", "dq", "dk", "dv", "dg"}) {
    c.get(name)->data = nullptr;
  }
  ASSERT_TRUE(ok(c.forward()));
  ASSERT_TRUE(ok(c.backward()));
  EXPECT_TRUE(same_bits(c.tensors.at("ht").values(), problem.tensors["h0"]));
  EXPECT_TRUE(same_bits(c.tensors.at("dh0").values(), problem.tensors["d_ht"]));
  EXPECT_EQ(qdelta_chunk_count(&c.options, &c.in), 0);
}

TEST(Operators, PinnedMemoryIsTheCpusToo) {
  const Problem problem(Rule::q_delta);
  CProblem c(problem);
  c.get("q")->device = {kDLCUDAHost, 0};
  EXPECT_TRUE(ok(c.forward()));
}

}  // namespace
}  // namespace qdelta::testing
