// HeadRecurrence against the oracle, and the paper's identities on random data and on a trained model.
#include "analyze/identities.h"

#include <algorithm>

#include "analyze/analysis.h"
#include "analyze/history.h"
#include "analyze/probe.h"
#include "trace_case.h"
#include "train/trainer.h"

namespace qdelta::analyze::testing {
namespace {

constexpr double kHolds = 1e-10;

class EachRule : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, EachRule, ::testing::ValuesIn(qdelta::testing::all_rules()),
                         qdelta::testing::rule_test_name);

TEST_P(EachRule, HeadRecurrenceMatchesTheOracle) {
  const LayerTrace trace = random_trace(GetParam(), 90, 4);
  for (std::int64_t head = 0; head < trace.v_heads; ++head) {
    HeadRecurrence recurrence(trace, head);
    while (recurrence.next()) {
      const Step& step = recurrence.step();
      const float* o = trace.o.data() + (step.token * trace.v_heads + head) * trace.value_dim;
      for (std::int64_t j = 0; j < trace.value_dim; ++j) EXPECT_NEAR(trace.scale * step.output[j], o[j], 1e-6);
      // What HeadRecurrence derives, from the definition.
      EXPECT_LT((step.after - step.state.transpose() * step.x).norm(), 1e-12);
      EXPECT_LT((step.output - step.state.transpose() * step.q).norm(), 1e-12);
    }
  }
}

std::vector<HeadIdentities> identities_of(const LayerTrace& trace, std::int64_t forgotten = -1) {
  std::vector<HeadIdentities> heads;
  for (std::int64_t h = 0; h < trace.v_heads; ++h) {
    HeadIdentities& head = heads.emplace_back(HeadName{trace.layer, h});
    KeyHistory history(trace.tokens());
    HeadRecurrence recurrence(trace, h);
    while (recurrence.next()) {
      history.begin(recurrence.step());
      head.add(trace, recurrence.step(), history);
      if (recurrence.step().position != forgotten) history.end(recurrence.step());
    }
  }
  return heads;
}

TEST_P(EachRule, IdentitiesHoldOnRandomData) {
  const LayerTrace trace = random_trace(GetParam(), 220, 5);
  const std::vector<HeadIdentities> heads = identities_of(trace);
  EXPECT_LT(largest_difference(heads), kHolds);
  EXPECT_GT(largest_difference(heads), 0);  // two ways to the same numbers round differently
  for (const HeadIdentities& head : heads) {
    EXPECT_EQ(head.differences().contains("query_readout"), true);
    EXPECT_EQ(head.differences().contains("ut_transform"), traits_of(GetParam()).erases);
    EXPECT_LT(head.differences().at("model_output").relative(), 1e-6);
  }
}

TEST(Identities, AForgottenTokenIsNoticed) {
  EXPECT_GT(largest_difference(identities_of(random_trace(Rule::q_delta, 100, 6), 20)), 1e-3);
}

TEST(Identities, AnotherOutputIsNoticed) {
  LayerTrace trace = random_trace(Rule::q_delta, 50, 7);
  for (float& value : trace.o) value *= 1.01F;
  EXPECT_NEAR(identities_of(trace)[0].differences().at("model_output").relative(), 0.01, 1e-4);
}

ModelConfig small_model(Rule rule) {
  ModelConfig config;
  config.choose_mixer(traits_of(rule).name);
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.num_v_heads = 4;
  config.head_dim = 8;
  config.expand_v = 1;
  config.intermediate_size = 32;
  return config;
}

std::vector<std::int32_t> random_tokens(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::int32_t> ids(count);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.integer(0, 39));
  return ids;
}

// A model that has learned a little: the gates are no longer what they were initialised to.
std::unique_ptr<LanguageModel> trained(Rule rule) {
  auto model = std::make_unique<LanguageModel>(small_model(rule));
  initialise(model->layout(), 1, model->parameters());
  Device device;
  device.threads = 1;
  Trainer trainer(*model, {}, device);
  TokenBatch batch;
  batch.ids = random_tokens(65, 2);
  batch.targets.assign(batch.ids.begin() + 1, batch.ids.end());
  batch.ids.pop_back();
  batch.offsets = {0, 64};
  batch.loss_tokens = 64;
  for (int i = 0; i < 40; ++i) static_cast<void>(trainer.step({&batch, 1}, 1e-2F));
  return model;
}

TEST_P(EachRule, IdentitiesHoldOnATrainedModel) {
  const auto model = trained(GetParam());
  Device device;
  device.threads = 1;
  // The first is longer than what goes through the model at a time.
  const Sequences sequences{random_tokens(600, 3), random_tokens(50, 4)};
  std::int64_t heard = 0;
  const std::vector<LayerTrace> traces =
      probe(*model, device, sequences, {0, 1}, false, [&](std::int64_t tokens) { heard = tokens; });
  EXPECT_EQ(heard, 650);
  ASSERT_EQ(traces.size(), 2);
  EXPECT_EQ(traces[1].layer, 1);
  EXPECT_EQ(traces[0].offsets, (std::vector<std::int64_t>{0, 600, 650}));
  AnalysisOptions options;
  options.history = 100;
  options.threads = 1;
  const auto analysis = analyse(traces, options, false, [](std::int64_t) {});
  ASSERT_TRUE(analysis.has_value());
  EXPECT_LT(analysis->largest_identity_difference, kHolds);
  const bool erases = traits_of(GetParam()).erases;
  EXPECT_EQ(analysis->sections.front().id, erases ? "contraction" : "values_similarity");
  EXPECT_EQ(analysis->left_out.empty(), erases);
  // The model's own float kernels computed the same recurrence, across the boundary between two calls too.
  for (const LayerTrace& trace : traces) {
    for (const HeadIdentities& head : identities_of(trace)) {
      EXPECT_LT(head.differences().at("model_output").relative(), 1e-5);
    }
  }
}

// Of layers that differ only those with a recurrence can be looked at, and only those of one rule together.
TEST(Probe, OfLayersThatDiffer) {
  ModelConfig config = small_model(Rule::q_delta);
  config.num_hidden_layers = 4;
  config.choose_mixer("q_delta,mamba,gated_delta,q_delta");
  LanguageModel model(config);
  initialise(model.layout(), 1, model.parameters());
  const auto probed = [&](const std::vector<std::int64_t>& layers) {
    return probe(model, {1}, {random_tokens(70, 3)}, layers, false, [](std::int64_t) {});
  };
  for (const std::vector<std::int64_t>& layers : {std::vector<std::int64_t>{0, 3}, {2}}) {
    for (const LayerTrace& trace : probed(layers)) {
      EXPECT_EQ(trace.rule, trace.layer == 2 ? Rule::gated_delta : Rule::q_delta);
      EXPECT_EQ(trace.lambda[5] == 0, trace.layer == 2);
      for (const HeadIdentities& head : identities_of(trace)) {
        EXPECT_LT(head.differences().at("model_output").relative(), 1e-5);
      }
    }
  }
  qdelta::testing::expect_error(Status::invalid_argument, {"layer 1: Mamba has no keys and queries"}, [&] {
    return probed({0, 1});
  });
  qdelta::testing::expect_error(Status::invalid_argument, {"layer 0 is Q-Delta, layer 2 is Gated DeltaNet"}, [&] {
    return probed({0, 2});
  });
}

TEST(Probe, StopsWhenToldTo) {
  const auto model = trained(Rule::q_delta);
  EXPECT_TRUE(probe(*model, {}, {random_tokens(20, 1)}, {0}, true, [](std::int64_t) {}).empty());
}

TEST(Analyse, StopsWhenToldToAndNamesMissingHeads) {
  const std::vector<LayerTrace> traces{random_trace(Rule::q_delta, 30, 1)};
  EXPECT_FALSE(analyse(traces, {}, true, [](std::int64_t) {}).has_value());
  AnalysisOptions options;
  options.heads = {4};
  qdelta::testing::expect_error(Status::invalid_argument, {"no head 4", "0 to 3"},
                                [&] { return analyse(traces, options, false, [](std::int64_t) {}); });
}

TEST(Analyse, RefusesNumbersThatAreNotFinite) {
  std::vector<LayerTrace> traces{random_trace(Rule::q_delta, 30, 1)};
  traces[0].k[17] = std::numeric_limits<float>::quiet_NaN();
  qdelta::testing::expect_error(Status::invalid_argument, {"layer 3", "not finite"},
                                [&] { return analyse(traces, {}, false, [](std::int64_t) {}); });
}

TEST(Analyse, TheNumberOfThreadsChangesNothing) {
  const std::vector<LayerTrace> traces{random_trace(Rule::q_delta, 60, 1)};
  const auto tables = [&](int threads) {
    AnalysisOptions options;
    options.threads = threads;
    std::string all;
    const auto analysis = analyse(traces, options, false, [](std::int64_t) {});
    for (const Section& section : analysis->sections) {
      for (const auto& [name, table] : section.tables) all += table.text();
    }
    return all;
  };
  EXPECT_EQ(tables(1), tables(4));
}

}  // namespace
}  // namespace qdelta::analyze::testing
