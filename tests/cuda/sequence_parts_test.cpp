// A batch cut into parts on the GPU, against the whole batch there.
#include "train/sequence_parts.h"

#include <gtest/gtest.h>

#include "cuda/device.h"
#include "mixers.h"

namespace qdelta::testing {
namespace {

class SequencePartsOnGpu : public OnGpu<::testing::TestWithParam<std::string>> {};
INSTANTIATE_TEST_SUITE_P(Mixers, SequencePartsOnGpu, ::testing::ValuesIn(all_mixers()), mixer_test_name);

// One sequence, also of several chunks and of fewer tokens a part than the convolution is wide; packed ones.
TEST_P(SequencePartsOnGpu, AreTheWholeBatchInFloat32) {
  std::vector<std::pair<std::vector<std::int64_t>, std::vector<int>>> cases{
      {{5, 20, 1, 31}, {3}}, {{9}, {4}}, {{150}, {2, 4}}, {{16, 16}, {4}}};
  if (quick()) cases.resize(2);
  LanguageModel model(small_config(GetParam()));
  initialise(model.layout(), 1, model.parameters());
  for (const auto& [lengths, cuts] : cases) {
    const TokenBatch batch = batch_of(model.config().vocab_size, lengths);
    const Computed whole = run_in_parts(model, batch, 1, Recompute::none, device(DType::f32));
    for (const int parts : cuts) {
      SCOPED_TRACE(fmt::format("{} tokens in {} sequences, {} parts", batch.ids.size(), lengths.size(), parts));
      expect_alike(run_in_parts(model, batch, parts, Recompute::none, device(DType::f32)), whole);
      if (!quick()) expect_alike(run_in_parts(model, batch, parts, Recompute::all, device(DType::f32)), whole);
    }
  }
}

// Roundings fall elsewhere in parts than in the whole, so that the two are as far apart as either is from float32:
// parts must be no further from that than the whole is, but for a factor that is chance.
TEST_P(SequencePartsOnGpu, AreAsExactAsTheWholeBatchInBFloat16) {
  LanguageModel model(small_config(GetParam()));
  initialise(model.layout(), 1, model.parameters());
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{300}, {50, 200, 31}}) {
    if (quick() && lengths.size() == 1) continue;
    const TokenBatch batch = batch_of(model.config().vocab_size, lengths);
    const Computed exact = run_in_parts(model, batch, 1, Recompute::none);
    const auto errors = [&](int parts) {
      const Computed got = run_in_parts(model, batch, parts, Recompute::none, device(DType::bf16));
      return std::pair(relative_error(doubles(got.losses), doubles(exact.losses)),
                       relative_error(got.gradients, exact.gradients));
    };
    const auto [whole_losses, whole_gradients] = errors(1);
    for (const int parts : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} sequences, {} parts", lengths.size(), parts));
      const auto [losses, gradients] = errors(parts);
      EXPECT_LE(losses, 1.5 * whole_losses);
      EXPECT_LE(gradients, 1.5 * whole_gradients);
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
