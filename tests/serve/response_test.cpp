// Answers as clients read them: the fields, the scores, and the same text in one piece and in many.
#include "serve/response.h"

#include <gtest/gtest.h>

#include "data/byte_tokenizer.h"

namespace qdelta::serve {
namespace {

using nlohmann::json;

class Answers : public ::testing::Test {
 protected:
  Answers() {
    request_.prompts = {"ab"};
    sequence_.prompt = {256, 'a', 'b'};
  }
  [[nodiscard]] Answer answer() const {
    std::vector<SequenceRequest> sequences(static_cast<std::size_t>(request_.sequences()), sequence_);
    for (SequenceRequest& sequence : sequences) sequence.stops = std::make_shared<StopStrings>(request_.stop);
    return {tokenizer_, token_text_, request_, sequences, {"cmpl-1", 17, "m"}};
  }
  static std::vector<json> data_of(const std::string& events) {
    std::vector<json> all;
    for (std::size_t at = 0; at < events.size();) {
      const std::size_t end = events.find("\n\n", at);
      EXPECT_EQ(events.substr(at, 6), "data: ");
      all.push_back(json::parse(events.substr(at + 6, end - at - 6)));
      at = end + 2;
    }
    return all;
  }

  ByteTokenizer tokenizer_;
  TokenText token_text_{tokenizer_};
  CompletionRequest request_;
  SequenceRequest sequence_;
};

TEST_F(Answers, InOnePiece) {
  Answer some = answer();
  some.add({{{}, {{'c', {}, {}}}, EndReason::none}, 0});
  some.add({{{}, {{'d', {}, {}}}, EndReason::length}, 0});
  const json whole = json::parse(some.whole());
  EXPECT_EQ(whole, json::parse(R"({"id": "cmpl-1", "object": "text_completion", "created": 17, "model": "m",
      "choices": [{"index": 0, "text": "cd", "logprobs": null, "finish_reason": "length"}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 0}}})"));
}

TEST_F(Answers, TheScoresOfAPromptAndOfWhatFollows) {
  request_.echo = true;
  request_.logprobs = 2;
  Answer some = answer();
  some.add({{{{256, std::nullopt, {}},
              {'a', -0.1F, {{'a', -0.1F}, {'z', -3.5F}}},
              {'b', -7.0F, {{'a', -0.2F}, {'z', -3.0F}}}},
             {},
             EndReason::none},
            0});
  some.add({{{}, {{257, -0.3F, {{257, -0.3F}, {0xe2, -2.0F}}, true}}, EndReason::eos}, 0});
  const json choice = json::parse(some.whole())["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["finish_reason"], "stop");
  const json& scores = choice["logprobs"];
  EXPECT_EQ(scores["tokens"], json::parse(R"(["<bos>", "a", "b", "<eos>"])"));
  EXPECT_EQ(scores["text_offset"], json::parse("[0, 0, 1, 2]"));
  EXPECT_EQ(scores["token_logprobs"], (json{nullptr, -0.1F, -7.0F, -0.3F}));
  EXPECT_EQ(scores["top_logprobs"][0], nullptr);
  EXPECT_EQ(scores["top_logprobs"][1], (json{{"a", -0.1F}, {"z", -3.5F}}));
  // The token itself stands among the others even where it is not one of the most likely.
  EXPECT_EQ(scores["top_logprobs"][2], (json{{"a", -0.2F}, {"z", -3.0F}, {"b", -7.0F}}));
  EXPECT_EQ(scores["top_logprobs"][3], (json{{"<eos>", -0.3F}, {"bytes:\\xe2", -2.0F}}));
}

// The harness takes a token for the greedy one where its number equals the largest.
TEST_F(Answers, TheMostLikelyTokenHasTheSameNumberInBothPlacesAsText) {
  request_.logprobs = 1;
  Answer some = answer();
  const float value = -0.123456789F;
  some.add({{{}, {{'c', value, {{'c', value}}}}, EndReason::length}, 0});
  const std::string whole = some.whole();
  const std::string number = json(value).dump();
  EXPECT_NE(whole.find("\"token_logprobs\":[" + number + "]"), std::string::npos) << whole;
  EXPECT_NE(whole.find("{\"c\":" + number + "}"), std::string::npos) << whole;
}

TEST_F(Answers, AStreamSaysTheSame) {
  request_.prompts = {"ab", "ab"};
  request_.n = 1;
  request_.echo = true;
  request_.logprobs = 0;
  request_.stream_usage = true;
  const std::vector<Update> updates = {
      {{{{256, {}, {}}, {'a', -1.0F, {}}, {'b', -2.0F, {}}}, {}, EndReason::none}, 1},
      {{{{256, {}, {}}, {'a', -1.0F, {}}, {'b', -2.0F, {}}}, {}, EndReason::none}, 0},
      {{{}, {{'c', -3.0F, {}}}, EndReason::none}, 0},
      {{{}, {{'x', -3.0F, {}}}, EndReason::length}, 1},
      {{{}, {{'d', -4.0F, {}}}, EndReason::none}, 0},
  };
  Answer one = answer();
  Answer many = answer();
  std::string events;
  for (const Update& update : updates) {
    one.add(update);
    many.add_events(update, events);
  }
  const std::string last = many.last_events();
  ASSERT_TRUE(last.ends_with("data: [DONE]\n\n")) << last;
  const json whole = json::parse(one.whole());
  EXPECT_EQ(data_of(last.substr(0, last.find("data: [DONE]"))).at(0)["usage"], whole["usage"]);
  for (const json& choice : whole["choices"]) {
    std::string text;
    json tokens = json::array();
    json offsets = json::array();
    json finish;
    for (const json& event : data_of(events)) {
      EXPECT_EQ(event["object"], "text_completion");
      const json& piece = event["choices"][0];
      if (piece["index"] != choice["index"]) continue;
      EXPECT_TRUE(finish.is_null()) << "after its end";
      text += piece["text"].get<std::string>();
      for (const json& token : piece["logprobs"]["tokens"]) tokens.push_back(token);
      for (const json& offset : piece["logprobs"]["text_offset"]) offsets.push_back(offset);
      finish = piece["finish_reason"];
    }
    EXPECT_EQ(text, choice["text"]);
    EXPECT_EQ(tokens, choice["logprobs"]["tokens"]);
    EXPECT_EQ(offsets, choice["logprobs"]["text_offset"]);
    EXPECT_EQ(finish, choice["finish_reason"]);
  }
}

TEST_F(Answers, TextThatIsHeldBackIsNoEvent) {
  request_.stop = {"cx"};
  Answer some = answer();
  std::string events;
  EXPECT_FALSE(some.add_events({{{}, {{'c', {}, {}}}, EndReason::none}, 0}, events));
  EXPECT_EQ(events, "");
  EXPECT_FALSE(some.add_events({{{}, {{'d', {}, {}}}, EndReason::none}, 0}, events));
  EXPECT_EQ(data_of(events).at(0)["choices"][0]["text"], "cd");
  EXPECT_FALSE(some.complete());
  // Where it is one after all, the answer ends before it, and what was generated meanwhile is nobody's.
  events.clear();
  EXPECT_FALSE(some.add_events({{{}, {{'c', {}, {}}}, EndReason::none}, 0}, events));
  EXPECT_TRUE(some.add_events({{{}, {{'x', {}, {}}}, EndReason::none}, 0}, events));
  EXPECT_TRUE(some.complete());
  EXPECT_EQ(data_of(events).at(0)["choices"][0]["finish_reason"], "stop");
  events.clear();
  EXPECT_FALSE(some.add_events({{{}, {{'y', {}, {}}}, EndReason::none}, 0}, events));
  EXPECT_EQ(events, "");
  EXPECT_EQ(some.completion_tokens(), 4);
}

// As chats have it.
TEST_F(Answers, AMessage) {
  request_.chat = true;
  request_.logprobs = 1;
  const Update update{{{}, {{'c', -0.5F, {{'c', -0.5F}}}}, EndReason::length}, 0};
  Answer one = answer();
  one.add(update);
  const json scores = json::parse(R"({"content": [{"token": "c", "logprob": -0.5, "bytes": [99],
      "top_logprobs": [{"token": "c", "logprob": -0.5, "bytes": [99]}]}]})");
  const json whole = json::parse(one.whole());
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0], (json{{"index", 0},
                                       {"message", {{"role", "assistant"}, {"content", "c"}}},
                                       {"logprobs", scores},
                                       {"finish_reason", "length"}}));
  Answer many = answer();
  std::string events;
  many.add_events(update, events);
  const json piece = data_of(events).at(0);
  EXPECT_EQ(piece["object"], "chat.completion.chunk");
  EXPECT_EQ(piece["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", "c"}}));
}

// Parts together are one object wherever they end, be it between a list's name and its first value.
TEST_F(Answers, PartsMayEndAnywhere) {
  request_.logprobs = 1;
  request_.echo = true;
  const std::vector<ScoredToken> prompt(5000, {'a', -0.25F, {{'a', -0.25F}}});
  const auto whole = [&](std::size_t text) {
    request_.prompts = {std::string(text, 'x')};
    Answer one = answer();
    one.add({{prompt, {}, EndReason::length}, 0});
    return one.whole();
  };
  const std::size_t list = whole(0).find(",\"token_logprobs\"");
  constexpr std::size_t kPart = 32U << 10U;
  ASSERT_LT(list, kPart);
  for (std::size_t text = kPart - list - 40; text < kPart - list + 40; ++text) {
    EXPECT_TRUE(json::accept(whole(text))) << text;
  }
}

// A long answer comes in parts, an event has few scores, and together they are what one object would be.
TEST_F(Answers, ManyScores) {
  request_.logprobs = 1;
  request_.echo = true;
  std::vector<ScoredToken> prompt(5000, {'a', -0.25F, {{'a', -0.25F}}});
  Answer one = answer();
  one.add({{prompt, {}, EndReason::length}, 0});
  std::string text;
  int parts = 0;
  for (std::string part = one.next_part(); !part.empty(); part = one.next_part(), ++parts) {
    EXPECT_LT(part.size(), 70'000U);
    text += part;
  }
  EXPECT_GT(parts, 3);
  const json whole = json::parse(text);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(whole["choices"][0]["logprobs"][list].size(), 5000U);
  }
  Answer many = answer();
  std::string events;
  std::deque<Update> updates;
  put_in_parts({{prompt, {}, EndReason::length}, 0}, updates);
  for (Update& part : updates) many.add_events(std::move(part), events);
  EXPECT_GT(data_of(events).size(), 10U);
  EXPECT_EQ(data_of(events).back()["choices"][0]["finish_reason"], "length");
}

}  // namespace
}  // namespace qdelta::serve
