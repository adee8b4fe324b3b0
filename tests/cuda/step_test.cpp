// One token at a time on the GPU: the recurrence in place on a pool of states against the double-precision oracle, and
// the sampler against what the CPU's would draw from.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "cuda/recurrence_on_gpu.h"
#include "kernels/cuda/layers.h"

namespace qdelta::testing {
namespace {

double worst_o[2] = {};
double worst_state[2] = {};
class Report : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const int i : {0, 1}) {
      std::printf("  recurrence_step %s: o %.2e, states %.2e\n", i == 0 ? "f32" : "bf16", worst_o[i], worst_state[i]);
    }
  }
};
const ::testing::Environment* const kReport = ::testing::AddGlobalTestEnvironment(new Report);

void expect_steps(const RecurrenceCase& problem, const Placement& place, const Placement& state_place) {
  const Reference expected = reference_of(problem);
  const DeviceProblem dev(problem, place);
  const DeviceTensor o(problem.spec.dtype, problem.spec.values(), place);
  const DeviceTensor states(problem.h0, state_place);
  for (std::int64_t t = 0; t < problem.spec.tokens; ++t) {
    cuda::recurrence_step(device_context(), step_arguments(dev, t, o.view(), states.view()));
  }
  const bool narrow = problem.spec.dtype == DType::bf16;
  const double o_error = relative_error(o.get().view(), expected.o);
  const double state_error = relative_error(states.get().view(), expected.ht);
  worst_o[narrow] = std::max(worst_o[narrow], o_error);
  worst_state[narrow] = std::max(worst_state[narrow], state_error);
  EXPECT_LE(o_error, narrow ? 3e-3 : 2e-6);
  EXPECT_LE(state_error, 2e-6);
}

class CudaStepOfRule : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, CudaStepOfRule, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(CudaStepOfRule, StepsEqualTheSequence) {
  QDELTA_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool norm : {true, false}) {
      for (const bool unread : {true, false}) {
        for (const auto& [K, V] : {std::pair<std::int64_t, std::int64_t>{18, 37}, {64, 64}, {128, 96}}) {
          CaseSpec spec;
          spec.rule = GetParam();
          spec.batch = 3;
          spec.tokens = 12;
          spec.heads = 2;
          spec.shared = 2;
          spec.key_dim = K;
          spec.value_dim = V;
          spec.dtype = dtype;
          spec.qk_l2norm = norm;
          spec.unread_gates = unread;
          SCOPED_TRACE(describe(spec));
          expect_steps(random_case(spec, 61), {0, 0}, {0, 0});
        }
      }
    }
  }
}

TEST_P(CudaStepOfRule, AnyWidths) {
  QDELTA_NEEDS_DEVICE();
  for (const std::int64_t key_dim : {1, 3, 16, 33, 130, 256}) {
    for (const std::int64_t value_dim : {1, 4, 17, 32, 36, 65, 260}) {
      CaseSpec spec;
      spec.rule = GetParam();
      spec.tokens = 3;
      spec.key_dim = key_dim;
      spec.value_dim = value_dim;
      SCOPED_TRACE(describe(spec));
      expect_steps(random_case(spec, 65), {1, 3}, {0, 0});
      expect_steps(random_case(spec, 66), {0, 0}, {4, 4});
      expect_steps(random_case(spec, 67), {0, 0}, {1, 1});
    }
  }
}

TEST(CudaStep, LongKeysDoNotOverflow) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  spec.tokens = 2;
  RecurrenceCase problem = random_case(spec, 71);
  for (float& value : problem.k.as<float>()) value *= 1e25F;
  for (float& value : problem.q.as<float>()) value *= 1e25F;
  expect_steps(problem, {0, 0}, {0, 0});
}

// Tokens beside the states
// ---------------------------------------------------------------------------------------------

Tensor no_recent_tokens(std::int64_t count, const CaseSpec& spec) {
  return {DType::f32, {count, spec.value_heads(), recent_elements(spec.key_dim, spec.value_dim)}};  // zeros
}

TEST_P(CudaStepOfRule, RecentTokensBesideTheStates) {
  QDELTA_NEEDS_DEVICE();
  for (const auto& [K, V] : {std::pair<std::int64_t, std::int64_t>{18, 37}, {64, 64}, {128, 96}, {130, 260}}) {
    for (const std::int64_t tokens : {1, 15, 16, 37}) {
      CaseSpec spec;
      spec.rule = GetParam();
      spec.batch = 2;
      spec.tokens = tokens;
      spec.heads = 2;
      spec.shared = 2;
      spec.key_dim = K;
      spec.value_dim = V;
      spec.qk_l2norm = true;
      SCOPED_TRACE(describe(spec));
      const RecurrenceCase problem = random_case(spec, 81);
      const Reference expected = reference_of(problem);
      const DeviceProblem dev(problem, {});
      const DeviceTensor o(spec.dtype, spec.values());
      const DeviceTensor states(problem.h0);
      const DeviceTensor recent(no_recent_tokens(spec.batch, spec));
      for (std::int64_t t = 0; t < tokens; ++t) {
        RecurrenceStep args = step_arguments(dev, t, o.view(), states.view());
        args.recent = recent.view();
        cuda::recurrence_step(device_context(), args);
        // Written every kRecentTokens times only.
        if (t < kRecentTokens) {
          EXPECT_TRUE(same_bits(states.get(), problem.h0)) << "after token " << t;
        }
      }
      const RecurrenceSettle settle{.states = states.view(), .recent = recent.view()};
      cuda::recurrence_settle(device_context(), settle);
      EXPECT_LE(relative_error(o.get().view(), expected.o), 2e-6);
      const Tensor settled = states.get();
      EXPECT_LE(relative_error(settled.view(), expected.ht), 2e-6);
      cuda::recurrence_settle(device_context(), settle);
      EXPECT_TRUE(same_bits(states.get(), settled)) << "tokens were settled twice";
    }
  }
}

// With some tokens read and taken back on the way, everything has the same bits as without them.
TEST(CudaStep, RecentTokensCanBeTakenBack) {
  QDELTA_NEEDS_DEVICE();
  struct Detour {
    std::int64_t begin, tokens;
  };
  CaseSpec spec;
  spec.batch = 2;
  spec.tokens = 40;
  spec.key_dim = 40;
  spec.value_dim = 100;
  spec.qk_l2norm = true;
  const RecurrenceCase problem = random_case(spec, 83);
  const DeviceProblem dev(problem, {});
  struct Result {
    Tensor o, states;
  };
  const auto run = [&](const Detour& detour, bool takes_it) {
    const DeviceTensor o(spec.dtype, spec.values());
    const DeviceTensor states(problem.h0);
    const DeviceTensor recent(no_recent_tokens(spec.batch, spec));
    for (std::int64_t t = 0; t < spec.tokens; ++t) {
      if (!takes_it && t >= detour.begin && t < detour.begin + detour.tokens) continue;
      RecurrenceStep args = step_arguments(dev, t, o.view(), states.view());
      args.recent = recent.view();
      cuda::recurrence_step(device_context(), args);
      if (t + 1 != detour.begin + detour.tokens) continue;
      cuda::recurrence_undo(device_context(),
                            {.recent = recent.view(), .K = spec.key_dim, .V = spec.value_dim, .tokens = detour.tokens});
    }
    cuda::recurrence_settle(device_context(), {.states = states.view(), .recent = recent.view()});
    return Result{o.get(), states.get()};
  };
  const auto after = [](const Tensor& o, const Detour& detour) {
    const std::int64_t begin = detour.begin + detour.tokens;
    return converted(narrowed(o.view(), 1, begin, o.shape()[1] - begin), o.dtype());
  };
  // From nothing kept, to no room left, in a row that was used before, over the end of the ring.
  for (const Detour& detour : {Detour{0, 16}, {5, 1}, {5, 11}, {16, 16}, {20, 12}, {31, 1}}) {
    SCOPED_TRACE(fmt::format("{} tokens from {} on", detour.tokens, detour.begin));
    const Result with = run(detour, true);
    const Result without = run(detour, false);
    EXPECT_TRUE(same_bits(after(with.o, detour), after(without.o, detour)));
    EXPECT_TRUE(same_bits(with.states, without.states));
  }
}

// A row has the same bits alone and among others, whose tokens go into their states at other times.
TEST(CudaStep, RecentTokensOfOtherRowsDoNotMatter) {
  QDELTA_NEEDS_DEVICE();
  for (const auto& [K, V] : {std::pair<std::int64_t, std::int64_t>{64, 40}, {128, 64}, {130, 36}}) {
    CaseSpec spec;
    spec.batch = 70;  // slices of a head are wider then
    spec.tokens = 20;
    spec.heads = 2;
    spec.key_dim = K;
    spec.value_dim = V;
    spec.qk_l2norm = true;
    SCOPED_TRACE(describe(spec));
    const RecurrenceCase problem = random_case(spec, 82);
    const DeviceProblem dev(problem, {});
    const DeviceTensor states(problem.h0);
    const DeviceTensor recent(no_recent_tokens(spec.batch, spec));
    const auto step = [&](std::int64_t t, const DeviceTensor& o, const std::vector<std::int64_t>& index,
                          const std::function<void(RecurrenceStep&)>& change) {
      const DeviceVector<std::int64_t> places(index);
      RecurrenceStep args = step_arguments(dev, t, o.view(), states.view());
      args.recent = recent.view();
      change(args);
      args.index = ConstTensorView(reinterpret_cast<const std::byte*>(places.span().data()), DType::i64,
                                   {static_cast<std::int64_t>(index.size())});
      cuda::recurrence_step(device_context(), args);
    };
    const DeviceTensor together(spec.dtype, spec.values());
    const DeviceTensor alone(spec.dtype, spec.values());
    constexpr std::int64_t kRow = 3;
    for (std::int64_t t = 0; t < spec.tokens; ++t) {
      std::vector<std::int64_t> index;  // others begin later
      for (std::int64_t r = 0; r < spec.batch; ++r) index.push_back(r == kRow || t >= r % 5 ? r : -1);
      step(t, together, index, [](RecurrenceStep&) {});
    }
    const DeviceTensor again(problem.h0), nothing(no_recent_tokens(spec.batch, spec));
    for (std::int64_t t = 0; t < spec.tokens; ++t) {
      step(t, alone, {kRow}, [&](RecurrenceStep& args) {
        for (ConstTensorView* view : {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.lambda}) {
          *view = narrowed(*view, 0, kRow, 1);
        }
        args.o = narrowed(args.o, 0, kRow, 1);
        args.states = again.view();
        args.recent = nothing.view();
      });
    }
    const auto row_of = [](const DeviceTensor& of) {
      const Tensor all = of.get();
      return converted(narrowed(all.view(), 0, kRow, 1), all.dtype());
    };
    EXPECT_TRUE(same_bits(row_of(together), row_of(alone)));
  }
}

// Rows take their states from a pool by an index; what no row names stays, and a row without a state is left out.
TEST(CudaStep, StatesByIndex) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  spec.batch = 4;
  spec.tokens = 1;
  spec.heads = 2;
  spec.key_dim = 32;
  spec.value_dim = 40;
  const RecurrenceCase problem = random_case(spec, 72);
  const Reference expected = reference_of(problem);
  const std::vector<std::int64_t> places{5, 0, -1, 3};
  Random random(73);
  const Tensor pool0 = random_tensor(random, DType::f32, {7, 2, 32, 40}, -1, 1);
  for (const DType dtype : {DType::i32, DType::i64}) {
    Tensor pool = converted(pool0.view(), DType::f32);
    for (std::size_t r = 0; r < 4; ++r) {
      if (places[r] < 0) continue;
      std::memcpy(narrowed(pool.view(), 0, places[r], 1).data,
                  narrowed(problem.h0.view(), 0, static_cast<std::int64_t>(r), 1).data, 2 * 32 * 40 * sizeof(float));
    }
    const DeviceTensor states(pool);
    const DeviceProblem dev(problem, {});
    const DeviceTensor out(spec.dtype, spec.values());
    RecurrenceStep args = step_arguments(dev, 0, out.view(), states.view());
    const DeviceVector<std::int64_t> wide(places);
    const DeviceVector<std::int32_t> narrow(std::vector<std::int32_t>(places.begin(), places.end()));
    args.index = ConstTensorView(dtype == DType::i32 ? reinterpret_cast<const std::byte*>(narrow.span().data())
                                                     : reinterpret_cast<const std::byte*>(wide.span().data()),
                                 dtype, {4});
    cuda::recurrence_step(device_context(), args);
    const Tensor o = out.get();
    const Tensor after = states.get();
    const std::size_t size = 2 * 32 * 40;
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t i = 0; i < 80; ++i) {
        EXPECT_NEAR(o.as<float>()[r * 80 + i], places[r] < 0 ? 0.0 : expected.o[r * 80 + i], 1e-5);
      }
    }
    for (std::int64_t p = 0; p < 7; ++p) {
      const auto row = std::find(places.begin(), places.end(), p);
      for (std::size_t i = 0; i < size; ++i) {
        const float got = after.as<float>()[static_cast<std::size_t>(p) * size + i];
        if (row == places.end()) {
          ASSERT_EQ(got, pool.as<float>()[static_cast<std::size_t>(p) * size + i]);
        } else {
          ASSERT_NEAR(got, expected.ht[static_cast<std::size_t>(row - places.begin()) * size + i], 1e-5);
        }
      }
    }
  }
}

// The sampler ---------------------------------------------------------------------------------------------------------

struct Drawn {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> draws;
  std::vector<std::uint32_t> seen;
};

// Row r has stream r, and the same options as the others.
Drawn draw(const Tensor& logits, const SamplingOptions& options, const std::vector<std::uint64_t>& draws,
           std::vector<std::uint32_t> seen = {}, const Placement& place = {}) {
  const auto rows = static_cast<std::size_t>(logits.shape()[0]);
  std::vector<SamplingState> states(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    states[row] = {.options = options, .stream = row, .draws = draws.empty() ? 0 : draws[row]};
  }
  seen.resize(rows * static_cast<std::size_t>(seen_words(logits.shape()[1])));
  const DeviceTensor dev(logits, place);
  const DeviceVector<std::int32_t> tokens(std::vector<std::int32_t>(rows, -7));
  const DeviceVector<SamplingState> dev_states(states);
  const DeviceVector<std::uint32_t> dev_seen(seen);
  cuda::sample(device_context(),
               {.logits = dev.view(), .states = dev_states.span(), .seen = dev_seen.span(), .tokens = tokens.span()});
  Drawn drawn{.tokens = tokens.values(), .draws = {}, .seen = dev_seen.values()};
  for (const SamplingState& state : dev_states.values()) drawn.draws.push_back(state.draws);
  return drawn;
}

// What the CPU's sampler draws from: the probability of every token.
std::vector<double> distribution(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> weights;
  double total = 0;
  for (const std::size_t token : order) {
    const double weight = std::exp(double{logits[token] - logits[order[0]]} / double{options.temperature});
    if (weight < double{options.min_p}) break;
    weights.push_back(weight);
    total += weight;
  }
  std::size_t kept = 0;
  double sum = 0;
  while (kept < weights.size() && (options.top_p >= 1 || sum < double{options.top_p} * total)) sum += weights[kept++];
  std::vector<double> out(logits.size(), 0.0);
  for (std::size_t i = 0; i < kept; ++i) out[order[i]] = weights[i] / sum;
  return out;
}

TEST(CudaSample, MostLikely) {
  QDELTA_NEEDS_DEVICE();
  Random random(80);
  SamplingOptions options;
  options.temperature = 0;
  for (const std::int64_t vocabulary : {1, 7, 1000, 32000, 50001}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Placement& place : {Placement{0, 0}, Placement{8, 8}, Placement{1, 3}}) {
        const Tensor logits = random_tensor(random, dtype, {5, vocabulary}, -3, 3);
        const std::vector<double> values = to_doubles(logits.view());
        const Drawn drawn = draw(logits, options, {}, {}, place);
        for (std::int64_t r = 0; r < 5; ++r) {
          const auto begin = values.begin() + r * vocabulary;
          EXPECT_EQ(drawn.tokens[static_cast<std::size_t>(r)], std::max_element(begin, begin + vocabulary) - begin);
        }
      }
    }
  }
}

TEST(CudaSample, NaNGivesNoToken) {
  QDELTA_NEEDS_DEVICE();
  for (const std::int64_t width : {6, 70000}) {  // within shared memory, and beyond it
    Tensor logits(DType::f32, {3, width});
    std::fill(logits.as<float>().begin(), logits.as<float>().end(), 0.0F);
    for (const std::int64_t at : {std::int64_t{4}, 2 * width + 4})
      logits.as<float>()[static_cast<std::size_t>(at)] = 90;
    logits.as<float>()[static_cast<std::size_t>(3 * width - 1)] = NAN;
    logits.as<float>()[static_cast<std::size_t>(width + 5)] = -NAN;
    SamplingOptions options;
    EXPECT_EQ(draw(logits, options, {}).tokens, (std::vector<std::int32_t>{4, -1, -1}));
    options.temperature = 0;
    EXPECT_EQ(draw(logits, options, {}).tokens, (std::vector<std::int32_t>{4, -1, -1}));
  }
}

// Frequencies of many rows with the same logits, each row a stream of its own.
TEST(CudaSample, DrawsFromTheSameDistribution) {
  QDELTA_NEEDS_DEVICE();
  const std::vector<SamplingOptions> all{{1.0F, 0, 1.0F, 0.0F, 1.0F, 1},   {0.7F, 5, 1.0F, 0.0F, 1.0F, 2},
                                         {1.3F, 0, 0.8F, 0.0F, 1.0F, 3},   {1.0F, 0, 1.0F, 0.15F, 1.0F, 4},
                                         {0.9F, 12, 0.7F, 0.05F, 1.0F, 5}, {1.0F, 1, 1.0F, 0.0F, 1.0F, 6},
                                         {1.0F, 0, 0.001F, 0.0F, 1.0F, 7}};
  const std::int64_t rows = quick() ? 500 : 20000;
  constexpr std::int64_t kVocabulary = 23;
  Random random(81);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // Rounded to halves, so that many logits are equal.
    std::vector<float> row(kVocabulary);
    for (float& value : row) value = std::round(2.0F * random.normal()) / 2.0F;
    Tensor many(DType::f32, {rows, kVocabulary});
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows * kVocabulary); ++i)
      many.as<float>()[i] = row[i % kVocabulary];
    const Tensor logits = converted(many.view(), dtype);
    for (const SamplingOptions& options : all) {
      SCOPED_TRACE(options.seed);
      const std::vector<double> expected = distribution(row, options);
      std::vector<double> seen(kVocabulary, 0.0);
      const Drawn drawn = draw(logits, options, {});
      for (const std::int32_t token : drawn.tokens) {
        ASSERT_TRUE(token >= 0 && token < kVocabulary);
        seen[static_cast<std::size_t>(token)] += 1.0 / static_cast<double>(rows);
      }
      for (std::size_t i = 0; i < kVocabulary; ++i) {
        if (expected[i] == 0) {
          EXPECT_EQ(seen[i], 0) << "token " << i;
        }
        EXPECT_NEAR(seen[i], expected[i],
                    5 * std::sqrt(expected[i] * (1 - expected[i]) / static_cast<double>(rows)) + 1e-9)
            << i;
      }
    }
  }
}

// Large vocabularies: only tokens that the cuts keep, ties and all.
TEST(CudaSample, CutsOfLargeVocabularies) {
  QDELTA_NEEDS_DEVICE();
  Random random(82);
  for (const std::int64_t vocabulary : {1003, 32000, 70001}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Tensor row = random_tensor(random, dtype, {1, vocabulary}, -4, 4);
      const std::vector<double> values = to_doubles(row.view());
      const std::int64_t rows = quick() ? 30 : 100;
      Tensor logits(dtype, {rows, vocabulary});
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(logits.data() + static_cast<std::size_t>(r) * row.bytes(), row.data(), row.bytes());
      for (const SamplingOptions& options : {SamplingOptions{1.0F, 40, 1.0F, 0.0F, 1.0F, 1},
                                             {0.5F, 0, 0.3F, 0.0F, 1.0F, 2},
                                             {1.0F, 300, 0.5F, 0.0F, 1.0F, 3}}) {
        const std::vector<double> expected = distribution(std::vector<float>(values.begin(), values.end()), options);
        const Drawn drawn = draw(logits, options, {});
        for (const std::int32_t token : drawn.tokens) {
          // The edge of top-p may fall differently by rounding: then the token is one of the last candidates.
          ASSERT_GT(expected[static_cast<std::size_t>(token)], 0) << vocabulary << " " << options.seed;
        }
        const std::set<std::int32_t> different(drawn.tokens.begin(), drawn.tokens.end());
        EXPECT_GT(different.size(), 10U);
        EXPECT_EQ(draw(logits, options, {}).tokens, drawn.tokens);
        EXPECT_NE(draw(logits, options, drawn.draws).tokens, drawn.tokens);
      }
    }
  }
}

// Rows with options of their own, in slots in any order, with a row that has none between them.
TEST(CudaSample, ARowDoesNotDependOnTheOthers) {
  QDELTA_NEEDS_DEVICE();
  constexpr std::int64_t kVocabulary = 5000;
  const std::vector<SamplingState> states{
      {.options = {.temperature = 1}, .stream = 0},
      {.options = {.temperature = 0}, .stream = 1},
      {.options = {.temperature = 1, .top_k = 40}, .stream = 2},
      {.options = {.temperature = 0.7F, .top_p = 0.7F, .seed = 9}, .stream = 2, .draws = 3},
      {.options = {.temperature = 1, .min_p = 0.02F, .repetition_penalty = 1.8F}, .stream = 3}};
  const auto words = static_cast<std::size_t>(seen_words(kVocabulary));
  Random random(84);
  const Tensor logits = random_tensor(random, DType::f32, {5, kVocabulary}, -4, 4);
  std::vector<std::int32_t> alone;
  for (std::size_t slot = 0; slot < states.size(); ++slot) {
    Tensor row(DType::f32, {1, kVocabulary});
    std::memcpy(row.data(), logits.data() + slot * row.bytes(), row.bytes());
    const DeviceTensor dev(row, {});
    const DeviceVector<SamplingState> state({states[slot]});
    const DeviceVector<std::uint32_t> seen(std::vector<std::uint32_t>(words, 0xF0F0U));
    const DeviceVector<std::int32_t> token(std::vector<std::int32_t>{-7});
    cuda::sample(device_context(),
                 {.logits = dev.view(), .states = state.span(), .seen = seen.span(), .tokens = token.span()});
    alone.push_back(token.values()[0]);
    EXPECT_EQ(state.values()[0].draws, states[slot].draws + 1);
  }
  const std::vector<std::int64_t> slots{4, 2, -1, 0, 1, 3, 17};
  Tensor batch(DType::f32, {7, kVocabulary});
  for (std::size_t row = 0; row < slots.size(); ++row) {
    const std::size_t bytes = batch.bytes() / slots.size();
    const auto from = slots[row] < 0 || slots[row] > 4 ? std::size_t{0} : static_cast<std::size_t>(slots[row]);
    std::memcpy(batch.data() + row * bytes, logits.data() + from * bytes, bytes);
  }
  const DeviceTensor dev(batch, {});
  const DeviceVector<SamplingState> dev_states(states);
  const DeviceVector<std::int64_t> dev_slots(slots);
  const DeviceVector<std::uint32_t> seen(std::vector<std::uint32_t>(words * states.size(), 0xF0F0U));
  const DeviceVector<std::int32_t> tokens(std::vector<std::int32_t>(slots.size(), -7));
  cuda::sample(device_context(), {.logits = dev.view(),
                                  .slots = dev_slots.span(),
                                  .states = dev_states.span(),
                                  .seen = seen.span(),
                                  .tokens = tokens.span()});
  EXPECT_EQ(tokens.values(), (std::vector<std::int32_t>{alone[4], alone[2], -7, alone[0], alone[1], alone[3], -7}));
}

TEST(CudaSample, RepetitionPenalty) {
  QDELTA_NEEDS_DEVICE();
  Tensor logits(DType::f32, {2, 40});
  const std::span<float> z = logits.as<float>();
  z[7] = 2.0F;
  z[35] = 1.5F;
  for (std::size_t i = 40; i < 80; ++i) z[i] = -1.0F;
  z[40 + 33] = -0.5F;
  SamplingOptions options;
  options.temperature = 0;
  options.repetition_penalty = 4.0F;
  const Drawn drawn = draw(logits, options, {}, {1U << 7U, 0, 0, 1U << 1U});  // 7; 33
  EXPECT_EQ(drawn.tokens, (std::vector<std::int32_t>{35, 0}));                // 2 / 4 < 1.5;  -0.5 * 4 < -1
  EXPECT_EQ(drawn.seen, (std::vector<std::uint32_t>{1U << 7U, 1U << 3U, 1U, 2}));
  EXPECT_EQ(drawn.draws, (std::vector<std::uint64_t>{1, 1}));
}

}  // namespace
}  // namespace qdelta::testing
