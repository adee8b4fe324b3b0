// A batch cut into parts that pass each other states and rows, against the whole batch on one.
#include "train/sequence_parts.h"

namespace qdelta::testing {
namespace {

class SequenceParts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Mixers, SequenceParts, ::testing::ValuesIn(all_mixers()), mixer_test_name);

// One sequence, also of several chunks and of fewer tokens a part than the convolution is wide; packed ones with their
// boundaries anywhere, and exactly at the cut.
TEST_P(SequenceParts, AreTheWholeBatch) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::vector<int>>> cases{
      {{150}, {2, 4}}, {{9}, {4}}, {{5, 20, 1, 31}, {2, 3}}, {{16, 16}, {2, 4}}, {{2, 1, 3}, {3}}};
  for (const bool doubled : {false, true}) {
    ModelConfig config = small_config(GetParam());
    if (doubled && GetParam().find("mamba") != std::string::npos) continue;
    config.allow_neg_eigval = doubled;
    LanguageModel model(config);
    initialise(model.layout(), 1, model.parameters());
    for (const auto& [lengths, cuts] : cases) {
      const TokenBatch batch = batch_of(config.vocab_size, lengths);
      const Computed whole = run_in_parts(model, batch, 1, Recompute::none);
      // A gradient may hang on a single token so much that the rounding of a batch of another shape moves it by as much
      // as the bound, on some processors. So that is measured, on the same sequences without any parts.
      const double rounding = relative_error(gradients_one_by_one(model, batch), whole.gradients);
      EXPECT_LE(rounding, 1e-4);
      for (const int parts : cuts) {
        SCOPED_TRACE(fmt::format("{} tokens in {} sequences, {} parts", batch.ids.size(), lengths.size(), parts));
        expect_alike(run_in_parts(model, batch, parts, Recompute::none), whole, 1e-5, std::max(3e-5, 2 * rounding));
      }
    }
  }
}

TEST_P(SequenceParts, WithRecomputation) {
  LanguageModel model(small_config(GetParam()));
  initialise(model.layout(), 8, model.parameters());
  const TokenBatch batch = batch_of(model.config().vocab_size, {7, 60});
  const Computed whole = run_in_parts(model, batch, 1, Recompute::none);
  for (const Recompute recompute : {Recompute::some, Recompute::all}) {
    expect_alike(run_in_parts(model, batch, 3, recompute), whole);
  }
}

TEST(SequencePartsOf, AModelWithoutConvolution) {
  ModelConfig config = small_config(Rule::q_delta);
  config.use_short_conv = false;
  LanguageModel model(config);
  initialise(model.layout(), 9, model.parameters());
  const TokenBatch batch = batch_of(config.vocab_size, {40});
  expect_alike(run_in_parts(model, batch, 2, Recompute::none), run_in_parts(model, batch, 1, Recompute::none));
}

// A state and the rows of a convolution for each layer and cut: as much for a long sequence as for a short one, and
// nothing where the cut falls between two.
TEST(SequencePartsOf, PassEachOtherTheSameWhateverTheLength) {
  LanguageModel model(small_config(Rule::q_delta));
  initialise(model.layout(), 10, model.parameters());
  const ModelConfig& c = model.config();
  const auto passed = [&](const std::vector<std::int64_t>& lengths) {
    return run_in_parts(model, batch_of(c.vocab_size, lengths), 2, Recompute::none).floats_passed;
  };
  const std::int64_t state = c.value_heads() * c.head_dim * c.value_dim();
  const std::int64_t rows = (c.conv_size - 1) * (2 * c.key_width() + c.value_width());
  // Forward twice, with and without training, and backward.
  EXPECT_EQ(passed({20}), static_cast<std::size_t>(3 * c.num_hidden_layers * (state + rows)));
  EXPECT_EQ(passed({200}), passed({20}));
  EXPECT_EQ(passed({20, 20}), 0U);
}

TEST(PartOfABatch, HasItsTokensTargetsAndBoundaries) {
  TokenBatch whole;
  whole.ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  whole.targets = {1, 2, -1, 4, 5, 6, 7, 8, -1, -1};
  whole.offsets = {0, 3, 5, 10};
  const BatchPart first = part_of(whole, 0, 2);
  EXPECT_EQ(first.batch.ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(first.batch.targets, (std::vector<std::int32_t>{1, 2, -1, 4, 5}));
  EXPECT_EQ(first.batch.offsets, (std::vector<std::int64_t>{0, 3, 5}));
  EXPECT_EQ(first.batch.loss_tokens, 4);
  EXPECT_FALSE(first.enters);
  EXPECT_FALSE(first.leaves);  // a sequence ends exactly there
  const BatchPart middle = part_of(whole, 1, 3);
  EXPECT_EQ(middle.batch.ids, (std::vector<std::int32_t>{3, 4, 5}));
  EXPECT_EQ(middle.batch.offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_FALSE(middle.enters);
  EXPECT_TRUE(middle.leaves);
  const BatchPart last = part_of(whole, 2, 3);
  EXPECT_EQ(last.batch.offsets, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(last.enters);
  EXPECT_FALSE(last.leaves);
  EXPECT_THROW(static_cast<void>(part_of(whole, 0, 11)), Error);
}

}  // namespace
}  // namespace qdelta::testing
