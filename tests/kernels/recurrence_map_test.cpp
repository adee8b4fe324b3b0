// The map of a range of tokens, S_out = M S_in + N and dS_in = M^T dS_out + dN, against the double-precision oracle,
// and a sequence cut into parts that know of each other by their maps alone.
#include "kernels/recurrence_map.h"

#include <gtest/gtest.h>

#include "kernels/extremes.h"
#include "kernels/recurrence_map_case.h"

namespace qdelta::testing {
namespace {

template <class Args>
void run_guarded(const Args& args, const Device& device, void (*op)(const Device&, const Args&, Workspace&)) {
  GuardedWorkspace memory(recurrence_workspace(device, args));
  Workspace workspace(memory.bytes());
  op(device, args, workspace);
}

struct Map {
  Tensor m, n, dn;
};

Map map_of(const RecurrenceCase& problem, const Device& device = kOneThread) {
  const CaseSpec& spec = problem.spec;
  Map map;
  map.m = nan_tensor(DType::f32, {spec.sequences(), spec.value_heads(), spec.key_dim, spec.key_dim});
  map.n = nan_tensor(DType::f32, spec.states());
  map.dn = nan_tensor(DType::f32, spec.states());
  run_guarded<RecurrenceMap>({.in = problem.inputs(), .m = map.m.view(), .n = map.n.view()}, device, recurrence_map);
  run_guarded<RecurrenceEntryGradient>({.in = problem.inputs(), .d_o = problem.d_o.view(), .dn = map.dn.view()}, device,
                                       recurrence_entry_gradient);
  return map;
}

Tensor product_of(const Tensor& m, const Tensor& state, const Tensor& add, bool transposed,
                  const Device& device = kOneThread) {
  Tensor out = nan_tensor(DType::f32, state.shape());
  run_guarded<RecurrenceMapProduct>(
      {.m = m.view(), .state = state.view(), .add = add.view(), .out = out.view(), .transposed = transposed}, device,
      recurrence_map_product);
  return out;
}

void expect_within(const Tensor& got, const std::vector<double>& expected, double allowed, const char* name) {
  constexpr double kVanishing = 1e-37;
  EXPECT_LE(
      relative_error(without_vanishing(to_doubles(got.view()), kVanishing), without_vanishing(expected, kVanishing)),
      allowed)
      << name;
}

// Where the outputs hardly depend on the entry state dN is what is left of numbers that cancel: its error is measured
// against what it is added up to.
void expect_entry_gradient(const Tensor& dn, const std::vector<double>& expected, const std::vector<double>& sum,
                           double allowed) {
  const std::vector<double> got = to_doubles(dn.view());
  double error = 0;
  double size = 0;
  double sum_size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
    sum_size += sum[i] * sum[i];
  }
  EXPECT_LE(std::sqrt(error), allowed * std::sqrt(std::max(size, sum_size))) << "dN";
}

// Every part of the map, and what it says about the case's own h0 and d_ht.
void check_map(const RecurrenceCase& problem, double slack = 1) {
  SCOPED_TRACE(describe(problem.spec));
  const Map map = map_of(problem);
  const Reference whole = reference_of(problem);
  expect_within(map.m, oracle_m(problem), slack * 1e-5, "M");
  expect_entry_gradient(map.dn, oracle_dn(problem), whole.dh0, slack * 1e-5);
  expect_within(product_of(map.m, problem.h0, map.n, false), whole.ht, slack * 1e-5, "M S + N");
  expect_within(product_of(map.m, problem.d_ht, map.dn, true), whole.dh0, slack * 1e-5, "M^T dS + dN");
  expect_within(map.n, oracle_n(problem), slack * 1e-5, "N");
}

class MapOf : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, MapOf, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(MapOf, AnyShape) {
  for (const std::int64_t tokens : {1, 63, 64, 150}) {
    for (const bool wide : {false, true}) {
      CaseSpec spec;
      spec.rule = GetParam();
      spec.tokens = tokens;
      spec.batch = wide ? 2 : 1;
      spec.heads = wide ? 2 : 1;
      spec.shared = wide ? 1 : 3;
      spec.key_dim = wide ? 33 : 16;
      spec.value_dim = wide ? 20 : 90;
      check_map(random_case(spec, 41));
    }
  }
}

TEST_P(MapOf, PackedSequences) {
  CaseSpec spec;
  spec.rule = GetParam();
  spec.tokens = 140;
  spec.cu_seqlens = {0, 1, 1, 70, 140};
  spec.heads = 2;
  spec.shared = 2;
  spec.key_dim = 24;
  spec.value_dim = 17;
  spec.highest_beta = spec.highest_lambda = 2;
  check_map(random_case(spec, 42));
}

TEST_P(MapOf, ExtremeInputs) {
  for (const Extreme& extreme : extremes()) {
    SCOPED_TRACE(extreme.name);
    check_map(extreme_case(extreme, GetParam()), extreme.slack);
  }
}

TEST_P(MapOf, BitsDoNotDependOnThreads) {
  CaseSpec spec;
  spec.rule = GetParam();
  spec.tokens = 130;
  spec.value_dim = 150;
  const RecurrenceCase problem = random_case(spec, 43);
  const Map one = map_of(problem, {.threads = 1});
  const Map three = map_of(problem, {.threads = 3});
  EXPECT_TRUE(same_bits(one.m, three.m));
  EXPECT_TRUE(same_bits(one.n, three.n));
  EXPECT_TRUE(same_bits(one.dn, three.dn));
  EXPECT_TRUE(same_bits(product_of(one.m, problem.h0, one.n, true, {.threads = 1}),
                        product_of(one.m, problem.h0, one.n, true, {.threads = 3})));
}

// Correlated keys, beta up to 2, lambda up to 2: the map may stretch, and yet every part of a long sequence, run from
// the states that the maps give, has the outputs and gradients of the whole.
TEST_P(MapOf, PartsOfALongSequence) {
  constexpr std::int64_t kParts = 4;
  constexpr std::int64_t kLength = 75;
  CaseSpec spec;
  spec.rule = GetParam();
  spec.tokens = kParts * kLength;
  spec.heads = 2;
  spec.key_dim = 24;
  spec.value_dim = 20;
  spec.lowest_g = -0.05;
  spec.highest_beta = 2;
  spec.highest_lambda = traits_of(spec.rule).reads_lambda ? 0.5 : 0;
  RecurrenceCase whole = random_case(spec, 44);
  const std::span<float> k = whole.k.as<float>();
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = 0.3F * k[i] + 0.7F * k[i % static_cast<std::size_t>(2 * 24)];
  const Reference expected = reference_of(whole);

  Results<Tensor> out = make_results(spec);
  const RunOptions how{Form::chunk, 0, 1, true};
  const auto tokens = [](auto view, std::int64_t part) { return narrowed(view, 1, part * kLength, kLength); };
  const auto inputs = [&](std::int64_t part) {
    RecurrenceInputs in = whole.inputs();
    for (ConstTensorView* view : {&in.q, &in.k, &in.v, &in.g, &in.beta, &in.lambda}) *view = tokens(*view, part);
    return in;
  };
  // Each part's map by itself, then a product after the other.
  std::vector<Map> maps;
  for (std::int64_t part = 0; part < kParts; ++part) {
    Map& map = maps.emplace_back();
    map.m = nan_tensor(DType::f32, {1, 2, 24, 24});
    map.n = nan_tensor(DType::f32, spec.states());
    map.dn = nan_tensor(DType::f32, spec.states());
    run_guarded<RecurrenceMap>({.in = inputs(part), .m = map.m.view(), .n = map.n.view()}, kOneThread, recurrence_map);
    run_guarded<RecurrenceEntryGradient>(
        {.in = inputs(part), .d_o = tokens(std::as_const(whole.d_o).view(), part), .dn = map.dn.view()}, kOneThread,
        recurrence_entry_gradient);
  }
  std::vector<Tensor> entry(kParts + 1);
  std::vector<Tensor> d_exit(kParts + 1);
  entry[0] = converted(std::as_const(whole.h0).view(), DType::f32);
  d_exit[kParts] = converted(std::as_const(whole.d_ht).view(), DType::f32);
  for (std::size_t part = 0; part < kParts; ++part) {
    entry[part + 1] = product_of(maps[part].m, entry[part], maps[part].n, false);
  }
  for (std::size_t part = kParts; part-- > 0;) {
    d_exit[part] = product_of(maps[part].m, d_exit[part + 1], maps[part].dn, true);
  }
  for (std::int64_t part = 0; part < kParts; ++part) {
    RecurrenceForward forward = forward_arguments(whole, out, how);
    forward.in = inputs(part);
    forward.in.h0 = std::as_const(entry[static_cast<std::size_t>(part)]).view();
    forward.o = tokens(forward.o, part);
    run(forward, kOneThread);
    RecurrenceBackward backward = backward_arguments(whole, out, how);
    backward.in = forward.in;
    backward.d_o = tokens(backward.d_o, part);
    backward.d_ht = std::as_const(d_exit[static_cast<std::size_t>(part) + 1]).view();
    for (TensorView* view :
         {&backward.dq, &backward.dk, &backward.dv, &backward.dg, &backward.dbeta, &backward.dlambda}) {
      *view = tokens(*view, part);
    }
    backward.dh0 = {};
    run(backward, kOneThread);
  }
  out.ht = std::move(entry[kParts]);
  out.dh0 = std::move(d_exit[0]);
  expect_close(out, expected, {});
}

TEST(MapArguments, AreChecked) {
  CaseSpec spec;
  const RecurrenceCase problem = random_case(spec, 45);
  Tensor wrong = nan_tensor(DType::f32, {1, 1, 16, 15});
  Tensor state = nan_tensor(DType::f32, spec.states());
  Workspace workspace(Device{});
  const auto message = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { recurrence_map({}, {.in = problem.inputs(), .m = wrong.view(), .n = {}}, workspace); }),
            "m has shape [1, 1, 16, 15], expected [N, HV, K, K] = [1, 1, 16, 16]");
  EXPECT_EQ(message([&] {
              recurrence_entry_gradient({}, {.in = problem.inputs(), .d_o = problem.d_o.view(), .dn = {}}, workspace);
            }),
            "dn [N, HV, K, V] is missing");
  EXPECT_EQ(message([&] {
              recurrence_map_product({}, {.m = wrong.view(), .state = state.view(), .add = {}, .out = state.view()},
                                     workspace);
            }),
            "m has shape [1, 1, 16, 15], expected [N, HV, K, K] = [1, 1, 16, 16]");
}

}  // namespace
}  // namespace qdelta::testing
