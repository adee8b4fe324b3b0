// Chunk, recurrent and oracle give the same numbers: on random shapes, odd in every way a shape can be odd.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

// Tokens are cut to what the double-precision oracle can do in reasonable time.
constexpr std::int64_t kCells = 400'000;

std::vector<std::int64_t> random_offsets(Random& random, std::int64_t tokens) {
  std::vector<std::int64_t> offsets{0, tokens};
  for (std::int64_t cuts = random.integer(0, 4); cuts > 0; --cuts) offsets.push_back(random.integer(0, tokens));
  if (chance(random, 0.5)) offsets.push_back(pick(random, offsets));  // an empty sequence
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

CaseSpec random_spec(Random& random, Rule rule, int chunk) {
  const std::vector<std::int64_t> key_dims{3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 130};
  const std::vector<std::int64_t> value_dims{1, 2, 3, 8, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 130, 257};
  CaseSpec spec;
  spec.rule = rule;
  spec.key_dim = chance(random, 0.1) ? random.integer(1, 2) : pick(random, key_dims);
  spec.value_dim = pick(random, value_dims);
  spec.heads = random.integer(1, 2);
  spec.shared = random.integer(1, 3);
  const bool packed = chance(random, 0.35);
  spec.batch = packed ? 1 : random.integer(1, 3);
  spec.tokens = pick<std::int64_t>(random, {0, 1, 2, 7, 8, 9, chunk - 1, chunk, chunk + 1, 2 * chunk,
                                            random.integer(1, 200), random.integer(1, 200)});
  spec.tokens = std::min(spec.tokens, kCells / (spec.batch * spec.value_heads() * spec.key_dim * spec.value_dim));
  if (packed) spec.cu_seqlens = random_offsets(random, spec.tokens);
  // Of a row of one or two the norm leaves next to nothing to differentiate, see NormOfNarrowRows.
  spec.qk_l2norm = spec.key_dim > 2 && chance(random, 0.6);
  spec.scale =
      pick(random, std::vector<float>{1.0F, 0.125F, -2.0F, 1.0F / std::sqrt(static_cast<float>(spec.key_dim))});
  spec.h0 = chance(random, 0.6);
  spec.d_ht = chance(random, 0.6);
  spec.ht = chance(random, 0.7);
  spec.dh0 = chance(random, 0.7);
  spec.dgates = chance(random, 0.8);
  spec.unread_gates = chance(random, 0.5);
  spec.lowest_g = pick(random, std::vector<double>{0.0, -0.1, -1.0, -8.0});
  return spec;
}

class FormsAgreeFor : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, FormsAgreeFor, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(FormsAgreeFor, OnRandomShapes) {
  const int cases = quick() ? 8 : 44;
  for (int i = 0; i < cases; ++i) {
    const int chunk = kChunkLengths[static_cast<std::size_t>(i) % kChunkLengths.size()];
    Random random(static_cast<std::uint64_t>(GetParam()) * 1000 + static_cast<std::uint64_t>(i));
    const CaseSpec spec = random_spec(random, GetParam(), chunk);
    const RecurrenceCase problem = random_case(spec, random.bits());
    const Reference expected = reference_of(problem);
    SCOPED_TRACE(fmt::format("case {}, chunk {}: {}", i, chunk, describe(spec)));
    const int threads = static_cast<int>(random.integer(1, 3));
    expect_close(run_both(problem, {Form::chunk, chunk, threads, true}), expected, {});
    expect_close(run_both(problem, {Form::recurrent, 0, threads, true}), expected, {});
    if (i % 4 == 0) expect_close(run_both(problem, {Form::oracle, 0, threads, true}), expected, kOracleTolerance);
  }
}

// Every length around the chunk's, for every chunk length: where masks and padding are.
TEST_P(FormsAgreeFor, OnEveryLengthAroundAChunk) {
  for (const int chunk : kChunkLengths) {
    for (const int tokens : {0, 1, 2, 8, 9, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1}) {
      if (quick() && tokens > 40) continue;
      CaseSpec spec;
      spec.rule = GetParam();
      spec.tokens = tokens;
      spec.key_dim = 5;
      spec.value_dim = 3;
      spec.qk_l2norm = tokens % 2 == 0;
      SCOPED_TRACE(fmt::format("chunk {}: {}", chunk, describe(spec)));
      const RecurrenceCase problem = random_case(spec, static_cast<std::uint64_t>(1000 * chunk + tokens));
      expect_close(run_both(problem, {Form::chunk, chunk, 1, true}), reference_of(problem), {});
    }
  }
}

TEST(FormsAgree, OnWideHeads) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> widths{{257, 257}, {128, 320}, {300, 1}, {1, 300}};
  for (const auto& [key_dim, value_dim] : widths) {
    CaseSpec spec;
    spec.tokens = quick() ? 9 : 35;
    spec.key_dim = key_dim;
    spec.value_dim = value_dim;
    spec.qk_l2norm = key_dim > 1;
    SCOPED_TRACE(describe(spec));
    const RecurrenceCase problem = random_case(spec, 77);
    const Reference expected = reference_of(problem);
    for (const RunOptions& how : all_forms()) {
      SCOPED_TRACE(describe(how));
      expect_close(run_both(problem, how), expected, {});
    }
  }
}

// Without heads to spare or with no values at all there is nothing to compute, and nothing may break.
TEST(FormsAgree, OnEmptyShapes) {
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    CaseSpec no_batch;
    no_batch.batch = 0;
    const Results<Tensor> nothing = run_both(random_case(no_batch, 1), how);
    EXPECT_EQ(nothing.o.elements(), 0);

    CaseSpec no_values;
    no_values.value_dim = 0;
    const RecurrenceCase problem = random_case(no_values, 1);
    expect_close(run_both(problem, how),
                 Reference{{},
                           {},
                           std::vector<double>(40 * 16),
                           std::vector<double>(40 * 16),
                           {},
                           std::vector<double>(40),
                           std::vector<double>(40),
                           std::vector<double>(40),
                           {}},
                 {});
  }
}

// A packed sequence is computed as if it were alone.
TEST(FormsAgree, OnPackedSequencesAndEachAlone) {
  CaseSpec spec;
  spec.tokens = 120;
  spec.heads = 2;
  spec.shared = 2;
  spec.key_dim = 20;
  spec.value_dim = 70;
  spec.cu_seqlens = {0, 0, 1, 18, 18, 101, 120};
  const RecurrenceCase packed = random_case(spec, 5);
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> all = run_both(packed, how);
    for (std::int64_t n = 0; n < spec.sequences(); ++n) {
      SCOPED_TRACE(fmt::format("sequence {}", n));
      const std::int64_t begin = spec.cu_seqlens[static_cast<std::size_t>(n)];
      const std::int64_t count = spec.cu_seqlens[static_cast<std::size_t>(n) + 1] - begin;
      const auto rows = [&](const Tensor& t) { return converted(narrowed(t.view(), 1, begin, count), t.dtype()); };
      const auto state = [&](const Tensor& t) { return converted(narrowed(t.view(), 0, n, 1), t.dtype()); };
      RecurrenceCase alone{spec,
                           rows(packed.q),
                           rows(packed.k),
                           rows(packed.v),
                           rows(packed.g),
                           rows(packed.beta),
                           rows(packed.lambda),
                           state(packed.h0),
                           rows(packed.d_o),
                           state(packed.d_ht)};
      alone.spec.tokens = count;
      alone.spec.cu_seqlens.clear();
      const auto values = [](const Tensor& tensor) { return to_doubles(tensor.view()); };
      const Reference part{values(rows(all.o)),     values(state(all.ht)),     values(rows(all.dq)),
                           values(rows(all.dk)),    values(rows(all.dv)),      values(rows(all.dg)),
                           values(rows(all.dbeta)), values(rows(all.dlambda)), values(state(all.dh0))};
      expect_close(run_both(alone, how), part, {2e-6, 5e-6});
    }
  }
}

// Gradients and states that nobody wants change nothing else.
TEST(FormsAgree, WithAndWithoutOptionalOutputs) {
  CaseSpec spec;
  spec.shared = 2;
  spec.value_dim = 70;
  const RecurrenceCase whole = random_case(spec, 6);
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    Results<Tensor> all = run_both(whole, how);
    RecurrenceCase bare = random_case(spec, 6);
    bare.spec.ht = bare.spec.dh0 = bare.spec.dgates = false;
    Results<Tensor> some = run_both(bare, how);
    for (Tensor* unwanted : {&all.ht, &all.dh0, &all.dbeta, &all.dlambda}) *unwanted = Tensor();
    expect_same_bits(all, some);
  }
}

// Gates that a rule does not read may hold anything.
TEST_P(FormsAgreeFor, WhateverTheGatesNotRead) {
  const RuleTraits& traits = traits_of(GetParam());
  CaseSpec spec;
  spec.rule = GetParam();
  const RecurrenceCase given = random_case(spec, 8);
  RecurrenceCase poisoned = random_case(spec, 8);
  RecurrenceCase missing = random_case(spec, 8);
  for (const bool beta : {true, false}) {
    if (beta ? traits.reads_beta : traits.reads_lambda) continue;
    Tensor RecurrenceCase::*gate = beta ? &RecurrenceCase::beta : &RecurrenceCase::lambda;
    missing.*gate = Tensor();
    for (float& value : (poisoned.*gate).as<float>()) value = std::nanf("");
  }
  for (const RunOptions& how : all_forms()) {
    SCOPED_TRACE(describe(how));
    const Results<Tensor> expected = run_both(given, how);
    expect_same_bits(run_both(poisoned, how), expected);
    expect_same_bits(run_both(missing, how), expected);
  }
}

}  // namespace
}  // namespace qdelta::testing
