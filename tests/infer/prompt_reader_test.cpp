// Where a prompt is cut leaves no trace.
#include "infer/prompt_reader.h"

#include <cmath>
#include <utility>

#include "infer/cuts_case.h"

namespace qdelta::testing {
namespace {

class PromptCuts : public ::testing::TestWithParam<std::string> {};

TEST_P(PromptCuts, KeepBits) {
  const auto narrow = speaking_model(speaking_config(GetParam()));
  expect_cuts_to_keep_bits(*narrow, {.threads = 1});
  expect_cuts_to_keep_bits(*speaking_model(wide_config(GetParam())), {.threads = 2});
}

INSTANTIATE_TEST_SUITE_P(Mixers, PromptCuts, ::testing::ValuesIn(all_mixers()), mixer_test_name);

class ScatteredSlots : public ::testing::TestWithParam<std::string> {};

// Several prompts in one call of the model, each into a slot of its own, neighbours or not: what is in other slots
// stays, and nothing differs from reading them one by one but rounding.
TEST_P(ScatteredSlots, AreReadTogether) {
  const auto model = speaking_model(speaking_config(GetParam()));
  const Device device{.threads = 1};
  const auto weights = std::make_shared<DeviceWeights>(*model, device);
  const std::vector<std::vector<std::int32_t>> texts{bytes_of("the river"), bytes_of("was wide and deep"),
                                                     bytes_of("a")};
  const std::vector<std::int64_t> slots{4, 0, 2};
  const auto filled = [&] {
    ModelStates states(model->config(), 5, device);
    PromptReader reader(*model, weights, states);
    for (std::int64_t slot = 0; slot < 5; ++slot) {
      const std::vector<std::int32_t> before(static_cast<std::size_t>(slot) + 3, 'a' + static_cast<int>(slot));
      const PromptPiece piece{.prompt = before, .begin = 0, .end = before.size(), .slot = slot};
      static_cast<void>(reader.read({&piece, 1}));
    }
    return states;
  };
  std::vector<PromptPiece> pieces;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    pieces.push_back({.prompt = texts[i], .begin = 0, .end = texts[i].size(), .slot = slots[i]});
  }
  ModelStates together = filled();
  static_cast<void>(PromptReader(*model, weights, together).read(pieces));
  ModelStates apart = filled();
  PromptReader reader(*model, weights, apart);
  for (const PromptPiece& piece : pieces) static_cast<void>(reader.read({&piece, 1}));
  for (std::size_t pool = 0; pool < apart.pools().size(); ++pool) {
    for (std::int64_t slot = 0; slot < 5; ++slot) {
      const ConstTensorView expected = std::as_const(apart).slot_of(pool, slot);
      const auto* a = reinterpret_cast<const float*>(expected.data);
      const auto* b = reinterpret_cast<const float*>(std::as_const(together).slot_of(pool, slot).data);
      for (std::int64_t i = 0; i < expected.shape.elements(); ++i) {
        ASSERT_NEAR(b[i], a[i], 1e-5 * (1 + std::abs(a[i]))) << apart.pools()[pool].name << ", slot " << slot;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, ScatteredSlots, ::testing::ValuesIn(all_mixers()), mixer_test_name);

}  // namespace
}  // namespace qdelta::testing
