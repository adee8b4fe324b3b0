// Completions over the wire: what the model says, and the same whoever else is asking.
#include <cmath>
#include <future>
#include <set>

#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;

const std::vector<std::string> kPrompts = {"The river",   "a mill past the water", "x",  "once there was", "two",
                                           "seven boats", "under the bridge",      "and"};

class Completions : public ::testing::Test {
 protected:
  Serving serving_;
};

// The reference: every logit, then the softmax in double.
std::vector<std::vector<double>> log_probabilities(const LanguageModel& model, const std::vector<std::int32_t>& ids) {
  ModelRunner runner(model, Device{});
  const std::vector<std::int64_t> offsets{0, static_cast<std::int64_t>(ids.size())};
  const auto width = static_cast<std::size_t>(model.config().vocab_size);
  Tensor logits(DType::f32, {static_cast<std::int64_t>(ids.size()), model.config().vocab_size});
  runner.logits({ids, offsets}, logits.view());
  std::vector<std::vector<double>> rows;
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const std::span<const float> row = logits.as<float>().subspan(n * width, width);
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value));
    std::vector<double> all;
    for (const float value : row) all.push_back(static_cast<double>(value) - std::log(sum));
    rows.push_back(all);
  }
  return rows;
}

// As the harness asks, with a prompt long enough to be read in pieces.
TEST_F(Completions, EchoedTokensHaveTheSoftmaxOfTheModelsLogits) {
  std::vector<std::vector<std::int32_t>> prompts{{256, 'a'}, {'q'}, {}};
  Random random(3);
  for (int i = 0; i < 1100; ++i) prompts[2].push_back(static_cast<std::int32_t>(random.integer(0, 257)));
  const json answer = serving_.complete(
      {{"prompt", prompts}, {"temperature", 0}, {"max_tokens", 1}, {"logprobs", 1}, {"seed", 1234}, {"echo", true}});
  ASSERT_EQ(answer["choices"].size(), prompts.size());
  for (const json& choice : answer["choices"]) {
    const std::vector<std::int32_t>& prompt = prompts[choice["index"].get<std::size_t>()];
    const json& numbers = choice["logprobs"]["token_logprobs"];
    const json& top = choice["logprobs"]["top_logprobs"];
    ASSERT_EQ(numbers.size(), prompt.size() + 1);
    ASSERT_EQ(top.size(), prompt.size() + 1);
    EXPECT_TRUE(numbers[0].is_null() && top[0].is_null());
    const auto expected = log_probabilities(serving_.model(), prompt);
    for (std::size_t i = 1; i < prompt.size(); ++i) {
      const std::vector<double>& row = expected[i - 1];
      const auto best = std::max_element(row.begin(), row.end());
      EXPECT_NEAR(numbers[i].get<double>(), row[static_cast<std::size_t>(prompt[i])], 2e-5) << i;
      double most = -INFINITY;
      for (const auto& [token, value] : top[i].items()) most = std::max(most, value.get<double>());
      EXPECT_NEAR(most, *best, 2e-5);
      // Exactly, for the harness compares so.
      EXPECT_EQ(most == numbers[i].get<double>(), best - row.begin() == prompt[i]) << i;
    }
    // The generated one is the most likely.
    EXPECT_NEAR(numbers.back().get<double>(), *std::max_element(expected.back().begin(), expected.back().end()), 2e-5);
    EXPECT_EQ(top.back().begin().value(), numbers.back());
  }
}

TEST_F(Completions, AGreedyTokenIsSeenAsOne) {
  const std::string text = serving_.text({{"prompt", "The river"}, {"temperature", 0}, {"max_tokens", 12}});
  const json answer = serving_.complete(
      {{"prompt", "The river" + text}, {"temperature", 0}, {"max_tokens", 0}, {"logprobs", 3}, {"echo", true}});
  const json& scores = answer["choices"][0]["logprobs"];
  EXPECT_EQ(answer["choices"][0]["text"], "The river" + text);
  EXPECT_EQ(scores["token_logprobs"].size(), 1 + 9 + text.size());
  for (std::size_t i = 10; i < scores["token_logprobs"].size(); ++i) {
    double most = -INFINITY;
    for (const auto& [token, value] : scores["top_logprobs"][i].items()) most = std::max(most, value.get<double>());
    EXPECT_EQ(scores["token_logprobs"][i].get<double>(), most) << i;
    EXPECT_EQ(scores["top_logprobs"][i].size(), 3U);
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

void expect_text_of_generate(const Serving& serving) {
  ByteTokenizer tokenizer;
  ModelStates states(serving.model().config(), 1);
  Generator generator(serving.model(), tokenizer, states);
  std::vector<std::int32_t> prompt = bytes_of("The river");
  prompt.insert(prompt.begin(), 256);
  const std::vector<Generated> expected = generator.generate({prompt}, greedy(40), {0});
  EXPECT_EQ(serving.text({{"prompt", "The river"}, {"temperature", 0}, {"max_tokens", 40}}), expected[0].text);
}

TEST_F(Completions, TheTextOfQdeltaGenerate) { expect_text_of_generate(serving_); }

TEST(CompletionsOfLayersThatDiffer, TheTextOfQdeltaGenerate) { expect_text_of_generate(Serving({}, kHybrid)); }

json request_of(const std::string& prompt, int seed) {
  return {{"prompt", prompt}, {"max_tokens", 30}, {"temperature", 1.3}, {"seed", seed}, {"logprobs", 2}};
}

TEST_F(Completions, TogetherAsAlone) {
  std::vector<json> alone;
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    alone.push_back(serving_.complete(request_of(kPrompts[i], static_cast<int>(i)))["choices"]);
  }
  std::vector<std::future<json>> together;
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    together.push_back(std::async(std::launch::async, [&, i] {
      return serving_.complete(request_of(kPrompts[i], static_cast<int>(i)))["choices"];
    }));
  }
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    const json got = together[i].get();
    EXPECT_EQ(got[0]["text"], alone[i][0]["text"]) << kPrompts[i];
    EXPECT_EQ(got[0]["logprobs"]["tokens"], alone[i][0]["logprobs"]["tokens"]);
  }
}

// Prompts of one token, of few, of several pieces, scored and not, 16 and 48 at once: every bit of every
// log-probability.
class Company : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Places, Company, ::testing::Values(16, 48));

TEST_P(Company, ChangesNoBit) {
  serve::ServerOptions options;
  options.engine.cache.memory = 0;
  options.engine.max_batch = GetParam();
  const Serving serving(options);
  std::vector<json> bodies;
  for (int i = 0; i < 48; ++i) {
    const std::size_t size = std::vector<std::size_t>{0, 1, 7, 20, 200, 700}[static_cast<std::size_t>(i) % 6];
    bodies.push_back({{"prompt", std::string(size, static_cast<char>('A' + i))},
                      {"max_tokens", 10 + i % 24},
                      {"temperature", i % 3 == 0 ? 0.0 : 1.0},
                      {"seed", i},
                      {"echo", i % 4 == 1},
                      {"ignore_eos", true},
                      {"logprobs", i % 5}});
  }
  std::vector<json> alone;
  for (const json& body : bodies) alone.push_back(serving.complete(body)["choices"]);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::future<json>> together;
    for (const json& body : bodies) {
      together.push_back(std::async(std::launch::async, [&] { return serving.complete(body)["choices"]; }));
    }
    for (std::size_t i = 0; i < bodies.size(); ++i) EXPECT_EQ(together[i].get().dump(), alone[i].dump()) << i;
  }
}

// While a stream goes on short prompts wait for one another, but not for ever.
TEST(Gathering, PromptsAreReadTogether) {
  serve::ServerOptions options;
  options.engine.cache.memory = 0;
  options.engine.gather_steps = 3000;
  options.limits.max_tokens = 100'000;
  const Serving serving(options);
  const json body = {{"prompt", "The river"}, {"max_tokens", 4}, {"temperature", 0}, {"logprobs", 2}};
  const json alone = serving.complete(body)["choices"];  // no stream: at once
  RawClient stream(serving.port());
  stream.post("/v1/completions",
              json{{"prompt", "a"}, {"max_tokens", 100'000}, {"ignore_eos", true}, {"stream", true}}.dump());
  static_cast<void>(stream.read_until("data: "));
  const double before = serving.metric("qdelta_prompt_reads_total");
  std::vector<std::future<json>> together;
  for (int i = 0; i < 8; ++i) {
    together.push_back(std::async(std::launch::async, [&] { return serving.complete(body)["choices"]; }));
  }
  for (std::future<json>& one : together) EXPECT_EQ(one.get().dump(), alone.dump());
  EXPECT_LE(serving.metric("qdelta_prompt_reads_total") - before, 4);
}

// While a long prompt is read streams go on, a step for each piece of it, and a short prompt that comes later is not
// kept waiting for its end.
TEST(PromptsInTurn, HoldUpNobody) {
  serve::ServerOptions options;
  options.engine.cache.memory = 0;
  options.limits.max_tokens = 1'000'000;
  options.limits.max_prompt = options.limits.max_request = 400'000;
  options.max_memory = std::size_t{8} << 30U;
  const Serving serving(options);
  RawClient stream(serving.port());
  stream.post("/v1/completions",
              json{{"prompt", "a"}, {"max_tokens", 1'000'000}, {"ignore_eos", true}, {"stream", true}}.dump());
  static_cast<void>(stream.read_until("data: "));
  const double reads = serving.metric("qdelta_prompt_reads_total");
  RawClient book(serving.port());
  book.post("/v1/completions", json{{"prompt", std::string(300'000, 'a')}, {"max_tokens", 1}}.dump());
  serving.wait_for("qdelta_running_sequences", 2);
  const double begun = serving.metric("qdelta_prompt_reads_total");
  const double steps = serving.metric("qdelta_decode_steps_total");
  EXPECT_EQ(serving.text({{"prompt", "short"}, {"max_tokens", 3}, {"temperature", 0}}).size(), 3U);
  const double meanwhile = serving.metric("qdelta_prompt_reads_total");
  EXPECT_LT(meanwhile - reads, 500);  // pieces of 512 tokens at most: the book has 586
  EXPECT_EQ(serving.metric("qdelta_running_sequences"), 2);
  EXPECT_GE(serving.metric("qdelta_decode_steps_total") - steps, meanwhile - begun - 2);
  EXPECT_TRUE(book.read_answer().starts_with("HTTP/1.1 200"));
  EXPECT_GE(serving.metric("qdelta_prompt_reads_total") - reads, 300'000 / 512);
}

TEST_F(Completions, PromptsOfOneRequestDecodeAsOneBatch) {
  std::vector<json> alone;
  for (const std::string& prompt : kPrompts) alone.push_back(serving_.complete(request_of(prompt, 5))["choices"][0]);
  const double steps = serving_.metric("qdelta_decode_steps_total");
  json body = request_of("", 5);
  body["prompt"] = kPrompts;
  const json answer = serving_.complete(body);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], alone[i]["text"]);
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30 * kPrompts.size());
  // Eight prompts of thirty tokens: one step for each of thirty, but for the first ones' waiting for the others'
  // prompts.
  EXPECT_LE(serving_.metric("qdelta_decode_steps_total") - steps, 32);
}

TEST_F(Completions, MoreSequencesThanPlaces) {
  serve::ServerOptions options;
  options.engine.max_batch = 3;
  const Serving narrow(options);
  json body = request_of("", 5);
  body["prompt"] = kPrompts;
  const json wide = serving_.complete(body);
  const json queued = narrow.complete(body);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(queued["choices"][i]["text"], wide["choices"][i]["text"]);
  }
}

TEST_F(Completions, Seeds) {
  const auto text = [&](int seed) { return serving_.text(request_of("The river", seed)); };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
  // Without one every answer is another, and so are the samples of one prompt.
  const json body = {{"prompt", "The river"}, {"max_tokens", 30}, {"temperature", 1.3}, {"n", 3}};
  std::set<std::string> texts;
  for (int i = 0; i < 2; ++i) {
    const json answer = serving_.complete(body);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], 10);
    for (const json& choice : answer["choices"]) texts.insert(choice["text"]);
  }
  EXPECT_EQ(texts.size(), 6U);
  json seeded = body;
  seeded["seed"] = 1;
  const json first = serving_.complete(seeded)["choices"];
  EXPECT_EQ(serving_.complete(seeded)["choices"], first);
  EXPECT_NE(first[0]["text"], first[1]["text"]);
}

TEST_F(Completions, StopStrings) {
  json body = {{"prompt", "The river"}, {"temperature", 0}, {"max_tokens", 40}};
  const std::string whole = serving_.text(body);
  const std::string stop = whole.substr(7, 3);
  body["stop"] = {"not in it", stop};
  json answer = serving_.complete(body)["choices"][0];
  EXPECT_EQ(answer["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(answer["finish_reason"], "stop");
  body["stop"] = "not in it";
  answer = serving_.complete(body)["choices"][0];
  EXPECT_EQ(answer["text"], whole);
  EXPECT_EQ(answer["finish_reason"], "length");
}

TEST_F(Completions, AStreamIsTheSameText) {
  for (const json& more : {json{{"echo", true}}, json{{"logprobs", 1}}, json{{"stop", {"e", "a "}}},
                           json{{"n", 2}, {"temperature", 1}, {"echo", true}, {"logprobs", 2}}}) {
    json body = {{"prompt", kPrompts}, {"temperature", 0}, {"max_tokens", 25}, {"seed", 3}};
    body.update(more);
    const json whole = serving_.complete(body);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const HttpClient::Result result = serving_.post("/v1/completions", body);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    const Events events(result->body);
    EXPECT_TRUE(events.done);
    std::vector<std::string> texts(whole["choices"].size());
    std::vector<std::size_t> tokens(texts.size());
    std::vector<json> finish(texts.size());
    for (const json& event : events.data) {
      for (const json& choice : event["choices"]) {
        const auto index = choice["index"].get<std::size_t>();
        texts[index] += choice["text"].get<std::string>();
        if (choice["logprobs"].is_object()) tokens[index] += choice["logprobs"]["tokens"].size();
        finish[index] = choice["finish_reason"];
      }
    }
    EXPECT_EQ(events.data.back()["usage"], whole["usage"]);
    for (const json& choice : whole["choices"]) {
      const auto index = choice["index"].get<std::size_t>();
      EXPECT_EQ(texts[index], choice["text"]);
      EXPECT_EQ(finish[index], choice["finish_reason"]);
      EXPECT_EQ(tokens[index], choice["logprobs"].is_object() ? choice["logprobs"]["tokens"].size() : 0);
    }
  }
}

// A tokenizer whose file ends every text, and one whose file does both: what its template says, no more and no less.
TEST(Tokenize, SpecialTokensAreThoseOfTheTokenizersTemplate) {
  struct Case {
    const char* name;
    json before, after;
  };
  for (const Case& one : {Case{"word_level.json", json::array(), json::array({2})},
                          Case{"bert_style.json", json::array({2}), json::array({3})}}) {
    const std::string path = fmt::format("{}/data/fixtures/{}", QDELTA_TESTS_DIR, one.name);
    const Serving serving({}, "q_delta", load_tokenizer(path));
    const auto tokenize = [&](bool special) {
      return json::parse(
          serving.post("/tokenize", {{"prompt", "the mill"}, {"add_special_tokens", special}})->body)["tokens"];
    };
    const json plain = tokenize(false);
    EXPECT_EQ(plain, json(load_tokenizer(path)->encode("the mill")));
    EXPECT_FALSE(plain.empty());
    json expected = one.before;
    expected.insert(expected.end(), plain.begin(), plain.end());
    expected.insert(expected.end(), one.after.begin(), one.after.end());
    EXPECT_EQ(tokenize(true), expected) << one.name;
  }
}

// A text that the tokenizer cannot take is a wrong request, not a fault of the server.
TEST(Tokenize, ATextWithoutTokensIsRefused) {
  const Serving serving({}, "q_delta", word_tokenizer({{"a", 0}, {"mill", 1}}));
  EXPECT_EQ(serving.post("/tokenize", {{"prompt", "a mill"}})->status, 200);
  const json chat = {{"messages", {{{"role", "user"}, {"content", "a river"}}}}};
  for (const auto& [path, body] : {std::pair<const char*, json>("/tokenize", {{"prompt", "a river"}}),
                                   std::pair<const char*, json>("/v1/completions", {{"prompt", "a river"}}),
                                   std::pair<const char*, json>("/v1/chat/completions", chat)}) {
    const auto refused = serving.post(path, body);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 400) << path;
    EXPECT_NE(refused->body.find("has no token"), std::string::npos) << refused->body;
  }
}

TEST_F(Completions, TextsAndTheirTokens) {
  const json ids = {256, 'T', 'h', 'e'};
  const auto tokenize = [&](const json& body) { return json::parse(serving_.post("/tokenize", body)->body)["tokens"]; };
  EXPECT_EQ(tokenize({{"prompt", "The"}}), ids);
  EXPECT_EQ(tokenize({{"prompt", "The"}, {"add_special_tokens", false}}), (json{'T', 'h', 'e'}));
  const json info = json::parse(serving_.client().get("/tokenizer_info")->body);
  EXPECT_EQ(info["bos_token_id"], 256);
  // How the harness finds their ids.
  EXPECT_EQ(tokenize({{"prompt", info["bos_token"]}, {"add_special_tokens", false}}), json{256});
  EXPECT_EQ(tokenize({{"prompt", info["eos_token"]}, {"add_special_tokens", false}}), json{257});
  EXPECT_EQ(json::parse(serving_.post("/detokenize", {{"tokens", {'T', 'h', 'e'}}})->body)["prompt"], "The");
  // The same prompt in both forms.
  json body = {{"prompt", ids}, {"temperature", 0}, {"max_tokens", 9}, {"echo", true}};
  const std::string text = serving_.text(body);
  body["prompt"] = "The";
  EXPECT_EQ(serving_.text(body), text);
  EXPECT_TRUE(text.starts_with("The"));
  const json models = json::parse(serving_.client().get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "qdelta");
}

}  // namespace
}  // namespace qdelta::testing
