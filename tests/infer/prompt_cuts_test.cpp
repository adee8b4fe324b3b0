// The rule where a text may be cut, against what it is for: no call that completes a segment begins within it.
#include "infer/prompt_cuts.h"

#include <gtest/gtest.h>

#include "infer/generating_case.h"

namespace qdelta::testing {
namespace {

TEST(PromptCutsRule, WithinASegmentOnlyIfItIsNotCompleted) {
  constexpr PromptCuts kGpu{.grid = 128, .segment = 512};
  for (const std::size_t at : {0, 512, 1024}) EXPECT_TRUE(kGpu.allow(at, 1500)) << at;
  EXPECT_FALSE(kGpu.allow(384, 1500));
  EXPECT_FALSE(kGpu.allow(1000, 1500));  // not on the grid
  EXPECT_TRUE(kGpu.allow(1152, 1500));
  EXPECT_TRUE(kGpu.allow(1408, 1535));
  EXPECT_FALSE(kGpu.allow(1408, 1536));  // the last token completes it
  EXPECT_TRUE(kGpu.allow(1536, 1536));
  EXPECT_EQ(kGpu.last(1499, 1500), 1408U);
  EXPECT_EQ(kGpu.last(1535, 1536), 1024U);
  EXPECT_EQ(kGpu.last(700, 1500), 512U);
  EXPECT_EQ(kGpu.last(700, 1000), 640U);
  EXPECT_EQ(kGpu.last(500, 600), 0U);
}

// All texts of a few tokens, read on from `at`: exactly if the piece from there completes no segment begun before.
TEST(PromptCutsRule, EveryCutOfShortTexts) {
  for (const PromptCuts cuts : {PromptCuts{1, 1}, {2, 2}, {2, 4}, {2, 8}, {3, 9}}) {
    for (std::size_t end = 1; end < 40; ++end) {
      for (std::size_t at = 0; at <= end; ++at) {
        bool completes = false;  // a segment that began before the cut
        for (std::size_t token = at + 1; token <= end; ++token) {
          completes = completes || (token % cuts.segment == 0 && token - cuts.segment < at);
        }
        EXPECT_EQ(cuts.allow(at, end), at % cuts.grid == 0 && !completes) << at << " of " << end;
        // Nor may a later end allow what this one does not.
        EXPECT_TRUE(cuts.allow(at, end) || !cuts.allow(at, end + 1)) << at << " of " << end;
        std::size_t last = at;
        while (!cuts.allow(last, end)) --last;
        EXPECT_EQ(cuts.last(at, end), last) << at << " of " << end;
      }
    }
  }
}

TEST(PromptCutsRule, ACpuCutsAnywhereOnTheGrid) {
  for (const std::string& mixer : all_mixers()) {
    const PromptCuts cuts = prompt_cuts(*speaking_model(speaking_config(mixer)), {});
    EXPECT_EQ(cuts.grid, 128U) << mixer;
    EXPECT_EQ(cuts.segment, 128U) << mixer;
  }
}

}  // namespace
}  // namespace qdelta::testing
