// States with names: kept, continued, forked, sent and fetched over HTTP, the same files as `qdelta generate` has.
#include <limits>

#include "files.h"
#include "infer/state_file.h"
#include "serve/named_states.h"
#include "serving_case.h"

namespace qdelta::testing {
namespace {

using nlohmann::json;

std::string long_text(std::size_t size) {
  std::string text(size, 'a');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (i * i + i / 7) % 26);
  return text;
}

json greedily(const json& more) {
  json body{{"max_tokens", 12}, {"temperature", 0}, {"logprobs", 3}, {"ignore_eos", true}};
  body.update(more);
  return body;
}

// A folder for states, and what is asked of a server about them.
class StatesCase {
 protected:
  [[nodiscard]] serve::ServerOptions options() const {
    serve::ServerOptions options;
    options.states.folder = folder_.file("states");
    return options;
  }
  // The answer of a request that must succeed.
  static json ask(const Serving& serving, const std::string& method, const std::string& path,
                  const std::string& body = "") {
    const HttpClient::Result result = serving.client().request(method, path, {}, body);
    if (!result) throw std::runtime_error("no answer");
    EXPECT_EQ(result->status, 200) << method << " " << path << ": " << result->body;
    return json::parse(result->body);
  }
  static json keep(const Serving& serving, const json& body) { return ask(serving, "POST", "/v1/states", body.dump()); }
  static std::vector<std::string> names(const Serving& serving) {
    std::vector<std::string> found;
    const json all = ask(serving, "GET", "/v1/states");
    for (const json& state : all["data"]) found.push_back(state["name"]);
    return found;
  }
  [[nodiscard]] std::string file_of(const std::string& name) const { return folder_.file("states/" + name + ".state"); }

  TemporaryFolder folder_;
};
class States : public StatesCase, public ::testing::Test {};
class StatesOfAllMixers : public StatesCase, public ::testing::TestWithParam<std::string_view> {};

void expect_refused(const HttpClient::Result& result, int status, const std::string& says) {
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, status) << result->body;
  EXPECT_NE(json::parse(result->body)["error"]["message"].get<std::string>().find(says), std::string::npos)
      << result->body;
}

// With the begin-of-text token the state has read 256 tokens, and one is pending: it is cut on the grid, and the bits
// are those of one request.
TEST_P(StatesOfAllMixers, ATextGoesOnAsIfItHadNeverStopped) {
  const Serving serving(options(), GetParam());
  const std::string text = long_text(600);
  const json whole = serving.complete(greedily({{"prompt", text}}))["choices"][0];
  const json info = keep(serving, {{"name", "book"}, {"prompt", text.substr(0, 256)}});
  EXPECT_EQ(info["tokens"], 257);
  EXPECT_EQ(info["name"], "book");
  const json rest = serving.complete(greedily({{"state", "book"}, {"prompt", text.substr(256)}}));
  EXPECT_EQ(rest["choices"][0]["text"], whole["text"]);
  EXPECT_EQ(rest["choices"][0]["logprobs"]["token_logprobs"], whole["logprobs"]["token_logprobs"]);
  EXPECT_EQ(rest["usage"]["prompt_tokens"], 600 - 256);
  // And again after a restart, in two steps, the second behind the first: the state is a file.
  EXPECT_EQ(keep(serving, {{"name", "more"}, {"from", "book"}, {"prompt", text.substr(256, 256)}})["tokens"], 513);
  const Serving again(options(), GetParam());
  EXPECT_EQ(names(again), (std::vector<std::string>{"book", "more"}));
  const json last = again.complete(greedily({{"state", "more"}, {"prompt", text.substr(512)}}))["choices"][0];
  EXPECT_EQ(last["text"], whole["text"]);
  EXPECT_EQ(last["logprobs"]["token_logprobs"], whole["logprobs"]["token_logprobs"]);
}

INSTANTIATE_TEST_SUITE_P(Mixers, StatesOfAllMixers, ::testing::Values("q_delta", "mamba"));

// What `generate --load-state` does: the same text from a file of the server, and the other way round.
TEST_F(States, FilesAreThoseOfGenerate) {
  const Serving serving(options());
  const ByteTokenizer tokenizer;
  keep(serving, {{"name", "begun"}, {"prompt", "The river was"}});
  ModelStates states(serving.model().config(), 1);
  const SavedState info = load_state(file_of("begun"), serving.model(), states, 0);
  EXPECT_EQ(info.tokens, 13);
  EXPECT_EQ(info.pending, 's');
  Generator generator(serving.model(), tokenizer, states);
  GenerationOptions ten = greedy(10);
  ten.stop_at_eos = false;
  const Generated expected = generator.generate({{'s', ' ', 'w'}}, ten, {0})[0];
  EXPECT_EQ(serving.text(
                {{"state", "begun"}, {"prompt", " w"}, {"temperature", 0}, {"max_tokens", 10}, {"ignore_eos", true}}),
            expected.text);
  // The state that the generator has left, by another name.
  std::vector<std::int32_t> read{'s', ' ', 'w'};
  read.insert(read.end(), expected.tokens.begin(), expected.tokens.end() - 1);
  save_state(file_of("theirs"), serving.model(), states, 0,
             {.tokens = info.tokens + static_cast<std::int64_t>(read.size()),
              .token_hash = hash_tokens(info.token_hash, read),
              .pending = expected.tokens.back()});
  const Generated more = generator.generate({{expected.tokens.back()}}, ten, {0})[0];
  EXPECT_EQ(serving.text({{"state", "theirs"}, {"temperature", 0}, {"max_tokens", 10}, {"ignore_eos", true}}),
            more.text);
}

// Kept at the end of an answer: streamed or not, and where a stop string has cut it.
TEST_F(States, AnAnswerLeavesItsState) {
  const Serving serving(options());
  const std::string text = "The river";
  const json long_one = {{"prompt", text}, {"temperature", 0}, {"max_tokens", 30}, {"ignore_eos", true}};
  const std::string all = serving.text(long_one);
  json body = long_one;
  body["max_tokens"] = 10;
  body["save_state"] = "ten";
  const json answer = serving.complete(body);
  EXPECT_EQ(answer["choices"][0]["text"], all.substr(0, 10));
  EXPECT_EQ(answer["state"]["name"], "ten");
  EXPECT_EQ(answer["state"]["tokens"], 20);  // with the begin-of-text token
  const json rest = {{"state", "ten"}, {"temperature", 0}, {"max_tokens", 20}, {"ignore_eos", true}};
  EXPECT_EQ(serving.text(rest), all.substr(10));
  body["stream"] = true;
  body["save_state"] = "streamed";
  const Events events(serving.post("/v1/completions", body)->body);
  EXPECT_TRUE(events.done);
  EXPECT_EQ(events.data.back()["state"]["tokens"], 20);
  EXPECT_EQ(read_file(file_of("streamed")), read_file(file_of("ten")));
  // The same tokens, but a stop string ends them: the state is that of the token that completed it, whatever was
  // generated until somebody noticed.
  body = long_one;
  body["max_tokens"] = 4000;
  body["stop"] = all.substr(6, 4);
  body["save_state"] = "stopped";
  const std::size_t found = all.find(all.substr(6, 4));
  const json stopped = serving.complete(body);
  EXPECT_EQ(stopped["choices"][0]["text"], all.substr(0, found));
  EXPECT_EQ(stopped["state"]["tokens"], 10 + found + 4);
  json goes_on = rest;
  goes_on["state"] = "stopped";
  goes_on["max_tokens"] = 26 - found;
  EXPECT_EQ(serving.text(goes_on), all.substr(found + 4));
}

TEST_F(States, ForksGoTheirOwnWays) {
  const Serving serving(options());
  keep(serving, {{"name", "trunk"}, {"prompt", "The river was"}});
  EXPECT_EQ(keep(serving, {{"name", "left"}, {"from", "trunk"}})["tokens"], 14);
  EXPECT_EQ(read_file(file_of("left")), read_file(file_of("trunk")));
  const json go = {{"temperature", 0}, {"max_tokens", 8}, {"ignore_eos", true}};
  const auto from = [&](const std::string& name, const std::string& prompt, const std::string& save = "") {
    json body = go;
    body["state"] = name;
    if (!prompt.empty()) body["prompt"] = prompt;
    if (!save.empty()) body["save_state"] = save;
    return serving.text(body);
  };
  const std::string trunk = from("trunk", "");
  const std::string left = from("left", " wide", "left");  // replaced by what it becomes
  EXPECT_EQ(from("trunk", " wide"), left);
  EXPECT_EQ(from("trunk", ""), trunk);
  EXPECT_EQ(ask(serving, "GET", "/v1/states/left")["tokens"], 14 + 5 + 8);
  // Several prompts, several samples, all from one state.
  json body = go;
  body.update({{"state", "trunk"}, {"prompt", {" wide", " deep"}}, {"n", 2}});
  const json choices = serving.complete(body)["choices"];
  EXPECT_EQ(choices[0]["text"], left);
  EXPECT_EQ(choices[1]["text"], left);
  EXPECT_EQ(choices[2]["text"], from("trunk", " deep"));
  EXPECT_EQ(ask(serving, "DELETE", "/v1/states/trunk")["deleted"], true);
  EXPECT_EQ(names(serving), std::vector<std::string>{"left"});
  expect_refused(serving.post("/v1/completions", body), 404, "there is no state 'trunk'");
  expect_refused(serving.client().request("DELETE", "/v1/states/trunk", {}, ""), 404, "there is no state 'trunk'");
}

// What is echoed and scored behind a state is what the client sent; the first token has a score there.
TEST_F(States, PromptsBehindAStateAreScored) {
  const Serving serving(options());
  keep(serving, {{"name", "begun"}, {"prompt", "The river was"}});
  const json whole = serving.complete(
      {{"prompt", "The river was wide"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}})["choices"][0];
  const json rest = serving.complete(
      {{"state", "begun"}, {"prompt", " wide"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}})["choices"][0];
  EXPECT_EQ(rest["text"], " wide");
  const json scores = whole["logprobs"]["token_logprobs"];
  const json got = rest["logprobs"]["token_logprobs"];
  ASSERT_EQ(got.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(got[i].get<double>(), scores[scores.size() - 5 + i].get<double>(), 1e-4) << i;
  }
  EXPECT_EQ(rest["logprobs"]["text_offset"], (json{0, 1, 2, 3, 4}));
}

TEST_F(States, AChatGoesOnWithItsNewMessages) {
  const Serving serving(options());
  const auto chat = [&](const json& messages, const json& more) {
    json body{{"messages", messages}, {"temperature", 0}, {"max_tokens", 8}, {"ignore_eos", true}};
    body.update(more);
    const HttpClient::Result result = serving.post("/v1/chat/completions", body);
    EXPECT_EQ(result->status, 200) << result->body;
    return json::parse(result->body)["choices"][0]["message"]["content"].get<std::string>();
  };
  const json first{{"role", "user"}, {"content", "Who is there?"}};
  const json second{{"role", "user"}, {"content", "And who else?"}};
  const std::string answer = chat(json::array({first}), {{"save_state", "talk"}});
  const std::string next = chat(json::array({second}), {{"state", "talk"}});
  // The template of these tests puts nothing behind an answer but the next message.
  EXPECT_EQ(next, serving.text({{"state", "talk"},
                                {"prompt", "[user]And who else?[assistant]"},
                                {"temperature", 0},
                                {"max_tokens", 8},
                                {"ignore_eos", true}}));
}

TEST_F(States, FilesAreSentAndFetched) {
  const Serving serving(options());
  keep(serving, {{"name", "book"}, {"prompt", "The river was"}});
  const auto file = serving.client().get("/v1/states/book/file");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->get_header_value("Content-Type"), "application/octet-stream");
  EXPECT_EQ(file->body, read_file(file_of("book")));
  EXPECT_EQ(serving.client().get("/v1/states/book", {{"Accept", "application/octet-stream"}})->body, file->body);
  EXPECT_EQ(ask(serving, "PUT", "/v1/states/copy", file->body)["tokens"], 14);
  EXPECT_EQ(read_file(file_of("copy")), file->body);

  const auto put = [&](const std::string& bytes) {
    return serving.client().request("PUT", "/v1/states/bad", {}, bytes);
  };
  std::string damaged = file->body;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
  expect_refused(put(damaged), 400, "the upload is damaged");
  for (std::size_t size = 0; size < file->body.size(); size += 1 + file->body.size() / 40) {
    const auto result = put(file->body.substr(0, size));
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 400) << size << result->body;
  }
  expect_refused(put(std::string(ModelStates(serving.model().config(), 1).bytes() + (3U << 20U), 'a')), 413, "larger");
  // Of other weights, and of one that has something that is no number.
  const auto other = speaking_model(speaking_config(), 2);
  ModelStates states(other->config(), 1);
  save_state(folder_.file("other"), *other, states, 0, {.tokens = 3, .token_hash = 7, .pending = 5});
  expect_refused(put(read_file(folder_.file("other"))), 400, "another model");
  *reinterpret_cast<float*>(states.slot_of(0, 0).data) = std::numeric_limits<float>::quiet_NaN();
  save_state(folder_.file("nan"), serving.model(), states, 0, {.tokens = 3, .token_hash = 7, .pending = 5});
  expect_refused(put(read_file(folder_.file("nan"))), 400, "not finite");
  EXPECT_EQ(names(serving), (std::vector<std::string>{"book", "copy"}));
  // Files that somebody has put there are shown for what they are, and refused like those.
  save_state(file_of("strange"), *other, states, 0, {.tokens = 3, .token_hash = 7, .pending = 5});
  const json strange = ask(serving, "GET", "/v1/states/strange");
  EXPECT_NE(strange["error"].get<std::string>().find("another model"), std::string::npos) << strange;
  EXPECT_EQ(strange.dump().find(folder_.path()), std::string::npos) << "where files lie is nobody's business";
  const auto refused = serving.post("/v1/completions", {{"state", "strange"}, {"prompt", "a"}});
  expect_refused(refused, 400, "state 'strange' is a state of another model");
}

TEST_F(States, NamesStayInTheFolder) {
  const Serving serving(options());
  keep(serving, {{"name", std::string(64, 'a')}, {"prompt", "a"}});
  keep(serving, {{"name", "A-1_b.c"}, {"prompt", "a"}});
  write_file(folder_.file("outside.state"), "not to be touched");
  for (const std::string& name :
       {std::string("../outside"), std::string(".."), std::string("."), std::string(".hidden"), std::string("a/b"),
        std::string("/etc/passwd"), std::string("a b"), std::string("a\0b", 3), std::string("%2e%2e"),
        std::string("\xc3\xa4"), std::string(65, 'a'), std::string("a\n"), std::string("~root")}) {
    const std::string says = "the name of a state";
    expect_refused(serving.post("/v1/states", {{"name", name}, {"prompt", "a"}}), 400, says);
    expect_refused(serving.post("/v1/states", {{"name", "x"}, {"from", name}}), 400, says);
    expect_refused(serving.post("/v1/completions", {{"state", name}, {"prompt", "a"}}), 400, says);
    expect_refused(serving.post("/v1/completions", {{"save_state", name}, {"prompt", "a"}}), 400, says);
  }
  for (const char* path : {"/v1/states/../outside", "/v1/states/..", "/v1/states/%2e%2e%2foutside", "/v1/states/",
                           "/v1/states//file", "/v1/states/.x"}) {
    for (const char* method : {"GET", "DELETE", "PUT"}) {
      expect_refused(serving.client().request(method, path, {}, ""), 400, "the name of a state");
    }
  }
  // Nor does a link lead out.
  std::filesystem::create_symlink(folder_.file("outside.state"), file_of("link"));
  expect_refused(serving.client().get("/v1/states/link"), 404, "there is no state 'link'");
  expect_refused(serving.client().get("/v1/states/link/file"), 404, "there is no state 'link'");
  EXPECT_EQ(names(serving).size(), 2U);
  EXPECT_EQ(read_file(folder_.file("outside.state")), "not to be touched");
}

TEST_F(States, WhatIsAskedWrongly) {
  const Serving serving(options());
  expect_refused(serving.post("/v1/states", {{"prompt", "a"}}), 400, "name is missing");
  expect_refused(serving.post("/v1/states", {{"name", "a"}}), 400, "neither a prompt");
  expect_refused(serving.post("/v1/states", {{"name", 5}, {"prompt", "a"}}), 400, "must be the name of a state");
  expect_refused(serving.post("/v1/states", {{"name", "a"}, {"prompt", {"a", "b"}}}), 400, "2 prompts");
  expect_refused(serving.post("/v1/states", {{"name", "a"}, {"from", "none"}}), 404, "there is no state 'none'");
  const auto posted = serving.post("/v1/states/a", {{"prompt", "a"}});
  expect_refused(posted, 405, "POST is not for /v1/states/a: GET, PUT, DELETE are");
  EXPECT_EQ(posted->get_header_value("Allow"), "GET, PUT, DELETE");
  const auto deleted = serving.client().request("DELETE", "/v1/states", {}, "");
  expect_refused(deleted, 405, "DELETE is not for /v1/states: GET, POST are");
  EXPECT_EQ(deleted->get_header_value("Allow"), "GET, POST");
  // What would leave another state than its prompt does.
  expect_refused(serving.post("/v1/states", {{"name", "a"}, {"prompt", "a"}, {"truncate_prompt_tokens", 5}}), 400,
                 "not supported");
  const json messages = {{{"role", "user"}, {"content", "a"}}};
  expect_refused(serving.post("/v1/states", {{"name", "a"}, {"prompt", "a"}, {"messages", messages}}), 400,
                 "not supported");
  expect_refused(serving.client().request("PUT", "/v1/completions", {}, "{}"), 405, "PUT");
  expect_refused(serving.post("/v1/completions", {{"prompt", "a"}, {"n", 2}, {"save_state", "a"}}), 400,
                 "save_state keeps one state");
  EXPECT_TRUE(names(serving).empty());

  const Serving without;
  expect_refused(without.client().get("/v1/states"), 404, "without --states");
  expect_refused(without.post("/v1/states", {{"name", "a"}, {"prompt", "a"}}), 404, "without --states");
  expect_refused(without.post("/v1/completions", {{"prompt", "a"}, {"state", "a"}}), 400, "without --states");
  expect_refused(without.post("/v1/completions", {{"prompt", "a"}, {"save_state", "a"}}), 400, "without --states");
}

// Its body is read, not taken for the next request.
TEST_F(States, TheBodyOfAGetIsNoRequest) {
  const Serving serving(options());
  RawClient client(serving.port());
  const std::string inner = "DELETE /v1/states/a HTTP/1.1\r\nHost: x\r\n\r\n";
  keep(serving, {{"name", "a"}, {"prompt", "a"}});
  client.send("GET /v1/states HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(inner.size()) + "\r\n\r\n" +
              inner);
  EXPECT_TRUE(client.read_answer().starts_with("HTTP/1.1 200"));
  client.send("GET /v1/states/a HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.read_answer().find("\"tokens\":2"), std::string::npos);
}

TEST_F(States, NumberAndBytesAreBounded) {
  serve::ServerOptions few = options();
  few.states.most = 2;
  {
    const Serving serving(few);
    keep(serving, {{"name", "one"}, {"prompt", "a"}});
    keep(serving, {{"name", "two"}, {"prompt", "a"}});
    keep(serving, {{"name", "two"}, {"prompt", "b"}});  // replaced: no more than before
    const auto upload = read_file(file_of("one"));
    expect_refused(serving.post("/v1/states", {{"name", "three"}, {"prompt", "a"}}), 507, "there are 2 states");
    expect_refused(serving.post("/v1/states", {{"name", "three"}, {"from", "one"}}), 507, "delete one");
    expect_refused(serving.client().request("PUT", "/v1/states/three", {}, upload), 507, "delete one");
    expect_refused(serving.post("/v1/completions", {{"prompt", "a"}, {"save_state", "three"}}), 507, "delete one");
    ask(serving, "DELETE", "/v1/states/one");
    EXPECT_EQ(ask(serving, "PUT", "/v1/states/three", upload)["name"], "three");
  }
  few.states.most = 100;
  few.states.disk = 3 * std::filesystem::file_size(file_of("two"));
  const Serving serving(few);
  expect_refused(serving.post("/v1/states", {{"name", "four"}, {"prompt", "a"}}), 507, "bytes");
  ask(serving, "DELETE", "/v1/states/three");
  EXPECT_EQ(serving.text({{"prompt", "a"}, {"save_state", "four"}, {"temperature", 0}, {"max_tokens", 3}}).size(), 3U);
  EXPECT_EQ(names(serving), (std::vector<std::string>{"four", "two"}));
}

// No waiting helps where a state is larger than all the memory that requests may have.
TEST_F(States, OneThatMemoryHasNoRoomForIsRefused) {
  std::string upload;
  {
    const Serving serving(options());
    keep(serving, {{"name", "one"}, {"prompt", "a"}});
    upload = read_file(file_of("one"));
  }
  serve::ServerOptions small = options();
  small.max_memory = 1000;
  const Serving serving(small);
  const std::string says = "and this server has 1000 for requests";
  expect_refused(serving.post("/v1/states", {{"name", "two"}, {"from", "one"}}), 400, says);
  expect_refused(serving.client().request("PUT", "/v1/states/two", {}, upload), 400, says);
  EXPECT_EQ(names(serving), std::vector<std::string>{"one"});
}

// A disk that cannot be written: the client hears of it, and what was there stays.
TEST_F(States, AStateThatCannotBeWritten) {
  const Serving serving(options());
  keep(serving, {{"name", "old"}, {"prompt", "a"}});
  std::filesystem::create_directory(file_of("folder"));  // where a file should be
  expect_refused(serving.post("/v1/states", {{"name", "folder"}, {"prompt", "a"}}), 507, "state 'folder'");
  json body{{"prompt", "a"}, {"save_state", "folder"}, {"max_tokens", 3}, {"temperature", 0}};
  expect_refused(serving.post("/v1/completions", body), 507, "state 'folder'");
  body["stream"] = true;
  const std::string stream = serving.post("/v1/completions", body)->body;
  EXPECT_NE(stream.find("\"error\""), std::string::npos) << stream;
  EXPECT_EQ(stream.find("[DONE]"), std::string::npos) << stream;
  EXPECT_EQ(names(serving), std::vector<std::string>{"old"});
  EXPECT_EQ(serving.text({{"state", "old"}, {"temperature", 0}, {"max_tokens", 3}}).size(), 3U);
}

}  // namespace
}  // namespace qdelta::testing
