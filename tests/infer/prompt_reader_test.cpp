// Where a prompt is cut leaves no trace.
#include "infer/prompt_reader.h"

#include "infer/cuts_case.h"

namespace qdelta::testing {
namespace {

class PromptCuts : public ::testing::TestWithParam<std::string> {};

TEST_P(PromptCuts, KeepBits) {
  const auto narrow = speaking_model(speaking_config(GetParam()));
  EXPECT_EQ(prompt_grid(*narrow, {}), static_cast<std::size_t>(kRowBlock));
  expect_cuts_to_keep_bits(*narrow, {.threads = 1});
  expect_cuts_to_keep_bits(*speaking_model(wide_config(GetParam())), {.threads = 2});
}

INSTANTIATE_TEST_SUITE_P(Mixers, PromptCuts, ::testing::ValuesIn(all_mixers()), mixer_test_name);

}  // namespace
}  // namespace qdelta::testing
