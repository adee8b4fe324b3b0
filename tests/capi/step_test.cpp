// qdelta_step: one token at a time, in place on a pool of states.
#include "capi_testing.h"

namespace qdelta::testing {
namespace {

// Rows of one token each, a pool of states, and which state each row has.
struct StepProblem {
  std::int64_t R = 3, H = 2, HV = 4, K = 24, V = 40, P = 5;
  DType dtype;
  qdelta_options options{};
  std::map<std::string, Tensor> tensors;
  std::vector<std::int64_t> index = {4, 0, 2};

  explicit StepProblem(Rule rule, DType dtype_ = DType::f32) : dtype(dtype_) {
    qdelta_options_init(&options);
    options.rule = static_cast<qdelta_rule>(rule);
    options.qk_l2norm = 1;
    Random random(static_cast<std::uint64_t>(rule));
    tensors["q"] = random_tensor(random, dtype, {R, H, K}, -1, 1);
    tensors["k"] = random_tensor(random, dtype, {R, H, K}, -1, 1);
    tensors["v"] = random_tensor(random, dtype, {R, HV, V}, -1, 1);
    tensors["g"] = random_tensor(random, DType::f32, {R, HV}, -0.2, 0);
    tensors["beta"] = random_tensor(random, DType::f32, {R, HV}, 0, 1);
    tensors["lambda"] = random_tensor(random, DType::f32, {R, HV}, 0, 1);
    tensors["states"] = random_tensor(random, DType::f32, {P, HV, K, V}, -1, 1);
  }

  [[nodiscard]] Tensor index_tensor(DType type) const {
    Tensor result(type, {R});
    for (std::size_t r = 0; r < index.size(); ++r) {
      if (type == DType::i32) result.as<std::int32_t>()[r] = static_cast<std::int32_t>(index[r]);
      if (type == DType::i64) result.as<std::int64_t>()[r] = index[r];
    }
    return result;
  }

  // o and the states from the C++ kernel.
  [[nodiscard]] std::map<std::string, Tensor> expected(bool indexed) const {
    std::map<std::string, Tensor> out;
    out["o"] = Tensor(dtype, {R, HV, V});
    out["states"] = converted(tensors.at("states").view(), DType::f32);
    const Tensor at = index_tensor(DType::i64);
    RecurrenceStep args;
    args.rule = static_cast<Rule>(options.rule);
    args.scale = 1.0F / std::sqrt(static_cast<float>(K));
    args.qk_l2norm = true;
    args.q = tensors.at("q").view();
    args.k = tensors.at("k").view();
    args.v = tensors.at("v").view();
    args.g = tensors.at("g").view();
    args.beta = tensors.at("beta").view();
    args.lambda = tensors.at("lambda").view();
    args.states = out["states"].view();
    if (indexed) args.index = at.view();
    args.o = out["o"].view();
    Workspace workspace{Device{}};
    recurrence_step({}, args, workspace);
    return out;
  }
};

struct CStep {
  std::map<std::string, DlTensor> tensors;
  qdelta_options options;
  qdelta_step_arguments arguments{};

  explicit CStep(const StepProblem& from, const Layout& layout = {}, DType index_type = DType::i64)
      : options(from.options) {
    // The rows of a state are contiguous whatever the rest is like.
    const Layout state_layout{layout.strides, false, 1, layout.byte_offset};
    for (const auto& [name, values] : from.tensors) {
      tensors.try_emplace(name, values, name == "states" ? state_layout : layout);
    }
    tensors.try_emplace("o", from.dtype, Shape{from.R, from.HV, from.V}, layout);
    tensors.try_emplace("index", from.index_tensor(index_type), layout);
    const auto get = [&](const char* name) { return tensors.at(name).get(); };
    arguments = {get("q"),      get("k"),      get("v"),     get("g"), get("beta"),
                 get("lambda"), get("states"), get("index"), get("o")};
  }
  qdelta_status step() { return qdelta_step(&options, &arguments); }
};

class StepRules : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(All, StepRules, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(StepRules, GivesTheBitsOfTheKernel) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const StepProblem problem(GetParam(), dtype);
    const std::map<std::string, Tensor> expected = problem.expected(true);
    for (const Layout& layout : {Layout{}, Layout{true, false, 1, 8}, Layout{true, true, 3, 16}}) {
      for (const DType index_type : {DType::i32, DType::i64}) {
        CStep c(problem, layout, index_type);
        ASSERT_TRUE(ok(c.step()));
        for (const auto& [name, values] : expected) EXPECT_TRUE(same_bits(c.tensors.at(name).values(), values)) << name;
        for (auto& [name, tensor] : c.tensors) EXPECT_TRUE(tensor.surroundings_untouched()) << name;
      }
    }
  }
}

TEST_P(StepRules, StatesThatNoRowNamesStayAsTheyAre) {
  const StepProblem problem(GetParam());
  CStep c(problem);
  ASSERT_TRUE(ok(c.step()));
  const Tensor states = c.tensors.at("states").values();
  const std::size_t bytes = states.bytes() / static_cast<std::size_t>(problem.P);
  for (std::size_t p = 0; p < static_cast<std::size_t>(problem.P); ++p) {
    const bool named = std::count(problem.index.begin(), problem.index.end(), static_cast<std::int64_t>(p)) > 0;
    const int difference =
        std::memcmp(states.data() + p * bytes, problem.tensors.at("states").data() + p * bytes, bytes);
    EXPECT_EQ(difference != 0, named) << p;
  }
}

TEST_P(StepRules, WithoutAnIndexRowsHaveTheFirstStates) {
  const StepProblem problem(GetParam());
  CStep c(problem);
  c.arguments.index = nullptr;
  ASSERT_TRUE(ok(c.step()));
  for (const auto& [name, values] : problem.expected(false)) {
    EXPECT_TRUE(same_bits(c.tensors.at(name).values(), values)) << name;
  }
}

// A sequence at once, and the same token by token.
TEST_P(StepRules, StepsWalkTheSequenceOfTheForward) {
  const Extents at{3, 21, 2, 4, 24, 40};
  const Problem problem(GetParam(), DType::f32, at);
  CProblem whole(problem);
  ASSERT_TRUE(ok(whole.forward()));
  const Tensor o = whole.tensors.at("o").values();
  DlTensor pool(problem.tensors.at("h0"));
  // Token t of every sequence: views into the whole tensors, with the strides of the batch.
  for (std::int64_t t = 0; t < at.T; ++t) {
    std::int64_t key[] = {at.B, at.H, at.K}, value[] = {at.B, at.HV, at.V}, gate[] = {at.B, at.HV};
    std::int64_t key_strides[] = {at.T * at.H * at.K, at.K, 1}, value_strides[] = {at.T * at.HV * at.V, at.V, 1};
    std::int64_t gate_strides[] = {at.T * at.HV, 1};
    const auto token = [&](const char* name, int ndim, std::int64_t* shape, std::int64_t* strides) {
      DLTensor view = *whole.get(name);
      view.ndim = ndim;
      view.shape = shape;
      view.strides = strides;
      view.byte_offset += static_cast<std::uint64_t>(t * strides[0] / at.T) * sizeof(float);
      return view;
    };
    DLTensor q = token("q", 3, key, key_strides), k = token("k", 3, key, key_strides);
    DLTensor v = token("v", 3, value, value_strides), out = token("o", 3, value, value_strides);
    DLTensor g = token("g", 2, gate, gate_strides), beta = token("beta", 2, gate, gate_strides);
    DLTensor lambda = token("lambda", 2, gate, gate_strides);
    const qdelta_step_arguments arguments = {&q, &k, &v, &g, &beta, &lambda, pool.get(), nullptr, &out};
    ASSERT_TRUE(ok(qdelta_step(&whole.options, &arguments)));
  }
  EXPECT_LT(relative_error(whole.tensors.at("o").values().view(), to_doubles(o.view())), 1e-5);
  const Tensor ht = whole.tensors.at("ht").values();
  EXPECT_LT(relative_error(pool.values().view(), to_doubles(ht.view())), 1e-5);
}

TEST(Step, Refuses) {
  const StepProblem problem(Rule::q_delta);
  CStep c(problem);
  const auto refuse = [&](const std::vector<std::string>& pieces, auto change) {
    CStep changed(problem);
    change(changed);
    EXPECT_TRUE(refused(changed.step(), QDELTA_INVALID_ARGUMENT, pieces));
    EXPECT_TRUE(same_bits(changed.tensors.at("states").values(), problem.tensors.at("states")));
  };
  refuse({"q", "missing"}, [](CStep& s) { s.arguments.q = nullptr; });
  refuse({"k", "missing"}, [](CStep& s) { s.arguments.k = nullptr; });
  refuse({"v", "missing"}, [](CStep& s) { s.arguments.v = nullptr; });
  refuse({"g", "missing"}, [](CStep& s) { s.arguments.g = nullptr; });
  refuse({"o", "missing"}, [](CStep& s) { s.arguments.o = nullptr; });
  refuse({"states", "missing"}, [](CStep& s) { s.arguments.states = nullptr; });
  refuse({"q_delta", "beta"}, [](CStep& s) { s.arguments.beta = nullptr; });
  refuse({"q_delta", "lambda"}, [](CStep& s) { s.arguments.lambda = nullptr; });
  refuse({"index", "9"}, [](CStep& s) { static_cast<std::int64_t*>(s.tensors.at("index").get()->data)[1] = 9; });
  refuse({"index", "-1"}, [](CStep& s) { static_cast<std::int64_t*>(s.tensors.at("index").get()->data)[1] = -1; });
  refuse({"index", "2", "twice"},
         [](CStep& s) { static_cast<std::int64_t*>(s.tensors.at("index").get()->data)[1] = 2; });
  refuse({"index", "F32"}, [](CStep& s) { s.arguments.index = s.tensors.at("g").get(); });
  refuse({"v", "4"}, [](CStep& s) { s.arguments.v = s.tensors.at("g").get(); });
  EXPECT_TRUE(refused(qdelta_step(&c.options, nullptr), QDELTA_INVALID_ARGUMENT, {"arguments", "NULL"}));
  EXPECT_TRUE(refused(qdelta_step(nullptr, &c.arguments), QDELTA_INVALID_ARGUMENT, {"options", "NULL"}));
}

TEST(Step, RefusesStatesWhoseRowsAreNotContiguous) {
  const StepProblem problem(Rule::q_delta);
  CStep c(problem);
  DlTensor states(problem.tensors.at("states"), {true, false, 2, 0});
  c.arguments.states = states.get();
  EXPECT_TRUE(refused(c.step(), QDELTA_INVALID_ARGUMENT, {"states", "contiguous"}));
}

// 2^36 states of no elements: nothing to check or to allocate for each of them.
TEST(Step, APoolOfEmptyStatesCostsNothing) {
  constexpr std::int64_t kRows = 20000;
  static std::int64_t pool[4] = {std::int64_t{1} << 36U, 1, 1, 0};
  static std::int64_t keys[3] = {kRows, 1, 1};
  static std::int64_t values[3] = {kRows, 1, 0};
  static std::int64_t rows[1] = {kRows};
  std::vector<float> floats(kRows);
  std::vector<std::int64_t> index(kRows);
  for (std::int64_t i = 0; i < kRows; ++i) index[static_cast<std::size_t>(i)] = pool[0] / kRows * i;
  const auto tensor = [&](void* data, std::int64_t* shape, int rank) {
    return DLTensor{data, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, nullptr, 0};
  };
  DLTensor key = tensor(floats.data(), keys, 3);
  DLTensor value = tensor(nullptr, values, 3);
  DLTensor gate = tensor(floats.data(), keys, 2);
  DLTensor states = tensor(nullptr, pool, 4);
  DLTensor which = tensor(index.data(), rows, 1);
  which.dtype = {kDLInt, 64, 1};
  qdelta_step_arguments arguments{};
  arguments.q = arguments.k = &key;
  arguments.v = arguments.o = &value;
  arguments.g = arguments.beta = arguments.lambda = &gate;
  arguments.states = &states;
  arguments.index = &which;
  qdelta_options options;
  qdelta_options_init(&options);
  EXPECT_TRUE(ok(qdelta_step(&options, &arguments)));
}

TEST(Step, RefusesStatesThatShareMemory) {
  const StepProblem problem(Rule::q_delta);
  CStep c(problem);
  static std::int64_t strides[4] = {0, 0, 0, 1};
  c.tensors.at("states").get()->strides = strides;
  EXPECT_TRUE(refused(c.step(), QDELTA_INVALID_ARGUMENT, {"states", "one place"}));
}

TEST(Step, RefusesMoreRowsThanStates) {
  StepProblem problem(Rule::q_delta);
  problem.tensors["states"] = Tensor(DType::f32, {2, problem.HV, problem.K, problem.V});
  CStep c(problem);
  c.arguments.index = nullptr;
  EXPECT_TRUE(refused(c.step(), QDELTA_INVALID_ARGUMENT, {"3 rows", "2 states"}));
}

}  // namespace
}  // namespace qdelta::testing
