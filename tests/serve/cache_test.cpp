// The cache of states: what begins alike is read once, and nobody can tell from the answers.
#include "serve/state_cache.h"
#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;

std::string long_text(char first, std::size_t size) {
  std::string text(size, 'a');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (i * i + i / 7) % 26);
  text[0] = first;
  return text;
}

class Cached : public ::testing::TestWithParam<std::string_view> {};

TEST_P(Cached, AnswersHaveTheSameBits) {
  serve::ServerOptions without;
  without.engine.cache_bytes = 0;
  const Serving plain(without, GetParam());
  const Serving cached({}, GetParam());
  const std::string shared = long_text('x', 1500);
  std::int64_t reused = 0;
  // The same prompt, one that goes on, one that branches off between cuts, one that is shorter, one of another
  // beginning.
  for (const std::string& prompt : {shared, shared, shared + "more of it", shared.substr(0, 1200) + "another way",
                                    shared.substr(0, 1025), shared.substr(0, 512), long_text('y', 1500)}) {
    const json body = {{"prompt", prompt}, {"max_tokens", 8}, {"temperature", 1}, {"seed", 5}, {"logprobs", 3}};
    const json expected = plain.complete(body);
    const json got = cached.complete(body);
    EXPECT_EQ(got["choices"], expected["choices"]);
    EXPECT_EQ(expected["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    reused += got["usage"]["prompt_tokens_details"]["cached_tokens"].get<std::int64_t>();
  }
  EXPECT_EQ(reused, 1024 + 1024 + 1024 + 1024 + 512);
  EXPECT_EQ(cached.metric("qdelta_cached_tokens_total"), static_cast<double>(reused));
  EXPECT_EQ(cached.metric("qdelta_cache_hits_total"), 5);
  EXPECT_EQ(cached.metric("qdelta_cache_lookups_total"), 7);
  EXPECT_EQ(plain.metric("qdelta_cache_snapshots"), 0);
}

INSTANTIATE_TEST_SUITE_P(Mixers, Cached, ::testing::Values("q_delta", "mamba"));

TEST(StateCache, KeepsWhatWasUsedLast) {
  const ModelConfig config = speaking_config();
  ModelStates states(config, 2);
  const std::size_t one = ModelStates(config, 1).bytes();
  serve::StateCache cache(config, {}, 3 * one + one / 2, 4);
  const auto mark = [&](float value) { *reinterpret_cast<float*>(states.slot_of(0, 0).data) = value; };
  const auto restored = [&](const std::vector<std::int32_t>& prompt) {
    states.clear(1);
    const std::size_t tokens = cache.restore(prompt, states, 1);
    return std::pair(tokens, *reinterpret_cast<const float*>(states.slot_of(0, 1).data));
  };
  using Found = std::pair<std::size_t, float>;
  const std::vector<std::int32_t> a{1, 2, 3, 4, 5, 6, 7, 8, 9}, b{1, 2, 3, 4, 5, 6, 7, 0, 9}, c{9, 9, 9, 9, 9};
  const auto keep = [&](const std::vector<std::int32_t>& prompt, std::size_t tokens, float value) {
    mark(value);
    cache.keep(std::span(prompt).first(tokens), states, 0);
  };
  EXPECT_EQ(restored(a), Found(0, 0));
  keep(a, 4, 1);
  keep(a, 8, 2);
  keep(a, 3, 7);  // no cut
  EXPECT_EQ(restored(a), Found(8, 2));
  EXPECT_EQ(restored(b), Found(4, 1));
  EXPECT_EQ(restored({1, 2, 3, 4, 5, 6, 7, 8}), Found(4, 1));  // a token must be left
  keep(b, 8, 3);
  EXPECT_EQ(restored(b), Found(8, 3));
  keep(c, 4, 4);  // a's first was used before b's and a's second: that one goes
  EXPECT_EQ(cache.snapshots(), 3U);
  EXPECT_EQ(cache.evicted(), 1U);
  EXPECT_EQ(restored(c), Found(4, 4));
  EXPECT_EQ(restored(b), Found(8, 3));
  EXPECT_EQ(restored(a), Found(4, 1));
  // What a node on the way loses can come back, also while what is below it goes.
  keep(c, 4, 4);
  keep(a, 8, 5);
  EXPECT_EQ(restored(a), Found(8, 5));
  EXPECT_LE(cache.bytes(), 3 * one);
  serve::StateCache none(config, {}, one / 2, 4);
  none.keep(std::span(a).first(4), states, 0);
  EXPECT_EQ(none.restore(a, states, 1), 0U);
}

}  // namespace
}  // namespace qdelta::testing
