// Which parameters decay, and how the flat array is divided over ranks.
#include "train/weight_decay.h"

#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "train/shards_of_parameters.h"
#include "training_case.h"

namespace qdelta::testing {
namespace {

// Every tensor as a whole: groups never mix one that decays with one that does not.
TEST(WeightDecay, IsOnMatricesOnly) {
  for (const std::string& mixer : all_mixers()) {
    const ParameterLayout layout(tiny_config(mixer));
    const auto groups = decay_groups(layout, {});
    ASSERT_EQ(static_cast<std::int64_t>(groups.size()), layout.size / AdamW::kDecayGroup);
    for (const NamedSlot& tensor : layout.tensors) {
      const bool spared = tensor.name.find("norm") != std::string::npos || tensor.name.ends_with("bias") ||
                          tensor.name.ends_with("A_log") || tensor.name.ends_with(".D");
      const std::int64_t end = tensor.slot.offset + tensor.slot.shape.elements();
      for (std::int64_t i = tensor.slot.offset; i < end; ++i) {
        ASSERT_EQ(groups[static_cast<std::size_t>(i / AdamW::kDecayGroup)], spared ? 0 : 1) << mixer << tensor.name;
      }
    }
    EXPECT_TRUE(decay_groups(layout, {.which = DecayedParameters::Which::all}).empty());
    const auto without = decay_groups(layout, {.embeddings = false});
    EXPECT_EQ(without[static_cast<std::size_t>(layout.embeddings.offset / AdamW::kDecayGroup)], 0);
    EXPECT_EQ(without[static_cast<std::size_t>(layout.head.offset / AdamW::kDecayGroup)], 1);
  }
}

// With a gradient of zero only the decay moves parameters.
TEST(WeightDecay, MovesNothingElse) {
  std::vector<float> p(48, 2.0F);
  std::vector<float> g(48);
  std::vector<float> m(48);
  std::vector<float> v(48);
  const std::vector<std::uint8_t> decays{1, 0, 1};
  AdamW args;
  args.parameters = p;
  args.gradients = g;
  args.m = m;
  args.v = v;
  args.learning_rate = 0.5F;
  args.weight_decay = 0.1F;
  args.decays = decays;
  adamw(Device{}, args);
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_FLOAT_EQ(p[i], i / 16 == 1 ? 2.0F : 1.9F) << i;
}

TEST(ParameterShards, CoverEveryParameterOnce) {
  for (const std::int64_t ranks : {1, 2, 3, 4, 7}) {
    for (const std::int64_t size : {16, 160, 1000 * 16, 4096 * 16}) {
      const ParameterShards shards(size, ranks, 5000);
      std::vector<int> owners(static_cast<std::size_t>(size));
      std::int64_t own = 0;
      for (const ParameterBucket& bucket : shards.buckets) {
        EXPECT_EQ(bucket.own_begin, own);
        EXPECT_EQ(bucket.shard % 16, 0);
        for (std::int64_t i = 0; i < bucket.shard * ranks; ++i) ++owners[static_cast<std::size_t>(bucket.begin + i)];
        own += bucket.shard;
      }
      for (std::int64_t i = 0; i < shards.rest; ++i) ++owners[static_cast<std::size_t>(shards.rest_begin + i)];
      EXPECT_EQ(shards.rest_own_begin, own);
      EXPECT_LT(shards.rest, 16 * ranks);
      EXPECT_TRUE(std::ranges::all_of(owners, [](int count) { return count == 1; })) << ranks << " " << size;
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
