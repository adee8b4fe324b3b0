// The cache of states: what begins alike is read once, and nobody can tell from the answers.
#include "files.h"
#include "serve/shared_prefix.h"
#include "serve/state_cache.h"
#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string long_text(char first, std::size_t size) {
  std::string text(size, 'a');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (i * i + i / 7) % 26);
  text[0] = first;
  return text;
}

json body_of(const std::string& prompt, int tokens = 8) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 1},
          {"seed", 5},        {"logprobs", 3},        {"ignore_eos", true}};
}

std::int64_t cached_tokens(const json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<std::int64_t>();
}

serve::ServerOptions without_cache() {
  serve::ServerOptions options;
  options.engine.cache.memory = 0;
  return options;
}

class Cached : public ::testing::TestWithParam<std::string_view> {};

TEST_P(Cached, AnswersHaveTheSameBits) {
  const Serving plain(without_cache(), GetParam());
  const Serving cached({}, GetParam());
  const std::string shared = long_text('x', 1500);
  std::vector<std::int64_t> reused;
  // The same prompt, one that goes on, one that branches off between cuts, shorter ones, one of another beginning.
  // A token, the begin of the text, stands before each.
  for (int round = 0; round < 2; ++round) {
    for (const std::string& prompt : {shared, shared, shared + "more of it", shared.substr(0, 1200) + "another way",
                                      shared.substr(0, 1024), shared.substr(0, 512), long_text('y', 1500)}) {
      const json expected = plain.complete(body_of(prompt));
      const json got = cached.complete(body_of(prompt));
      EXPECT_EQ(got["choices"], expected["choices"]);
      EXPECT_EQ(cached_tokens(expected), 0);
      reused.push_back(cached_tokens(got));
    }
  }
  // Kept are the ends of the prompts, each 1,024 tokens, and the places where prompts part, all on a grid of 128.
  EXPECT_EQ(reused,
            (std::vector<std::int64_t>{0, 1408, 1408, 1024, 1024, 0, 0, 1408, 1408, 1408, 1152, 1024, 512, 1408}));
  EXPECT_EQ(cached.metric("qdelta_cached_tokens_total"), 13184);
  EXPECT_EQ(cached.metric("qdelta_cache_hits_total"), 11);
  EXPECT_EQ(cached.metric("qdelta_cache_lookups_total"), 14);
  EXPECT_EQ(plain.metric("qdelta_cache_snapshots"), 0);
  EXPECT_EQ(cached.post("/v1/completions", body_of(shared))->get_header_value("Qdelta-Cached-Tokens"), "1408");
  EXPECT_EQ(plain.post("/v1/completions", body_of(shared))->get_header_value("Qdelta-Cached-Tokens"), "0");
  // The head of a stream says it too.
  json streamed = body_of(shared);
  streamed["stream"] = true;
  const auto stream = cached.post("/v1/completions", streamed);
  EXPECT_EQ(stream->get_header_value("Qdelta-Cached-Tokens"), "1408");
  EXPECT_TRUE(Events(stream->body).done);
}

// The answer is read into the cache as soon as there is nothing else to do: the next prompt goes on behind it.
TEST_P(Cached, ConversationsDoNotReadTheirHistoryAgain) {
  const Serving plain(without_cache(), GetParam());
  const Serving cached({}, GetParam());
  std::string text = long_text('x', 300);
  double ahead = 0;
  for (int turn = 0; turn < 4; ++turn) {
    json body = body_of(text, 200);
    body["temperature"] = 0;  // letters only, a token each
    const json expected = plain.complete(body);
    const json got = cached.complete(body);
    EXPECT_EQ(got["choices"], expected["choices"]);
    if (turn > 0) {
      EXPECT_GE(cached_tokens(got), static_cast<std::int64_t>(text.size()) - 30 - 128) << turn;
    }
    text += got["choices"][0]["text"].get<std::string>();
    const auto cut = static_cast<double>((text.size() + 1) / 128 * 128);
    ahead += cut - static_cast<double>((text.size() - 200) / 128 * 128);
    cached.wait_for("qdelta_read_ahead_tokens_total", ahead);
    text += " and then, said somebody else";
  }
}

TEST_P(Cached, StatesOnDiskOutliveTheServer) {
  const TemporaryFolder folder;
  const Serving plain(without_cache(), GetParam());
  serve::ServerOptions options;
  options.engine.cache.folder = folder.file("states");
  // Room in memory for one or two: others go to the disk meanwhile.
  options.engine.cache.memory = 5 * ModelStates(speaking_config(GetParam()), 1).bytes() / 2 + (std::size_t{1} << 14U);
  const std::vector<std::string> prompts{long_text('x', 300), long_text('y', 500), long_text('z', 900),
                                         long_text('v', 700)};
  std::vector<json> expected;
  for (const std::string& prompt : prompts) expected.push_back(plain.complete(body_of(prompt)));
  for (const double loaded : {0, 4}) {
    const Serving cached(options, GetParam());
    if (loaded > 0) {
      EXPECT_EQ(cached.metric("qdelta_cache_files"), 4);
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const json got = cached.complete(body_of(prompts[i]));
      EXPECT_EQ(got["choices"], expected[i]["choices"]) << i;
      EXPECT_EQ(cached_tokens(got) > 0, loaded > 0);
    }
    EXPECT_EQ(cached.metric("qdelta_cache_files_loaded_total"), loaded);
  }
  // Damaged in every way: nothing is believed, and nothing stops the server.
  int file_number = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.file("states"))) {
    if (!file.is_regular_file()) continue;
    std::string bytes = read_file(file.path().string());
    if (file_number == 0) bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    if (file_number == 1) bytes.resize(bytes.size() - 7);
    if (file_number == 2) bytes = "no state at all";
    if (file_number == 3) bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);  // of the tokens
    write_file(file.path().string(), bytes);
    ++file_number;
  }
  EXPECT_EQ(file_number, 4);
  const Serving again(options, GetParam());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const json got = again.complete(body_of(prompts[i]));
    EXPECT_EQ(got["choices"], expected[i]["choices"]) << i;
    EXPECT_EQ(cached_tokens(got), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, Cached, ::testing::Values("q_delta", "mamba"));

// As on a GPU, where a text that completes a segment must have been cut where that begins, or before.
serve::ServerOptions with_segments() {
  serve::ServerOptions options;
  options.engine.segment = 512;
  return options;
}

TEST(CachedSegments, PromptsGoOnFromWhereTheyMayBeCut) {
  const Serving plain(without_cache());
  const Serving cached(with_segments());
  const std::string text = long_text('x', 2000);
  std::vector<std::int64_t> reused;
  // A token stands before each. Kept are 1,024 and 1,408 tokens of the first, 1,536 of the third.
  for (const std::size_t size : {1500, 1520, 1600, 1650, 1535, 1534, 1100, 1023}) {
    const json body = body_of(text.substr(0, size));
    const json got = cached.complete(body);
    EXPECT_EQ(got["choices"], plain.complete(body)["choices"]) << size;
    reused.push_back(cached_tokens(got));
  }
  EXPECT_EQ(reused, (std::vector<std::int64_t>{0, 1408, 1024, 1536, 1024, 1408, 1024, 0}));
}

TEST(CachedSegments, ConversationsGrowPastThem) {
  const PromptCuts cuts{.grid = 128, .segment = 512};
  const Serving plain(without_cache());
  const Serving cached(with_segments());
  std::string text = long_text('x', 300);
  double ahead = 0;
  std::size_t kept = 0;
  for (int turn = 0; turn < 7; ++turn) {
    json body = body_of(text, 200);
    body["temperature"] = 0;  // letters only, a token each
    const json got = cached.complete(body);
    EXPECT_EQ(got["choices"], plain.complete(body)["choices"]);
    EXPECT_EQ(cached_tokens(got), static_cast<std::int64_t>(cuts.last(kept, text.size() + 1))) << turn;
    const std::size_t prompt_end = text.size();  // the last token of the prompt
    text += got["choices"][0]["text"].get<std::string>();
    kept = (text.size() + 1) / 128 * 128;
    ahead += static_cast<double>(kept - cuts.last(prompt_end, kept));
    cached.wait_for("qdelta_read_ahead_tokens_total", ahead);
    text += " and then, said somebody else";
  }
}

TEST(Forks, SamplesReadTheirPromptOnce) {
  const Serving serving(without_cache());
  serve::ServerOptions narrow = without_cache();
  narrow.engine.max_batch = 1;  // nobody is there to follow
  const Serving one_by_one(narrow);
  json body = body_of(long_text('x', 300));
  body["n"] = 5;
  const json got = serving.complete(body);
  EXPECT_EQ(got["choices"], one_by_one.complete(body)["choices"]);
  EXPECT_NE(got["choices"][0]["text"], got["choices"][1]["text"]);
  EXPECT_EQ(serving.metric("qdelta_forked_sequences_total"), 4);
  EXPECT_EQ(serving.metric("qdelta_prompt_tokens_total"), 301);
  EXPECT_EQ(one_by_one.metric("qdelta_prompt_tokens_total"), 5 * 301);
  // In a cache that has it nothing is counted twice.
  const Serving cached;
  EXPECT_EQ(cached.complete(body)["choices"], got["choices"]);
  const json again = cached.complete(body);
  EXPECT_EQ(again["choices"], got["choices"]);
  EXPECT_EQ(cached_tokens(again), 256);
}

TEST(Forks, ChoicesOfAQuestionReadItOnce) {
  const Serving serving(without_cache());
  serve::ServerOptions narrow = without_cache();
  narrow.engine.max_batch = 1;
  const Serving one_by_one(narrow);
  const std::string question = long_text('x', 200);
  const json body = {{"prompt", {question + " first", question + " second one", question + " third", "something else"}},
                     {"max_tokens", 0},
                     {"echo", true},
                     {"logprobs", 3}};
  const json got = serving.complete(body);
  EXPECT_EQ(got["choices"], one_by_one.complete(body)["choices"]);
  EXPECT_EQ(serving.metric("qdelta_forked_sequences_total"), 2);
  EXPECT_EQ(got["choices"][1]["logprobs"]["tokens"].size(), question.size() + 1 + 11);
  // The scores are those of the choices alone, but for rounding.
  for (std::size_t i = 0; i < 4; ++i) {
    json single = body;
    single["prompt"] = body["prompt"][i];
    const json alone = serving.complete(single)["choices"][0]["logprobs"]["token_logprobs"];
    const json here = got["choices"][i]["logprobs"]["token_logprobs"];
    ASSERT_EQ(here.size(), alone.size());
    for (std::size_t k = 1; k < alone.size(); ++k) {
      EXPECT_NEAR(here[k].get<double>(), alone[k].get<double>(), 1e-4) << i << ", " << k;
    }
  }
}

TEST(Forks, GroupsDependOnTheRequestAlone) {
  const auto sequence = [](std::size_t common, std::size_t own, std::int32_t token) {
    serve::SequenceRequest request;
    request.prompt.assign(common, 1);
    request.prompt.resize(common + own, token);
    request.options.score_prompt = true;
    return request;
  };
  std::vector<serve::SequenceRequest> sequences{sequence(50, 3, 2), sequence(50, 3, 2), sequence(50, 9, 3),
                                                sequence(40, 5, 4), sequence(20, 5, 5), sequence(22, 5, 6),
                                                sequence(0, 9, 7),  sequence(16, 5, 8)};
  serve::mark_shared(sequences);
  std::vector<std::pair<std::size_t, std::size_t>> got;
  for (const serve::SequenceRequest& each : sequences) got.emplace_back(each.group, each.shared);
  EXPECT_EQ(got, (std::vector<std::pair<std::size_t, std::size_t>>{
                     {1, 39}, {1, 39}, {1, 39}, {1, 39}, {2, 19}, {2, 19}, {0, 0}, {0, 0}}));
}

// A cache whose snapshots are told apart by a number.
class Marked {
 public:
  explicit Marked(std::size_t memory, const std::string& folder = {}, std::size_t disk = 0,
                  const PromptCuts& cuts = {4, 4})
      : cache_(*model_, {}, {.memory = memory, .folder = folder, .disk = disk}, cuts) {}

  void keep(const Ids& prompt, std::size_t tokens, float value) {
    *reinterpret_cast<float*>(states_.slot_of(0, 0).data) = value;
    cache_.keep(std::span(prompt).first(tokens), states_, 0);
  }
  using Found = std::pair<std::size_t, float>;
  [[nodiscard]] Found restored(const Ids& prompt) {
    states_.clear(1);
    const std::size_t tokens = cache_.restore(prompt, states_, 1).tokens;
    return {tokens, *reinterpret_cast<const float*>(states_.slot_of(0, 1).data)};
  }
  [[nodiscard]] std::size_t shared(const Ids& prompt) { return cache_.restore(prompt, states_, 1).shared; }
  [[nodiscard]] std::size_t longest(const Ids& prompt) { return cache_.longest(prompt); }
  [[nodiscard]] const serve::StateCache& cache() const { return cache_; }

  static std::size_t one() { return ModelStates(speaking_config(), 1).bytes(); }

 private:
  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config());
  ModelStates states_{model_->config(), 2};
  serve::StateCache cache_;
};
using Found = Marked::Found;

TEST(StateCache, KeepsWhatWasUsedLast) {
  Marked cache(3 * Marked::one() + Marked::one() / 2);
  const Ids a{1, 2, 3, 4, 5, 6, 7, 8, 9}, b{1, 2, 3, 4, 5, 6, 7, 0, 9}, c{9, 9, 9, 9, 9};
  EXPECT_EQ(cache.restored(a), Found(0, 0));
  cache.keep(a, 4, 1);
  cache.keep(a, 8, 2);
  cache.keep(a, 3, 7);  // not on the grid
  EXPECT_EQ(cache.restored(a), Found(8, 2));
  EXPECT_EQ(cache.restored(b), Found(4, 1));
  EXPECT_EQ(cache.shared(b), 7U);
  EXPECT_EQ(cache.restored({1, 2, 3, 4, 5, 6, 7, 8}), Found(4, 1));  // a token must be left
  cache.keep(b, 8, 3);
  EXPECT_EQ(cache.restored(b), Found(8, 3));
  cache.keep(c, 4, 4);  // a's first was used before b's and a's second: that one goes
  EXPECT_EQ(cache.cache().snapshots(), 3U);
  EXPECT_EQ(cache.cache().evicted(), 1U);
  EXPECT_EQ(cache.restored(c), Found(4, 4));
  EXPECT_EQ(cache.restored(b), Found(8, 3));
  EXPECT_EQ(cache.restored(a), Found(4, 1));
  // What a node on the way loses can come back, also while what is below it goes.
  cache.keep(c, 4, 4);
  cache.keep(a, 8, 5);
  EXPECT_EQ(cache.restored(a), Found(8, 5));
  EXPECT_LE(cache.cache().bytes(), 3 * Marked::one() + Marked::one() / 2);
  Marked none(Marked::one() / 2);
  none.keep(a, 4, 1);
  EXPECT_FALSE(none.cache().keeps());
  EXPECT_EQ(none.restored(a), Found(0, 0));
}

// As on a GPU: what was kept within a segment is for texts that do not complete it.
TEST(StateCache, UsesOnlyStatesWhereTheTextMayBeCut) {
  Marked cache(10 * Marked::one(), {}, 0, {.grid = 4, .segment = 16});
  const auto text = [](std::size_t tokens) { return Ids(tokens, 1); };
  const Ids all = text(40);
  cache.keep(all, 8, 1);
  cache.keep(all, 16, 2);
  cache.keep(all, 24, 3);
  EXPECT_EQ(cache.cache().snapshots(), 3U);
  EXPECT_EQ(cache.restored(text(9)), Found(8, 1));
  EXPECT_EQ(cache.restored(text(15)), Found(8, 1));
  EXPECT_EQ(cache.restored(text(16)), Found(0, 0));  // its last token completes the segment
  EXPECT_EQ(cache.restored(text(17)), Found(16, 2));
  EXPECT_EQ(cache.restored(text(24)), Found(16, 2));  // a token must be left
  EXPECT_EQ(cache.restored(text(31)), Found(24, 3));
  EXPECT_EQ(cache.restored(text(32)), Found(16, 2));
  EXPECT_EQ(cache.restored(all), Found(16, 2));
  EXPECT_EQ(cache.shared(all), 24U);
  EXPECT_EQ(cache.longest(text(24)), 24U);
  EXPECT_EQ(cache.longest(text(16)), 16U);
  EXPECT_EQ(cache.longest(text(36)), 16U);
}

TEST(StateCache, TheDiskIsBoundedToo) {
  const TemporaryFolder folder;
  const std::size_t one = Marked::one();
  const auto text = [](std::int32_t first) { return Ids{first, 1, 1, 1, 1}; };
  {
    Marked cache(one + 64, folder.file("states"), 3 * one);
    for (std::int32_t i = 1; i <= 5; ++i) cache.keep(text(i), 4, static_cast<float>(i));
    EXPECT_EQ(cache.cache().snapshots(), 1U);
    EXPECT_LE(cache.cache().file_bytes(), 3 * one);
    EXPECT_EQ(cache.cache().files(), 2U);
    EXPECT_EQ(cache.restored(text(5)), Found(4, 5));  // in memory
    EXPECT_EQ(cache.restored(text(4)), Found(4, 4));  // on disk
    EXPECT_EQ(cache.restored(text(1)), Found(0, 0));
    EXPECT_EQ(cache.cache().loaded(), 1U);
  }
  Marked cache(one + 64, folder.file("states"), 3 * one);
  EXPECT_EQ(cache.cache().files(), 2U);
  EXPECT_EQ(cache.restored(text(5)), Found(4, 5));
  EXPECT_EQ(cache.restored(text(4)), Found(4, 4));
}

// Against a list of all that was kept, with few tokens, so that prefixes meet.
TEST(StateCache, FindsTheLongestOfManyTexts) {
  Marked cache(1000 * Marked::one());
  std::map<Ids, float> all;
  std::uint64_t state = 1;
  const auto random = [&](std::uint64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33U) % below;
  };
  for (int i = 0; i < 2000; ++i) {
    Ids text;
    for (std::uint64_t left = 1 + random(24); left > 0; --left) text.push_back(random(8) == 0 ? 1 : 0);
    if (random(4) == 0) {
      text.resize(text.size() / 4 * 4);
      if (text.empty() || all.contains(text)) continue;
      all[text] = static_cast<float>(i + 1);
      cache.keep(text, text.size(), all[text]);
      continue;
    }
    Found expected{0, 0};
    std::size_t shared = 0;
    for (const auto& [prefix, value] : all) {
      const auto common = static_cast<std::size_t>(std::ranges::mismatch(prefix, text).in1 - prefix.begin());
      shared = std::max(shared, common);
      if (common == prefix.size() && common < text.size() && common > expected.first) expected = {common, value};
    }
    ASSERT_EQ(cache.restored(text), expected) << i;
    ASSERT_EQ(cache.shared(text), shared) << i;
  }
  EXPECT_GT(all.size(), 50U);
}

}  // namespace
}  // namespace qdelta::testing
