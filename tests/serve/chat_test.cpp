// Chats over HTTP: what the template makes of the messages is the prompt. And what of the other interfaces is not about
// completions: models by name, pages of other origins, the log.
#include "cli/cli_testing.h"
#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;

const json kMessages = {{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "hello"}}};
const std::string kRendered = "[system]be brief[user]hello[assistant]";

TEST(Chat, TheTemplateMakesThePrompt) {
  const Serving serving;
  const json body = {{"messages", kMessages}, {"max_tokens", 12}, {"temperature", 0}};
  const auto result = serving.post("/v1/chat/completions", body);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  const json chat = json::parse(result->body);
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_TRUE(chat["id"].get<std::string>().starts_with("chatcmpl-"));
  const json completion = serving.complete({{"prompt", kRendered}, {"max_tokens", 12}, {"temperature", 0}});
  EXPECT_EQ(chat["choices"][0]["message"],
            (json{{"role", "assistant"}, {"content", completion["choices"][0]["text"]}}));
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"], completion["usage"]);
}

TEST(Chat, AStreamSaysTheSame) {
  const Serving serving;
  json body = {{"messages", kMessages}, {"max_tokens", 20}, {"temperature", 1}, {"seed", 4}, {"n", 2},
               {"logprobs", true},      {"top_logprobs", 2}};
  const json whole = json::parse(serving.post("/v1/chat/completions", body)->body);
  body["stream"] = true;
  const Events events(serving.post("/v1/chat/completions", body)->body);
  EXPECT_TRUE(events.done);
  std::vector<std::string> texts(2);
  std::vector<json> scores(2, json::array());
  for (const json& event : events.data) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    EXPECT_EQ(choice["delta"].contains("role"), texts[index].empty() && scores[index].empty());
    texts[index] += choice["delta"]["content"].get<std::string>();
    for (const json& score : choice["logprobs"]["content"]) scores[index].push_back(score);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(scores[i], whole["choices"][i]["logprobs"]["content"]);
    EXPECT_EQ(scores[i].size(), 20U);
  }
}

// A special token by its name, over and over: the time is linear in the text, however often one is there and the other
// not.
TEST(Chat, ManyNamesOfSpecialTokensTakeNoTime) {
  const Serving serving;
  constexpr std::size_t kMany = 300'000;
  std::string names;
  for (std::size_t i = 0; i < kMany; ++i) names += "<bos>";
  const auto begin = std::chrono::steady_clock::now();
  const auto refused = serving.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", names}}}}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->body.find(std::to_string(kMany + 18) + " tokens"), std::string::npos) << refused->body;
}

TEST(Chat, WhatTheTemplateRefuses) {
  const Serving serving;
  const auto result = serving.post("/v1/chat/completions", {{"messages", {{{"role", "dog"}, {"content", "woof"}}}}});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 400);
  EXPECT_NE(result->body.find("no such role"), std::string::npos) << result->body;
}

TEST(Chat, StopTokensAndBiases) {
  const Serving serving;
  json body = {{"prompt", "The river"}, {"max_tokens", 8}, {"temperature", 0}, {"logit_bias", {{"120", 100}}}};
  EXPECT_EQ(serving.text(body), "xxxxxxxx");
  body["stop_token_ids"] = {'x'};
  body["min_tokens"] = 3;
  const json choice = serving.complete(body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["text"].get<std::string>().size(), 3U);
  EXPECT_EQ(choice["text"].get<std::string>().find('x'), std::string::npos);
}

TEST(Interfaces, ThePageIsWholeInItself) {
  serve::ServerOptions options;
  options.api_key = "secret";
  const Serving serving(options);
  const auto page = serving.client().get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_TRUE(page->get_header_value("Content-Type").starts_with("text/html"));
  EXPECT_TRUE(page->body.starts_with("<!doctype html>"));
  for (const char* outside : {"http://", "https://", " src=", "<link", "@import"}) {
    EXPECT_EQ(page->body.find(outside), std::string::npos) << outside;
  }
}

TEST(Interfaces, AModelByItsName) {
  const Serving serving;
  EXPECT_EQ(json::parse(serving.client().get("/v1/models/qdelta")->body)["id"], "qdelta");
  EXPECT_EQ(serving.client().get("/v1/models/other")->status, 404);
  serve::ServerOptions options;
  options.model_name = "my/model";
  const Serving named(options);
  for (const char* name : {"my/model", "my%2Fmodel", "my%2fmodel"}) {
    EXPECT_EQ(json::parse(named.client().get(std::string("/v1/models/") + name)->body)["id"], "my/model") << name;
  }
  for (const char* name : {"my%2", "%", "my%-2model", "my%252Fmodel"}) {
    EXPECT_EQ(named.client().get(std::string("/v1/models/") + name)->status, 404) << name;
  }
}

TEST(Interfaces, PagesOfAnotherOriginMayAskWhereTheyAreToldSo) {
  serve::ServerOptions options;
  options.cors = "https://example.org";
  options.api_key = "secret";
  const Serving serving(options);
  const auto may = serving.client().request("OPTIONS", "/v1/completions", {{"Origin", "https://example.org"}}, "");
  ASSERT_TRUE(may);
  EXPECT_EQ(may->status, 204);
  EXPECT_EQ(may->get_header_value("Access-Control-Allow-Origin"), "https://example.org");
  EXPECT_EQ(may->get_header_value("Access-Control-Allow-Headers"), "Authorization, Content-Type, *");
  EXPECT_EQ(may->get_header_value("Content-Length"), "");  // there is no body to have one
  EXPECT_EQ(serving.client().get("/v1/models")->get_header_value("Access-Control-Allow-Origin"), "https://example.org");
  const Serving closed;
  EXPECT_EQ(closed.client().request("OPTIONS", "/v1/completions", {}, "")->status, 405);
  EXPECT_EQ(closed.client().get("/v1/models")->get_header_value("Access-Control-Allow-Origin"), "");
}

// A disk that is full is no reason not to serve.
TEST(Interfaces, ALogThatCannotBeWritten) {
  serve::ServerOptions options;
  options.log = "/dev/full";
  options.log_prompts = true;
  const Serving serving(options);
  for (const std::size_t size : {std::size_t{1}, std::size_t{10'000}}) {
    EXPECT_EQ(serving.text({{"prompt", std::string(size, 'a')}, {"max_tokens", 3}, {"temperature", 0}}).size(), 3U);
  }
  EXPECT_TRUE(serving.healthy());
}

TEST(Interfaces, ALineOfTheLogForEachRequest) {
  for (const bool prompts : {false, true}) {
    const TemporaryFolder folder;
    serve::ServerOptions options;
    options.log = folder.file("log");
    options.log_prompts = prompts;
    {
      const Serving serving(options);
      static_cast<void>(serving.complete({{"prompt", "a secret"}, {"max_tokens", 5}, {"ignore_eos", true}}));
      static_cast<void>(serving.client().get("/nowhere"));
    }
    const std::string text = read_file(options.log);
    const std::size_t end = text.find('\n');
    const json first = json::parse(text.substr(0, end));
    const json second = json::parse(text.substr(end + 1));
    EXPECT_EQ(first["path"], "/v1/completions");
    EXPECT_EQ(first["status"], 200);
    EXPECT_EQ(first["completion_tokens"], 5);
    EXPECT_EQ(first["prompt_tokens"], 9);
    EXPECT_GT(first["seconds"].get<double>(), 0);
    EXPECT_EQ(first.contains("prompts"), prompts);
    EXPECT_EQ(text.find("a secret") != std::string::npos, prompts);
    EXPECT_EQ(second["status"], 404);
  }
}

}  // namespace
}  // namespace qdelta::testing
