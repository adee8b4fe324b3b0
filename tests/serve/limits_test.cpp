// What the server will not do, what it says then, and that it lives on: bad requests, too many of them, clients that go
// away, keys, and its own end.
#include <future>
#include <memory>
#include <vector>

#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// A completion that would take very long.
json endless() {
  return {{"prompt", "The river"}, {"max_tokens", 1'000'000'000}, {"ignore_eos", true}, {"stream", true}};
}

serve::ServerOptions narrow() {
  serve::ServerOptions options;
  options.engine.max_batch = 1;
  options.engine.max_queue = 1;
  options.limits.max_tokens = 1'000'000'000;
  options.max_memory = std::size_t{1} << 50U;
  return options;
}

void expect_refused(const HttpClient::Result& result, int status, const std::string& says) {
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, status) << result->body;
  const json body = json::parse(result->body);
  EXPECT_NE(body["error"]["message"].get<std::string>().find(says), std::string::npos) << result->body;
}

TEST(Limits, BadRequestsAreToldWhatIsWrong) {
  serve::ServerOptions options;
  options.limits.max_prompt = 8;
  options.limits.max_tokens = 20;
  options.limits.max_request = 12;
  options.max_body = 1000;
  const Serving serving(options);
  const auto post = [&](const json& body) { return serving.post("/v1/completions", body); };
  expect_refused(serving.client().post("/v1/completions", "{nonsense"), 400, "not valid JSON");
  expect_refused(post({{"prompt", {1, 258}}}), 400, "from 0 to 257");
  expect_refused(post({{"prompt", "a"}, {"max_tokens", 21}}), 400, "from 0 to 20");
  expect_refused(post({{"prompt", "eight ch"}}), 400, "9 tokens, and this server takes at most 8");
  expect_refused(post({{"prompt", {"four", "four"}}, {"n", 2}}), 400, "more than 12 tokens");
  expect_refused(post({{"prompt", ""}, {"add_special_tokens", false}}), 400, "empty");
  expect_refused(post({{"prompt", std::string(2000, 'a')}}), 413, "larger than 1000 bytes");
  expect_refused(serving.post("/tokenize", {{"text", "a"}}), 400, "prompt is missing");
  expect_refused(serving.post("/detokenize", {{"tokens", {-1}}}), 400, "token id");
  expect_refused(serving.client().get("/nowhere"), 404, "there is no GET /nowhere");
  expect_refused(serving.post("/v1/chat", json::object()), 404, "there is no POST");
  expect_refused(serving.post("/v1/chat/completions", json::object()), 400, "messages is missing");
  for (const char* method : {"PUT", "GET", "DELETE"}) {
    const auto answer = serving.client().request(method, "/v1/completions", {}, "{}");
    expect_refused(answer, 405, std::string(method) + " is not for /v1/completions: POST is");
    EXPECT_EQ(answer->get_header_value("Allow"), "POST");
  }
  expect_refused(serving.post("/health", json::object()), 405, "POST is not for /health: GET is");
  expect_refused(serving.client().request("DELETE", "/nowhere", {}, ""), 404, "there is no DELETE /nowhere");
  expect_refused(serving.client().get("/v1/models/other"), 404, "no model 'other': this server has 'qdelta'");
  expect_refused(serving.client().post("/v1/completions", "--x", {{"Content-Type", "multipart/form-data; boundary=x"}}),
                 415, "form");
  EXPECT_EQ(post({{"prompt", "seven c"}, {"max_tokens", 20}})->status, 200);
  EXPECT_EQ(serving.metric("qdelta_requests_total{status=\"400\"}"), 9);
  EXPECT_EQ(serving.metric("qdelta_requests_total{status=\"413\"}"), 1);
}

TEST(Limits, WhatIsNoHttpDoesNoHarm) {
  serve::ServerOptions options;
  options.max_body = 1000;
  const Serving serving(options);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  const auto answer_to = [&](const std::string& bytes) {
    RawClient client(serving.port());
    client.send(bytes);
    client.end_sending();
    return client.read_all();
  };
  EXPECT_TRUE(answer_to(std::string("\0\xff\x01 garbage\r\n\r\n", 15)).starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to("GET /health HTTP/9.9\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to("GET /" + std::string(70'000, 'a') + " HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(answer_to(head + "X: " + std::string(70'000, 'a') + "\r\n\r\n").starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(answer_to(head + "Host: y\r\nContent-Length: 2\r\n\r\n{}").starts_with("HTTP/1.1 400"));
  // The form that proxies use.
  for (const char* target : {"http://x/health", "http://x:80/health?a=b"}) {
    const std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target);
    EXPECT_TRUE(answer_to(request).starts_with("HTTP/1.1 200")) << target;
  }
  EXPECT_TRUE(answer_to("GET http://x HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200"));  // the page
  EXPECT_TRUE(answer_to(head + "\r\n").starts_with("HTTP/1.1 411"));
  EXPECT_TRUE(answer_to(head + "Content-Length: 500\r\n\r\n{\"prompt\"").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to(head + "Content-Length: 99999999999\r\n\r\n{}").starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(answer_to(head + "Content-Length: -1\r\n\r\n{}").starts_with("HTTP/1.1 4"));
  EXPECT_TRUE(answer_to(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to(head + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc").starts_with("HTTP/1.1 415"));
  // In chunks no length is said beforehand; the limit holds all the same.
  std::string chunks = head + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 3; ++i) chunks += "190\r\n" + std::string(0x190, ' ') + "\r\n";
  EXPECT_TRUE(answer_to(chunks + "0\r\n\r\n").starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(
      answer_to("POST /nowhere HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab").starts_with("HTTP/1.1 404"));
  EXPECT_EQ(answer_to(""), "");
  EXPECT_TRUE(serving.healthy());
  EXPECT_EQ(serving.text({{"prompt", "a"}, {"temperature", 0}, {"max_tokens", 3}}).size(), 3U);
}

// Connections on which nothing is asked must not keep those who do ask from being heard.
TEST(Limits, IdleConnectionsGiveWay) {
  const Serving serving(narrow());
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 25; ++i) idle.push_back(std::make_unique<RawClient>(serving.port()));
  EXPECT_TRUE(serving.healthy());
}

TEST(Limits, TwoRequestsOnOneConnection) {
  const Serving serving;
  RawClient client(serving.port());
  client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string both = client.read_all();
  EXPECT_NE(both.find("\"status\":\"ok\""), std::string::npos) << both;
  EXPECT_NE(both.find("\"object\":\"list\""), std::string::npos) << both;
}

TEST(Limits, AFullQueueSaysSoAndAClientThatGoesMakesRoom) {
  const Serving serving(narrow());
  RawClient first(serving.port());
  first.post("/v1/completions", endless().dump());
  serving.wait_for("qdelta_running_sequences", 1);
  std::future<std::string> second = std::async(std::launch::async, [&] {
    return serving.text({{"prompt", "a"}, {"temperature", 0}, {"max_tokens", 5}});
  });
  serving.wait_for("qdelta_queue_length", 1);
  const HttpClient::Result third = serving.post("/v1/completions", {{"prompt", "a"}});
  expect_refused(third, 503, "1 requests are waiting");
  EXPECT_EQ(third->get_header_value("Retry-After"), "1");
  EXPECT_EQ(second.wait_for(milliseconds(50)), std::future_status::timeout);
  static_cast<void>(first.read_until("data: "));
  first.close();
  EXPECT_EQ(second.get().size(), 5U);
  EXPECT_EQ(serving.metric("qdelta_abandoned_sequences_total"), 1);
}

// Who waits for an answer in one piece is noticed to have gone as well, in the batch or in the queue.
TEST(Limits, ClientsThatGoBeforeTheAnswer) {
  const Serving serving(narrow());
  json body = endless();
  body["stream"] = false;
  RawClient first(serving.port());
  first.post("/v1/completions", body.dump());
  serving.wait_for("qdelta_running_sequences", 1);
  RawClient second(serving.port());
  second.post("/v1/completions", body.dump());
  serving.wait_for("qdelta_queue_length", 1);
  second.close();
  serving.wait_for("qdelta_queue_length", 0);
  first.close();
  serving.wait_for("qdelta_running_sequences", 0);
  serving.wait_for("qdelta_requests_total{status=\"499\"}", 2);
  EXPECT_EQ(serving.text({{"prompt", "a"}, {"temperature", 0}, {"max_tokens", 5}}).size(), 5U);
}

TEST(Limits, AKeyIsAskedForWhereThereIsOne) {
  serve::ServerOptions options;
  options.api_key = "secret";
  const Serving serving(options);
  EXPECT_TRUE(serving.healthy());
  const std::string body = R"({"prompt": "a", "max_tokens": 2})";
  for (const char* key : {"", "Bearer ", "Bearer wrong", "Bearer secretsecret", "Bearer secre", "secret"}) {
    expect_refused(serving.client().post("/v1/completions", body, {{"Authorization", key}}), 401, "key");
  }
  expect_refused(serving.client().get("/metrics"), 401, "key");
  for (const char* key : {"Bearer secret", "bearer secret"}) {
    EXPECT_EQ(serving.client().post("/v1/completions", body, {{"Authorization", key}})->status, 200) << key;
  }
}

TEST(Limits, AStopLetsWhatRunsComeToItsEnd) {
  serve::ServerOptions options = narrow();
  Serving serving(options);
  std::future<json> running = std::async(std::launch::async, [&] {
    return serving.complete({{"prompt", "The river"}, {"max_tokens", 3000}, {"ignore_eos", true}});
  });
  RawClient idle(serving.port());  // says nothing, and is not waited for
  serving.wait_for("qdelta_running_sequences", 1);
  const auto begin = std::chrono::steady_clock::now();
  serving.server().stop(std::chrono::seconds(60));
  const HttpClient::Result late = serving.post("/v1/completions", {{"prompt", "a"}});
  if (late) expect_refused(late, 503, "stopping");
  EXPECT_EQ(running.get()["usage"]["completion_tokens"], 3000);
  EXPECT_TRUE(serving.stop(milliseconds(0)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  EXPECT_FALSE(serving.healthy());
}

TEST(Limits, AStopCutsOffWhatTakesTooLong) {
  Serving serving(narrow());
  RawClient streaming(serving.port());
  streaming.post("/v1/completions", endless().dump());
  serving.wait_for("qdelta_running_sequences", 1);
  json body = endless();
  body["stream"] = false;
  RawClient waiting(serving.port());
  waiting.post("/v1/completions", body.dump());
  serving.wait_for("qdelta_queue_length", 1);
  std::future<std::string> streamed = std::async(std::launch::async, [&] { return streaming.read_all(); });
  EXPECT_FALSE(serving.stop(milliseconds(100)));
  const std::string got = streamed.get();
  EXPECT_NE(got.find("the server is stopping"), std::string::npos) << got.substr(got.size() - 200);
  EXPECT_EQ(got.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(waiting.read_all().starts_with("HTTP/1.1 503"));
}

TEST(Limits, APortThatIsTaken) {
  const Serving serving;
  serve::ServerOptions options;
  options.port = serving.port();
  ByteTokenizer tokenizer;
  try {
    const serve::Server second(serving.model(), tokenizer, Device{}, options);
    ADD_FAILURE() << "it listens on a port that is taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot listen on 127.0.0.1 port " + std::to_string(serving.port())),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace qdelta::testing
