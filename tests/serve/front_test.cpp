// What clients have done to servers: each of these took one down, blocked it, or made it see a request that was none.
#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "serve/http.h"
#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

const std::string kPost = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
const std::string kBody = R"({"prompt":"a","max_tokens":2,"temperature":0})";

std::string with_length(const std::string& length) { return kPost + "Content-Length: " + length + "\r\n\r\n" + kBody; }

json streaming_on() {
  return {{"prompt", "The river"}, {"max_tokens", 1'000'000}, {"ignore_eos", true}, {"stream", true}};
}

serve::ServerOptions quick() {
  serve::ServerOptions options;
  options.limits.max_tokens = 1'000'000;
  options.max_memory = std::size_t{8} << 30U;
  options.http.head_time = milliseconds(300);
  options.http.body_time = milliseconds(400);
  options.http.write_time = milliseconds(500);
  return options;
}

std::string answer_from(int port, const std::string& bytes) {
  RawClient client(port);
  client.send(bytes);
  return client.read_all();
}

std::string answer_to(const Serving& serving, const std::string& bytes) { return answer_from(serving.port(), bytes); }

long resident_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      long size = 0;
      status >> size;
      return size;
    }
  }
  return 0;
}

// Whatever goes wrong with one connection, where nobody else would catch it: the others do not notice.
TEST(Front, WhatIsThrownEndsOneConnection) {
  serve::Routes routes;
  routes.early = [](const serve::HttpRequest& head) {
    if (head.path == "/head") throw std::bad_alloc();
    return serve::Routes::Early{{.body = "{}"}, false};
  };
  routes.max_body = [](const serve::HttpRequest& /*head*/) { return std::size_t{0}; };
  routes.error = [](int /*status*/, const std::string& why) { return why; };
  routes.ended = [](const serve::HttpRecord& record) {
    if (record.path == "/ended") throw std::bad_alloc();
  };
  serve::HttpServer server({}, routes);
  std::thread thread([&] { server.run(); });
  const HttpClient client(server.port());
  for (const char* path : {"/head", "/ended", "/head", "/ended"}) {
    static_cast<void>(client.get(path));
    const auto good = client.get("/");
    EXPECT_TRUE(good && good->status == 200) << path;
  }
  EXPECT_EQ(server.busy(), 0);
  server.stop();
  thread.join();
}

TEST(Front, ThousandsOfRangesAreNothing) {
  const Serving serving;
  std::string ranges = "bytes=0-";
  for (int i = 1; i < 2700; ++i) ranges += ",0-";
  const auto result = serving.client().get("/health", {{"Range", ranges}});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->body, R"({"status":"ok"})");
}

TEST(Front, AHeadHasAnEnd) {
  serve::ServerOptions options = quick();
  options.api_key = "secret";
  const Serving serving(options);
  const long before = resident_kilobytes();
  // One line of a hundred MiB, and a million lines: the server hangs up long before.
  for (const std::string& line : {std::string(1U << 20U, 'a'), std::string("a: b\r\n")}) {
    RawClient client(serving.port());
    client.send("GET /health HTTP/1.1\r\nX: ");
    std::size_t sent = 0;
    std::string many;
    while (many.size() < 60'000) many += line;
    for (; sent < 100U << 20U && client.send(many); sent += many.size()) {
    }
    EXPECT_LT(sent, 64U << 20U);
  }
  EXPECT_LT(resident_kilobytes() - before, 32 << 10);
  EXPECT_TRUE(answer_to(serving, "GET /health HTTP/1.1\r\nX: " + std::string(70'000, 'a')).starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(serving.healthy());
}

TEST(Front, SlowHeadsAndBodiesAreCutOff) {
  const Serving serving(quick());
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<RawClient>(serving.port()));
    slow.back()->send(i % 2 == 0 ? "GET /hea" : kPost + "Content-Length: 100\r\n\r\n{");
  }
  EXPECT_TRUE(serving.healthy());
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& client : slow) EXPECT_EQ(client->read_all(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
  serving.wait_for("qdelta_requests_total{status=\"408\"}", 100);
  // Who sends a byte now and then gets no more time for it.
  const RawClient dripping(serving.port());
  bool open = dripping.send("G");
  for (int i = 0; open && i < 400; ++i) {
    open = dripping.send("E");
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_FALSE(open);
}

TEST(Front, WhereABodyEndsIsSaidOnceAndPlainly) {
  const Serving serving;
  const std::string length = std::to_string(kBody.size());
  EXPECT_TRUE(answer_to(serving, "POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: " + length +
                                     "\r\n\r\n" + kBody)
                  .starts_with("HTTP/1.1 200"));
  for (const std::string& bad :
       {length + "abc", "+" + length, std::string("-1"), std::string("0x10"), length + ", " + length, std::string(" "),
        std::string("1e3"), std::string("99999999999999999999999")}) {
    const std::string answer = answer_to(serving, with_length(bad));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 4")) << bad << ": " << answer;
    EXPECT_EQ(answer.find("HTTP/1.1 200"), std::string::npos) << bad << ": " << answer;
  }
  const std::string twice = "Content-Length: " + length + "\r\n";
  for (const std::string& head :
       {twice + twice, twice + "Content-Length: 3\r\n", twice + "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\n" + twice, std::string("Transfer-Encoding: gzip, chunked\r\n"),
        std::string("Transfer-Encoding: identity\r\n"),
        std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")}) {
    const std::string answer = answer_to(serving, kPost + head + "\r\n" + kBody);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 501")) << head << answer;
    EXPECT_EQ(answer.find("HTTP/1.1 200"), std::string::npos) << head << answer;
  }
}

TEST(Front, TheBodyOfAGetIsNoRequest) {
  const Serving serving;
  const std::string inner = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string answer =
      answer_to(serving, "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(inner.size()) +
                             "\r\n\r\n" + inner);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  EXPECT_EQ(answer.find("\"object\":\"list\""), std::string::npos) << answer;
}

TEST(Front, KeptConnectionsStayOpen) {
  const Serving serving;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(std::make_unique<RawClient>(serving.port()));
  for (int round = 0; round < 25; ++round) {
    for (const auto& client : clients) client->post("/tokenize", R"({"prompt": "abc"})");
    for (const auto& client : clients) EXPECT_TRUE(client->read_answer().starts_with("HTTP/1.1 200"));
  }
}

TEST(Front, AnnouncedBodiesAreAskedFor) {
  const Serving serving;
  RawClient client(serving.port());
  client.send("POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 17\r\n\r\n");
  EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 100"));
  client.send(R"({"prompt": "abc"})");
  EXPECT_NE(client.read_until("\"tokens\"").find("HTTP/1.1 200"), std::string::npos);
}

TEST(Front, ASlowReaderIsDroppedAndItsSlotFreed) {
  const Serving serving(quick());
  RawClient client(serving.port(), 4096);
  json body = streaming_on();
  body["logprobs"] = 20;
  client.post("/v1/completions", body.dump());
  serving.wait_for("qdelta_running_sequences", 1);
  serving.wait_for("qdelta_running_sequences", 0);  // it reads nothing
  EXPECT_EQ(serving.metric("qdelta_abandoned_sequences_total"), 1);
}

// Answers to any GET on threads of its own, without a model.
class Answering {
 public:
  Answering(const serve::HttpOptions& options,
            std::function<void(const std::shared_ptr<serve::Exchange>& exchange)> handle)
      : server_(options, routes(std::move(handle))), thread_([this] { server_.run(); }) {}
  ~Answering() {
    server_.stop();
    thread_.join();
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  [[nodiscard]] int port() const { return server_.port(); }
  // How many clients had gone, or were dropped, before the answer's end.
  [[nodiscard]] int gone() const { return gone_; }

 private:
  serve::Routes routes(std::function<void(const std::shared_ptr<serve::Exchange>& exchange)> handle) {
    return {
        .early = [](const serve::HttpRequest& /*head*/) { return std::nullopt; },
        .max_body = [](const serve::HttpRequest& /*head*/) { return std::size_t{0}; },
        .handle = [handle = std::move(handle)](const serve::HttpRequest& /*request*/,
                                               const std::shared_ptr<serve::Exchange>& exchange) { handle(exchange); },
        .error = [](int /*status*/, const std::string& why) { return why; },
        .ended = [this](const serve::HttpRecord& record) { gone_ += record.status == 499 ? 1 : 0; }};
  }

  std::atomic<int> gone_{0};
  serve::HttpServer server_;
  std::thread thread_;
};

// Fast enough for each piece, and yet it would hold the answer's memory for long.
TEST(Front, AReaderThatIsSlowAllTheTimeIsDropped) {
  constexpr std::size_t kAnswer = std::size_t{32} << 20U;
  serve::HttpOptions options;
  options.write_time = std::chrono::seconds(20);
  options.slow_time = std::chrono::seconds(2);
  options.piece_time = milliseconds(16);
  const Answering serving(options, [](const std::shared_ptr<serve::Exchange>& exchange) {
    exchange->answer({.body = std::string(kAnswer, 'a')});
  });
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  RawClient slow(serving.port(), 1 << 16);
  slow.send(request);
  for (int i = 0; i < 500 && serving.gone() == 0 && slow.receive(); ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(serving.gone(), 1);
  EXPECT_GT(answer_from(serving.port(), request).size(), kAnswer);  // who is fast gets all of it
}

// It is not the client that is slow where there is nothing for it yet.
TEST(Front, AReaderThatWaitsForMoreIsNotDropped) {
  serve::HttpOptions options;
  options.slow_time = milliseconds(500);
  options.piece_time = milliseconds(1);
  std::thread writing;
  {
    const Answering serving(options, [&](const std::shared_ptr<serve::Exchange>& exchange) {
      const auto left = std::make_shared<std::atomic<int>>(0);
      exchange->stream({}, [left, sent = 0]() mutable {
        serve::Exchange::Piece piece;
        for (; sent < *left; ++sent) piece.data += "token ";
        piece.end = sent == 10;
        return piece;
      });
      writing = std::thread([left, exchange] {
        for (int i = 0; i < 10; ++i) {
          std::this_thread::sleep_for(milliseconds(100));
          ++*left;
          exchange->more();
        }
      });
    });
    const auto answer = HttpClient(serving.port()).get("/");
    EXPECT_TRUE(answer && answer->body.size() == 60);
    EXPECT_EQ(serving.gone(), 0);
  }
  writing.join();
}

// Bytes that nobody has read yet do not hide that the client has gone.
TEST(Front, AClientThatSentMoreIsSeenToGo) {
  const Serving serving(quick());
  for (const bool stream : {true, false}) {
    RawClient client(serving.port());
    json body = streaming_on();
    body["stream"] = stream;
    client.post("/v1/completions", body.dump());
    serving.wait_for("qdelta_running_sequences", 1);
    client.send(std::string(5000, 'x'));
    const auto begin = std::chrono::steady_clock::now();
    client.end_sending();
    serving.wait_for("qdelta_running_sequences", 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  }
}

TEST(Front, HealthIsAnsweredHoweverManyConnectionsThereAre) {
  serve::ServerOptions options = quick();
  options.http.max_connections = 8;
  options.http.head_time = std::chrono::seconds(30);
  options.http.body_time = std::chrono::seconds(30);
  options.engine.max_queue = 64;
  const Serving serving(options);
  {
    std::vector<std::unique_ptr<RawClient>> idle;
    for (int i = 0; i < 50; ++i) {
      idle.push_back(std::make_unique<RawClient>(serving.port()));
      idle.back()->send(i % 2 == 0 ? "" : "GET /");
    }
    EXPECT_TRUE(serving.healthy());
    EXPECT_EQ(serving.text({{"prompt", "a"}, {"temperature", 0}, {"max_tokens", 3}}).size(), 3U);
  }
  // All of them busy: only the urgent gets through, for the others there is a word.
  std::vector<std::unique_ptr<RawClient>> busy;
  for (int i = 0; i < 8; ++i) {
    busy.push_back(std::make_unique<RawClient>(serving.port()));
    busy.back()->post("/v1/completions", streaming_on().dump());
    static_cast<void>(busy.back()->read_until("data: "));
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(serving.healthy());
  EXPECT_GE(serving.metric("qdelta_running_sequences"), 8);
  const auto refused = serving.client().get("/v1/models");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
}

using Senders = std::vector<std::unique_ptr<RawClient>>;

// How many are refused of those whose bodies have no room together: the one that was heard last, whichever it is.
int refused_among(const Senders& sending) {
  int refused = 0;
  for (int i = 0; i < 30 && refused == 0; ++i) {
    for (const auto& client : sending) {
      client->set_patience(1);
      if (client->read_all().starts_with("HTTP/1.1 503")) ++refused;
    }
  }
  return refused;
}

TEST(Front, BodiesOfAllClientsTogetherAreBounded) {
  serve::ServerOptions options = quick();
  options.http.body_time = std::chrono::seconds(30);
  options.max_body = 100'000;
  options.http.max_bodies = 200'000;
  const Serving serving(options);
  Senders sending;
  for (int i = 0; i < 3; ++i) {
    sending.push_back(std::make_unique<RawClient>(serving.port()));
    sending.back()->send(kPost + "Content-Length: 100000\r\n\r\n{");
  }
  EXPECT_EQ(refused_among(sending), 1);
  EXPECT_TRUE(serving.healthy());
  EXPECT_EQ(serving.client().post("/v1/completions", kBody)->status, 200);  // there is room for what is short
  sending.clear();
  // When they have gone there is room again.
  std::string answer = "HTTP/1.1 503";
  for (int i = 0; i < 400 && answer.starts_with("HTTP/1.1 503"); ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    RawClient client(serving.port());
    client.post("/v1/completions", kBody + std::string(100'000 - kBody.size(), ' '));
    answer = client.read_answer();
  }
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
}

serve::ServerOptions with_room_for_two_bodies() {
  serve::ServerOptions options = quick();
  options.http.body_time = std::chrono::seconds(30);
  options.max_body = 300'000;
  options.http.max_bodies = 600'000;
  return options;
}

const std::string kChunked = "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
const std::string kText = R"({"prompt": "abc"})";

std::string chunk(const std::string& data) { return fmt::format("{:x}\r\n{}\r\n", data.size(), data); }

// All but its end.
std::string large_in_chunks() {
  std::string all = kChunked + chunk(kText);
  for (int i = 0; i < 28; ++i) all += chunk(std::string(10'000, ' '));
  return all;
}

// Nobody knows how large they will be: they count as they arrive, and who announces one and sends nothing keeps nobody
// from being heard.
TEST(Front, BodiesInChunksThatDoNotComeKeepNobodyOut) {
  const Serving serving(with_room_for_two_bodies());
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 10; ++i) {
    silent.push_back(std::make_unique<RawClient>(serving.port()));
    silent.back()->send(kChunked + chunk(kText));
  }
  RawClient announced(serving.port());
  announced.post("/tokenize", kText + std::string(280'000, ' '));
  EXPECT_TRUE(announced.read_answer().starts_with("HTTP/1.1 200"));
  RawClient in_chunks(serving.port());
  in_chunks.send(large_in_chunks() + "0\r\n\r\n");
  EXPECT_TRUE(in_chunks.read_answer().starts_with("HTTP/1.1 200"));
}

TEST(Front, BodiesInChunksAreBoundedTogether) {
  const Serving serving(with_room_for_two_bodies());
  Senders sending;
  for (int i = 0; i < 3; ++i) {
    sending.push_back(std::make_unique<RawClient>(serving.port()));
    sending.back()->send(large_in_chunks());
  }
  EXPECT_EQ(refused_among(sending), 1);
  EXPECT_TRUE(serving.healthy());
  sending.clear();
  // When they have gone there is room again.
  std::string answer = "HTTP/1.1 503";
  for (int i = 0; i < 400 && answer.starts_with("HTTP/1.1 503"); ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    RawClient client(serving.port());
    client.send(large_in_chunks() + "0\r\n\r\n");
    answer = client.read_answer();
  }
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
}

// Memory is counted before anything is generated.
TEST(Front, WhatARequestMayTakeIsCounted) {
  serve::ServerOptions options = quick();
  options.max_memory = std::size_t{1} << 20U;
  const Serving serving(options);
  const auto refused = serving.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 500'000}});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_NE(refused->body.find("memory"), std::string::npos);
  RawClient first(serving.port());
  first.post("/v1/completions",
             json{{"prompt", "a"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"n", 1}, {"stream", true}}.dump());
  static_cast<void>(first.read_until("data: "));
  const auto second = serving.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 5000}});
  ASSERT_TRUE(second);
  if (second->status != 200) {
    EXPECT_EQ(second->status, 503);
    EXPECT_EQ(second->get_header_value("Retry-After"), "1");
  }
  static_cast<void>(first.read_until("[DONE]"));
  first.close();
  HttpClient::Result third;
  for (int i = 0; i < 400 && (!third || third->status == 503); ++i) {
    third = serving.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3000}, {"temperature", 0}});
  }
  EXPECT_EQ(third->status, 200) << third->body;
}

// Long prompts with the scores of all their tokens are counted as well, and written out a part at a time.
TEST(Front, ScoredPromptsAreCounted) {
  serve::ServerOptions options = quick();
  options.max_memory = std::size_t{16} << 20U;
  const Serving serving(options);
  const auto scored = [](std::size_t tokens) {
    return json{{"prompt", std::vector<std::vector<int>>(8, std::vector<int>(tokens, 'a'))},
                {"max_tokens", 0},
                {"echo", true},
                {"logprobs", 20}};
  };
  const auto refused = serving.post("/v1/completions", scored(32'768));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_NE(refused->body.find("memory"), std::string::npos) << refused->body;
  EXPECT_EQ(serving.metric("qdelta_prompt_tokens_total"), 0);  // nothing was read for it
  const long before = resident_kilobytes();
  RawClient client(serving.port(), 4096);
  client.post("/v1/completions", scored(2048).dump());
  static_cast<void>(client.read_until("HTTP/1.1 200"));  // all has been generated, and little of it is written
  EXPECT_LT(resident_kilobytes() - before, 48 << 10);
}

// Stop strings, and texts that are few tokens and come back for each of many samples.
TEST(Front, WhatStandsBesideTheTokensIsCounted) {
  serve::ServerOptions options = quick();
  options.max_memory = std::size_t{4} << 20U;
  const Serving serving(options, "q_delta", word_tokenizer({{"[UNK]", 0}, {"the", 1}}));
  json stops = json::array();
  for (int i = 0; i < 64; ++i)
    stops.push_back(std::string(1 + static_cast<std::size_t>(i), '.') + std::string(900, 'a'));
  for (json body : {json{{"stop", stops}}, json{{"echo", true}, {"n", 50}}}) {
    body["prompt"] = std::string(100'000, 'x');  // one token, which is not known
    body["max_tokens"] = 1;
    const auto refused = serving.post("/v1/completions", body);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 400) << refused->body;
    EXPECT_NE(refused->body.find("memory"), std::string::npos) << refused->body;
  }
  EXPECT_EQ(serving.post("/v1/completions", {{"prompt", "the"}, {"max_tokens", 1}, {"n", 50}})->status, 200);
}

// The tokens of a long text are as much again, for as long as nobody reads them.
TEST(Front, TokensThatNobodyReadsAreCounted) {
  serve::ServerOptions options = quick();
  options.http.write_time = std::chrono::seconds(30);
  options.max_memory = std::size_t{70} << 20U;
  const Serving serving(options);
  const std::string body = json{{"prompt", std::string(4'000'000, 'a')}}.dump();
  RawClient first(serving.port(), 4096);
  first.post("/tokenize", body);
  static_cast<void>(first.read_until("HTTP/1.1 200"));
  const auto second = serving.client().post("/tokenize", body);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->status, 503);
  EXPECT_EQ(second->get_header_value("Retry-After"), "1");
  EXPECT_GT(first.read_answer().size(), 12'000'000U);
  EXPECT_EQ(serving.client().post("/tokenize", body)->status, 200);
  const json tokens = {{"tokens", std::vector<int>(1'600'000, 256)}};  // eight million characters
  const auto refused = serving.post("/detokenize", tokens);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_NE(refused->body.find("memory"), std::string::npos) << refused->body;
}

// A stream is no larger as text than the same answer in one piece: a prompt's scores are not written out all at once.
TEST(Front, StreamsAreWrittenAPieceAtATime) {
  const Serving serving(quick());
  const json body = {{"prompt", std::vector<std::vector<int>>(2, std::vector<int>(4096, 'a'))},
                     {"max_tokens", 1},
                     {"echo", true},
                     {"logprobs", 20},
                     {"seed", 1}};
  json streamed = body;
  streamed["stream"] = true;
  RawClient client(serving.port());
  client.post("/v1/completions", streamed.dump());
  const std::string answer = client.read_answer();
  std::string events;
  std::size_t largest = 0;
  for (std::size_t at = answer.find("\r\n\r\n") + 4, size = 1; size > 0; at += size + 2) {
    size = std::stoul(answer.substr(at, 16), nullptr, 16);
    at = answer.find("\r\n", at) + 2;
    events += answer.substr(at, size);
    largest = std::max(largest, size);
  }
  EXPECT_GT(events.size(), std::size_t{4} << 20U);
  EXPECT_LT(largest, std::size_t{1} << 20U);
  const json whole = serving.complete(body);
  const Events all(events);
  EXPECT_TRUE(all.done);
  for (const json& choice : whole["choices"]) {
    std::string text;
    json top = json::array();
    for (const json& event : all.data) {
      const json& piece = event["choices"][0];
      if (piece["index"] != choice["index"]) continue;
      text += piece["text"].get<std::string>();
      for (const json& one : piece["logprobs"]["top_logprobs"]) top.push_back(one);
    }
    EXPECT_EQ(text, choice["text"]);
    EXPECT_TRUE(top == choice["logprobs"]["top_logprobs"]);
  }
}

// 64 strings that nearly match over and over: the time does not grow with them.
TEST(Front, StopStringsThatNearlyMatchCostNothing) {
  serve::ServerOptions options = quick();
  const Serving serving(options);
  json stops = json::array();
  for (int i = 0; i < 64; ++i) stops.push_back(std::string(static_cast<std::size_t>(400 + i), 'a') + "!");
  const json body = {
      {"prompt", "The river"}, {"max_tokens", 500}, {"stop", stops}, {"n", 15}, {"logit_bias", {{"97", 100}}}};
  const json answer = serving.complete(body);
  ASSERT_EQ(answer["choices"].size(), 15U);
  for (const json& choice : answer["choices"]) EXPECT_EQ(choice["text"], std::string(500, 'a'));
  stops.push_back("one more");
  EXPECT_EQ(serving.post("/v1/completions", {{"prompt", "a"}, {"stop", stops}})->status, 400);
  EXPECT_EQ(serving.post("/v1/completions", {{"prompt", "a"}, {"stop", std::string(3000, 'a')}})->status, 400);
}

}  // namespace
}  // namespace qdelta::testing
