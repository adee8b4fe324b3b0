// Each analysis on a case small enough to be worked out by hand.
#include <array>
#include <cmath>
#include <numbers>

#include "analyze/contraction.h"
#include "analyze/drift.h"
#include "analyze/gates.h"
#include "analyze/history.h"
#include "analyze/memory_length.h"
#include "analyze/state_rank.h"
#include "analyze/statistics.h"
#include "analyze/values_pca.h"
#include "analyze/values_similarity.h"
#include "trace_case.h"

namespace qdelta::analyze::testing {
namespace {

constexpr double kRounding = 1e-6;  // the inputs are floats

TEST(Statistics, QuantilesAndDeviation) {
  const std::vector<double> values{4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(mean_of(values), 2.5);
  EXPECT_DOUBLE_EQ(deviation_of(values), std::sqrt(5.0 / 3));
  EXPECT_EQ(deviation_of(std::vector<double>{7}), 0);
  const std::vector<double> q = quantiles_of(values, std::array<double, 4>{0, 0.5, 0.9, 1});
  EXPECT_DOUBLE_EQ(q[0], 1);
  EXPECT_DOUBLE_EQ(q[1], 2.5);
  EXPECT_DOUBLE_EQ(q[2], 3.7);
  EXPECT_DOUBLE_EQ(q[3], 4);
  EXPECT_TRUE(std::isnan(quantiles_of({}, std::array<double, 1>{0.5})[0]));
}

TEST(Statistics, HistogramCountsEdgesAndWhatLiesOutside) {
  Histogram histogram(0, 2, 4);
  histogram.add(std::vector<double>{0, 0.49, 0.5, 2, 3, -1, std::nan("")});
  EXPECT_EQ(histogram.counts, (std::vector<std::int64_t>{2, 1, 0, 1}));
  EXPECT_EQ(histogram.total, 7);
  EXPECT_DOUBLE_EQ(histogram.density(0), 2.0 / 7 / 0.5);
}

TEST(Statistics, ThinningKeepsAtMostSoMany) {
  EXPECT_EQ(thinned(10, 20).size(), 10);
  EXPECT_EQ(thinned(10, 3), (std::vector<std::size_t>{0, 4, 8}));
  EXPECT_TRUE(thinned(0, 5).empty());
}

TEST(Contraction, AlignmentOfKeyAndMixedInput) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 1}, 0.4F, 0.5F});   // a = 1 + 0.5
  made.add({{0, 1}, {1, 0}, {1, 1}, 0.4F, 0.5F});   // a = 1
  made.add({{-1, 0}, {1, 0}, {1, 1}, 0.4F, 2.0F});  // a = 1 - 2
  made.add({{1, 0}, {1, 0}, {1, 1}, 1.5F, 1.0F});   // a = 2
  HeadContraction head;
  feed(made.trace, 0, head);
  const std::vector<double> expected{0.6, 0.4, -0.4, 3.0};
  ASSERT_EQ(head.beta_a.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(head.beta_a[i], expected[i], kRounding);
    EXPECT_NEAR(head.factors()[i], std::abs(1 - expected[i]), kRounding);
  }
  EXPECT_DOUBLE_EQ(head.share_inside(), 0.5);
}

TEST(Contraction, LonghornsStepIsItsOwn) {
  HandMade made(Rule::longhorn);
  made.add({{1, 0}, {1, 0}, {1, 1}, 0.5F, 0.9F});  // e = 0.5 / 1.5, and no lambda
  HeadContraction head;
  feed(made.trace, 0, head);
  EXPECT_NEAR(head.beta_a[0], 1.0 / 3, kRounding);
}

TEST(Drift, TwoTokensByHand) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 0}, 0.5F});  // leaves half its value at e1: e_0 = (0.5, 0)
  made.add({{1, 0}, {0, 1}, {1, 1}, 0.5F});  // dv = (0, 1), dp = -(0.5, 0)
  HeadDrift head;
  feed(made.trace, 0, head);
  ASSERT_EQ(head.target.size(), 1);
  const double r = std::sqrt(0.25 + 1);
  EXPECT_NEAR(head.target[0], 1, kRounding);
  EXPECT_NEAR(head.prediction[0], 0.5, kRounding);
  EXPECT_NEAR(head.residual[0], r, kRounding);
  EXPECT_NEAR(head.residual_with_decay[0], r, kRounding);  // there is none
  EXPECT_NEAR(head.error[0], 0.5, kRounding);
  EXPECT_NEAR(head.error[1], std::sqrt(0.5), kRounding);
  EXPECT_NEAR(head.stepwise[1], 0.5 * (0.5 + r), kRounding);
  EXPECT_NEAR(head.rho, 0.5, kRounding);
  // One step after e_0 the theorem says the same: 0.5 * 0.5 + 0.5 r.
  ASSERT_EQ(head.theorem().size(), 2);
  EXPECT_NEAR(head.theorem()[0], 0.5, kRounding);
  EXPECT_NEAR(head.theorem()[1], 0.5 * (0.5 + r), kRounding);
}

TEST(Drift, DecayTakesItsPartOfThePrediction) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 0}, 1.0F});
  made.add({{1, 0}, {1, 0}, {1, 0}, 0.5F, 0, 0.75F});  // nothing moves but the decay: S x = (1, 0), a quarter goes
  HeadDrift head;
  feed(made.trace, 0, head);
  EXPECT_NEAR(head.residual[0], 0, kRounding);
  EXPECT_NEAR(head.residual_with_decay[0], 0.25, kRounding);
  EXPECT_NEAR(head.error[1], 0.125, kRounding);
}

TEST(Drift, SequencesStartAfresh) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 0}, 0.5F});
  made.end_sequence();
  made.add({{1, 0}, {0, 1}, {0, 3}, 0.5F});
  HeadDrift head;
  feed(made.trace, 0, head);
  EXPECT_TRUE(head.target.empty());
  EXPECT_EQ(head.position, (std::vector<std::int64_t>{0, 0}));
  EXPECT_NEAR(head.error[1], 1.5, kRounding);
}

TEST(Drift, TheTheoremIsSilentWhereAWriteDoesNotContract) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 0}, 0.5F});
  made.add({{-1, 0}, {1, 0}, {1, 0}, 0.5F, 2.0F});  // a = -1
  HeadDrift head;
  feed(made.trace, 0, head);
  EXPECT_FALSE(head.contracts);
  EXPECT_TRUE(head.theorem().empty());
  EXPECT_EQ(head.violations(head.stepwise), 0);
}

// The theorem on random heads: its assumption holds for every beta and lambda below one, so its bound must as well.
TEST(Drift, NoErrorIsAboveABound) {
  for (const Rule rule : {Rule::q_delta, Rule::gated_delta, Rule::delta, Rule::longhorn}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const LayerTrace trace = random_trace(rule, 240, seed, 0.999);
      for (std::int64_t h = 0; h < trace.v_heads; ++h) {
        HeadDrift head;
        feed(trace, h, head);
        ASSERT_TRUE(head.contracts);
        ASSERT_EQ(head.theorem().size(), head.error.size());
        EXPECT_EQ(head.violations(head.theorem()), 0);
        EXPECT_EQ(head.violations(head.stepwise), 0);
        // The counter does see what is above a bound.
        EXPECT_GT(head.violations(std::vector<double>(head.error.size(), 0.0)), 200);
      }
    }
  }
}

TEST(Drift, StepByStepTheBoundNeedsNoAssumption) {
  const LayerTrace trace = random_trace(Rule::q_delta, 200, 9, 2);  // as with allow_neg_eigval
  bool some_do_not_contract = false;
  for (std::int64_t h = 0; h < trace.v_heads; ++h) {
    HeadDrift head;
    feed(trace, h, head);
    some_do_not_contract = some_do_not_contract || !head.contracts;
    EXPECT_EQ(head.violations(head.stepwise), 0);
  }
  EXPECT_TRUE(some_do_not_contract);
}

TEST(ValuesSimilarity, SameOppositeAndNothing) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 2}, 1.0F});   // an empty memory answers nothing
  made.add({{1, 0}, {1, 0}, {1, 2}, 0.0F});   // both read e1
  made.add({{-1, 0}, {1, 0}, {1, 2}, 0.0F});  // the query the other way round
  made.add({{0, 1}, {1, 0}, {1, 2}, 0.0F});   // at e2 there is nothing
  HeadSimilarity head;
  feed(made.trace, 0, head);
  ASSERT_EQ(head.cosine.size(), 2);
  EXPECT_NEAR(head.cosine[0], 1, kRounding);
  EXPECT_NEAR(head.cosine[1], -1, kRounding);
}

TEST(ValuesPca, TwoDirections) {
  HeadPca head;
  Step step;
  step.key_value = Vector::Ones(2);
  for (const auto& [x, y] : {std::pair{3.0, 0.0}, {-3.0, 0.0}, {0.0, 1.0}, {0.0, -1.0}}) {
    step.query_value = Vector::Zero(2);
    step.query_value << x + 10, y;  // a mean is not variance
    head.add(step);
  }
  head.finish();
  ASSERT_EQ(head.variance.size(), 2);
  EXPECT_NEAR(head.variance[0], 0.9, 1e-12);
  EXPECT_NEAR(head.variance[1], 1, 1e-12);
  EXPECT_NEAR(head.energy[0], 0.5, 1e-12);
  EXPECT_NEAR(head.energy[1], 1, 1e-12);
  EXPECT_EQ(rank_reaching(head.variance, 0.85), 1);
  EXPECT_EQ(rank_reaching(head.variance, 0.95), 2);
  EXPECT_EQ(rank_reaching({0.1, 0.2}, 0.95), 2);
}

TEST(Gates, MeansOfTheGatesThatTheRuleHas) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {1, 0}, 0.25F, 0.5F, 0.5F});
  made.add({{1, 0}, {1, 0}, {1, 0}, 0.75F, 1.0F, 1.0F});
  HeadGates head;
  feed(made.trace, 0, head);
  const Section section = gates_section(Rule::q_delta, {head});
  EXPECT_EQ(section.facts, (std::vector<std::pair<std::string, std::string>>{
                               {"mean α", "0.75"}, {"mean β", "0.5"}, {"mean λ", "0.75"}}));
  EXPECT_EQ(section.figure.panels.size(), 6);
  EXPECT_EQ(gates_section(Rule::gated_delta, {head}).figure.panels.size(), 4);  // no lambda
  head.alpha = {1, 1};
  EXPECT_TRUE(gates_section(Rule::linear, {head}).figure.panels.empty());
}

// Nothing is ever erased: what is left of a key is the product of the decays.
TEST(MemoryLength, DecayAlone) {
  HandMade made(Rule::gated_delta);
  for (int i = 0; i < 60; ++i) made.add({{1, 0}, {0, 1}, {1, 0}, 0.0F, 0, 0.9F});
  HeadMemory head;
  KeyHistory history(60);
  HeadRecurrence recurrence(made.trace, 0);
  while (recurrence.next()) {
    history.begin(recurrence.step());
    head.add(recurrence.step(), history);
    history.end(recurrence.step());
  }
  const std::vector<double> retention = head.retention();
  ASSERT_GT(retention.size(), 20);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(retention[i], std::pow(0.9, i), 1e-5);
  EXPECT_NEAR(head.decay_length(), -1 / std::log(0.9), 1e-4);
  EXPECT_TRUE(head.length().reached);
  // Between ages 10 and 11, on the straight line between the two.
  const double low = std::pow(0.9, 10);
  const double high = std::pow(0.9, 9);
  EXPECT_NEAR(head.length().tokens, 10 + (high - 1 / std::numbers::e) / (high - low), 1e-3);
}

TEST(MemoryLength, NothingIsForgottenWithoutDecayAndErasing) {
  HandMade made(Rule::linear);
  for (int i = 0; i < 20; ++i) made.add({{1, 0}, {0, 1}, {1, 0}});
  HeadMemory head;
  KeyHistory history(20);
  HeadRecurrence recurrence(made.trace, 0);
  while (recurrence.next()) {
    history.begin(recurrence.step());
    head.add(recurrence.step(), history);
    history.end(recurrence.step());
  }
  EXPECT_FALSE(head.length().reached);
  EXPECT_TRUE(std::isinf(head.decay_length()));
}

TEST(StateRank, EntropyOfSingularValues) {
  EXPECT_NEAR(effective_rank({1, 0, 0, 0, 1, 0, 0, 0, 1}, 3), 3, 1e-12);
  EXPECT_NEAR(effective_rank({1, 2, 2, 4}, 2), 1, 1e-7);
  EXPECT_NEAR(effective_rank({3, 0, 0, 0, 1, 0}, 3), std::exp(-0.75 * std::log(0.75) - 0.25 * std::log(0.25)), 1e-12);
  EXPECT_EQ(effective_rank({0, 0, 0, 0}, 2), 0);
}

TEST(StateRank, LooksTwiceInEachDoubling) {
  std::vector<std::int64_t> seen;
  for (std::int64_t t = 1; t <= 50; ++t) {
    if (looks_at(t)) seen.push_back(t);
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48}));
}

TEST(StateRank, NormOfTheState) {
  HandMade made;
  made.add({{1, 0}, {1, 0}, {3, 4}, 0.5F});
  made.add({{1, 0}, {0, 1}, {0, 2.5F}, 1.0F});
  HeadRank head;
  feed(made.trace, 0, head);
  EXPECT_NEAR(head.at.at(1)[0].norm, 2.5, kRounding);
  EXPECT_NEAR(head.at.at(1)[0].rank, 1, 1e-5);
  EXPECT_NEAR(head.at.at(2)[0].norm, 2.5 * std::sqrt(2.0), kRounding);
}

}  // namespace
}  // namespace qdelta::analyze::testing
