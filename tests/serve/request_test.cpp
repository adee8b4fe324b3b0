// What a request may say, and what it is told when it is wrong.
#include "serve/request.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "serve/api_error.h"

namespace qdelta::serve {
namespace {

using Ids = std::vector<std::int32_t>;

Limits limits() {
  Limits some;
  some.vocab_size = 100;
  some.max_sequences = 4;
  some.max_prompt = 5;
  some.max_tokens = 50;
  return some;
}

CompletionRequest parsed(std::string_view body) { return parse_completion(body, limits()); }

TEST(Request, PromptsInAllFourForms) {
  EXPECT_EQ(parsed(R"({"prompt": "a b"})").prompts, std::vector<Prompt>{"a b"});
  EXPECT_EQ(parsed(R"({"prompt": ["a", ""]})").prompts, (std::vector<Prompt>{"a", ""}));
  EXPECT_EQ(parsed(R"({"prompt": [0, 99]})").prompts, (std::vector<Prompt>{Ids{0, 99}}));
  EXPECT_EQ(parsed(R"({"prompt": [[7], [1, 2]]})").prompts, (std::vector<Prompt>{Ids{7}, Ids{1, 2}}));
}

// Long arrays of ids are read in a way of their own.
TEST(Request, PromptsOfManyTokens) {
  Limits many = limits();
  many.max_prompt = 100;
  Ids ids;
  std::string text;
  for (std::int32_t id = 0; id < 100; ++id) {
    ids.push_back(99 - id);
    text += (id > 0 ? ", " : "") + std::to_string(99 - id);
  }
  EXPECT_EQ(parse_completion("{\"prompt\": [" + text + "]}", many).prompts, std::vector<Prompt>{ids});
  EXPECT_EQ(parse_completion("{\"prompt\": [[" + text + "], [1]]}", many).prompts, (std::vector<Prompt>{ids, Ids{1}}));
  EXPECT_EQ(parse_completion("{\"prompt\": [[1], [" + text + "]]}", many).prompts, (std::vector<Prompt>{Ids{1}, ids}));
  EXPECT_EQ(parse_detokenize("{\"tokens\": [" + text + "]}", many), ids);
  const auto refused = [&](const std::string& body, const std::string& parameter, const std::string& why) {
    try {
      (void)parse_completion(body, many);
      ADD_FAILURE() << body;
    } catch (const ApiError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      const nlohmann::json named = error.body()["error"]["param"];
      EXPECT_EQ(named.is_null() ? "" : named.get<std::string>(), parameter);
    }
  };
  refused("{\"prompt\": [" + text + ", 5]}", "prompt", "101 tokens, and this server takes at most 100");
  refused("{\"prompt\": [[1], [" + text.substr(4) + ", 100]]}", "prompt", "prompt[1][99] must be a token id");
  refused("{\"prompt\": [\"a\", [" + text + "]]}", "prompt", "must be alike");
  refused("{\"prompt\": \"a\", \"stop\": [" + text + "]}", "stop", "array of texts, not array of numbers");
  refused("{\"prompt\": \"a\", \"allowed_token_ids\": [" + text + "]}", "allowed_token_ids", "not supported");
  refused("{\"prompt\": [" + text + "]", "", "not valid JSON");
}

TEST(Request, WhatIsNotSaidIsAsInOpenAIsInterface) {
  const CompletionRequest request = parsed(R"({"prompt": "a", "max_tokens": null, "stop": null, "seed": null})");
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.top_p, 1.0F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_FALSE(request.logprobs);
  EXPECT_FALSE(request.echo || request.stream || request.seeded || request.ignore_eos);
  EXPECT_TRUE(request.add_special_tokens);
  EXPECT_TRUE(request.stop.empty());
}

TEST(Request, EverythingThatCanBeSaid) {
  const CompletionRequest request =
      parsed(R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 50, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
                 "min_p": 0.1, "repetition_penalty": 1.5, "seed": -3, "n": 2, "best_of": 2, "logprobs": 20,
                 "echo": true, "stream": true, "stream_options": {"include_usage": true}, "stop": ["x", "", "yz"],
                 "ignore_eos": true, "add_special_tokens": false, "user": "somebody", "presence_penalty": 0.0})");
  EXPECT_EQ(request.max_tokens, 50);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.1F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_TRUE(request.seeded);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(request.sequences(), 4);
  EXPECT_EQ(request.logprobs, 20);
  EXPECT_TRUE(request.echo && request.stream && request.stream_usage && request.ignore_eos);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(parsed(R"({"prompt": "a", "stop": "end"})").stop, std::vector<std::string>{"end"});
  EXPECT_EQ(parsed(R"({"prompt": "a", "max_tokens": 0, "echo": true})").max_tokens, 0);
  EXPECT_FALSE(parsed(R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": null}})").stream_usage);
  EXPECT_EQ(parsed(R"({"prompt": "a", "top_k": -1})").sampling.top_k, 0);
}

TEST(Request, TheHarnesssOwnRequests) {
  const CompletionRequest scoring =
      parsed(R"({"model": "m", "prompt": [[1, 2, 3]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
                 "echo": true})");
  EXPECT_EQ(scoring.logprobs, 1);
  EXPECT_EQ(scoring.sampling.temperature, 0.0F);
  const CompletionRequest generating =
      parsed(R"({"prompt": [[1]], "model": "m", "max_tokens": 32, "temperature": 0, "stop": ["\n", "</s>"],
                 "seed": 1234, "do_sample": false})");
  EXPECT_EQ(generating.stop.size(), 2U);
}

struct Refused {
  const char* body;
  const char* parameter;
  const char* says;
};

class Refusals : public ::testing::TestWithParam<Refused> {};

TEST_P(Refusals, SayWhichFieldAndWhy) {
  try {
    static_cast<void>(parsed(GetParam().body));
    ADD_FAILURE() << "accepted: " << GetParam().body;
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.parameter(), GetParam().parameter);
    EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    const nlohmann::json body = error.body();
    EXPECT_EQ(body["error"]["type"], "invalid_request_error");
    EXPECT_EQ(body["error"]["message"], error.what());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bodies, Refusals,
    ::testing::Values(
        Refused{"", "", "not valid JSON"}, Refused{"{", "", "not valid JSON"},
        Refused{"[]", "", "must be a JSON object"}, Refused{"\"text\"", "", "must be a JSON object"},
        Refused{"{\"prompt\": \"\xff\"}", "", "not valid UTF-8"},
        Refused{R"({"prompt": "a"} more)", "", "not valid JSON"}, Refused{"{}", "prompt", "missing"},
        Refused{R"({"prompt": null})", "prompt", "missing"}, Refused{R"({"prompt": 3})", "prompt", "not number"},
        Refused{R"({"prompt": {}})", "prompt", "not object"}, Refused{R"({"prompt": []})", "prompt", "empty array"},
        Refused{R"({"prompt": [[]]})", "prompt", "prompt[0] has no tokens"},
        Refused{R"({"prompt": [true]})", "prompt", "prompt[0]"},
        Refused{R"({"prompt": ["a", [1]]})", "prompt", "must be alike"},
        Refused{R"({"prompt": [1, "a"]})", "prompt", "prompt[1] must be a token id"},
        Refused{R"({"prompt": [1, 100]})", "prompt", "from 0 to 99"},
        Refused{R"({"prompt": [-1]})", "prompt", "from 0 to 99"},
        Refused{R"({"prompt": [1.5]})", "prompt", "whole number"},
        Refused{R"({"prompt": [18446744073709551615]})", "prompt", "whole number"},
        Refused{R"({"prompt": [[1], [2, 300]]})", "prompt", "prompt[1][1]"},
        Refused{R"({"prompt": [1, 2, 3, 4, 5, 6]})", "prompt", "6 tokens, and this server takes at most 5"},
        Refused{R"({"prompt": ["a", "a", "a", "a", "a"]})", "prompt", "at most 4"},
        Refused{R"({"prompt": ["a", "a", "a"], "n": 2})", "n", "6 sequences"},
        Refused{R"({"prompt": "a", "n": 0})", "n", "from 1 to 4"},
        Refused{R"({"prompt": "a", "max_tokens": 51})", "max_tokens", "from 0 to 50"},
        Refused{R"({"prompt": "a", "max_tokens": -1})", "max_tokens", "from 0 to 50"},
        Refused{R"({"prompt": "a", "max_tokens": 2.5})", "max_tokens", "whole number"},
        Refused{R"({"prompt": "a", "max_tokens": 1e9})", "max_tokens", "whole number"},
        Refused{R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "echo"},
        Refused{R"({"prompt": "a", "temperature": "hot"})", "temperature", "must be a number"},
        Refused{R"({"prompt": "a", "temperature": 1e300})", "temperature", "too large"},
        Refused{R"({"prompt": "a", "temperature": -1})", "temperature", "temperature is -1, expected 0 or more"},
        Refused{R"({"prompt": "a", "top_p": 0})", "top_p", "top_p is 0, expected more than 0 and at most 1"},
        Refused{R"({"prompt": "a", "top_p": 1.1})", "top_p", "top_p is 1.1"},
        Refused{R"({"prompt": "a", "min_p": 1})", "min_p", "min_p is 1, expected at least 0 and less than 1"},
        Refused{R"({"prompt": "a", "repetition_penalty": 0})", "repetition_penalty", "repetition_penalty is 0"},
        Refused{R"({"prompt": "a", "top_k": -2})", "top_k", "whole number from -1"},
        Refused{R"({"prompt": "a", "logprobs": 21})", "logprobs", "from 0 to 20"},
        Refused{R"({"prompt": "a", "logprobs": true})", "logprobs", "whole number"},
        Refused{R"({"prompt": "a", "seed": 1.5})", "seed", "whole number"},
        Refused{R"({"prompt": "a", "echo": 1})", "echo", "true or false"},
        Refused{R"({"prompt": "a", "stream": "yes"})", "stream", "true or false"},
        Refused{R"({"prompt": "a", "stop": 3})", "stop", "text"},
        Refused{R"({"prompt": "a", "stop": ["a", 3]})", "stop", "not number"},
        Refused{R"({"prompt": "a", "stream_options": {}})", "stream_options", "without stream"},
        Refused{R"({"prompt": "a", "stream": true, "stream_options": 1})", "stream_options", "object"},
        Refused{R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": 1}})", "stream_options",
                "true or false"},
        Refused{R"({"prompt": "a", "model": 3})", "model", "text"},
        Refused{R"({"prompt": "a", "suffix": "b"})", "suffix", "not supported"},
        Refused{R"({"prompt": "a", "best_of": 3})", "best_of", "not supported"},
        Refused{R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias", "token id"},
        Refused{R"({"prompt": "a", "logit_bias": {"5000": 1}})", "logit_bias", "token id"},
        Refused{R"({"prompt": "a", "logit_bias": {"5": 101}})", "logit_bias", "from -100 to 100"},
        Refused{R"({"prompt": "a", "logit_bias": [5]})", "logit_bias", "object"},
        Refused{R"({"prompt": "a", "frequency_penalty": 2.5})", "frequency_penalty", "from -2 to 2"},
        Refused{R"({"prompt": "a", "min_tokens": 17})", "min_tokens", "more than the 16"},
        Refused{R"({"prompt": "a", "stop_token_ids": [1, 2, 3, 4, 5, 6, 7, 8]})", "stop_token_ids", "at most 7"},
        Refused{R"({"prompt": "a", "grammar": "root ::= x"})", "grammar", "not supported"},
        Refused{R"({"prompt": "a", "guided_regex": "a+"})", "guided_regex", "not supported"},
        Refused{R"({"prompt": "a", "guided_json": {}})", "guided_json", "not supported"},
        Refused{R"({"prompt": "a", "guided_other": "x"})", "guided_other", "not supported"},
        Refused{R"({"prompt": "a", "json_schema": {}})", "json_schema", "not supported"},
        Refused{R"({"prompt": "a", "repeat_penalty": 1.2})", "repeat_penalty", "not supported"},
        Refused{R"({"prompt": "a", "dry_multiplier": 0.8})", "dry_multiplier", "not supported"},
        Refused{R"({"prompt": "a", "n_predict": 5})", "n_predict", "not supported"},
        Refused{R"({"prompt": "a", "skip_special_tokens": false})", "skip_special_tokens", "not supported"},
        Refused{R"({"prompt": "a", "structured_outputs": {"json": {}}})", "structured_outputs", "not supported"},
        Refused{R"({"prompt": "a", "json_schema": {"type": "object"}})", "json_schema", "not supported"},
        Refused{R"({"prompt": "a", "allowed_token_ids": [1]})", "allowed_token_ids", "not supported"},
        Refused{R"({"prompt": "a", "lora": "x"})", "lora", "not supported"},
        Refused{R"({"prompt": "a", "truncate_prompt_tokens": 5})", "truncate_prompt_tokens", "not supported"},
        Refused{R"({"prompt": "a", "messages": [{"role": "user", "content": "b"}]})", "messages", "not supported"},
        Refused{R"({"prompt": "a", "mirostat": 2})", "mirostat", "not supported"},
        Refused{R"({"prompt": "a", "bad_words": ["x"]})", "bad_words", "not supported"},
        Refused{R"({"prompt": "a", "max_new_tokens": 4})", "max_new_tokens", "not supported"},
        Refused{R"({"prompt": "a", "min_new_tokens": 4})", "min_new_tokens", "not supported"},
        Refused{R"({"prompt": "a", "stop_regex": "a+"})", "stop_regex", "not supported"},
        Refused{R"({"prompt": "a", "guidance_scale": 1.5})", "guidance_scale", "not supported"},
        Refused{R"({"prompt": "a", "banned_strings": ["x"]})", "banned_strings", "not supported"},
        Refused{R"({"prompt": "a", "num_beams": 4})", "num_beams", "not supported"}));

TEST(Request, WhatChangesLogits) {
  const CompletionRequest request = parsed(R"({"prompt": "a", "logit_bias": {"5": 1.5, "7": -100}, "min_tokens": 3,
      "presence_penalty": 0.5, "frequency_penalty": -0.25, "stop_token_ids": [9]})");
  ASSERT_EQ(request.bias.size(), 2U);
  EXPECT_EQ(request.bias[0].token, 5);
  EXPECT_EQ(request.bias[0].bias, 1.5F);
  EXPECT_EQ(request.sampling.presence_penalty, 0.5F);
  EXPECT_EQ(request.sampling.frequency_penalty, -0.25F);
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_EQ(request.stop_tokens, std::vector<std::int32_t>{9});
}

TEST(Request, AChat) {
  Limits limits;
  limits.vocab_size = 300;
  const CompletionRequest request = parse_chat(R"({"messages": [{"role": "system", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3, "n": 2})",
                                               limits);
  EXPECT_TRUE(request.chat);
  EXPECT_EQ(request.messages[1]["content"], "ab");
  EXPECT_EQ(parse_chat(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {}})", limits).n, 1);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_EQ(request.n, 2);
  // As clients send a message back that they were given, and where they have no tools.
  const CompletionRequest again = parse_chat(R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [],
      "function_call": null, "refusal": null}], "tools": [], "tool_choice": "none", "modalities": ["text"]})",
                                             limits);
  EXPECT_EQ(again.messages[0]["content"], "a");
  for (const char* bad : {R"({"messages": []})", R"({"prompt": "a"})", R"({"messages": [{"role": "user"}]})",
                          R"({"messages": "a"})", R"({"messages": [{"role": "user", "content": "a"}], "prompt": "b"})",
                          R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})",
                          R"({"messages": [{"role": "user", "content": "a"}], "modalities": ["audio"]})",
                          R"({"messages": [{"content": "a"}]})", R"({"messages": [{"role": "user", "content": 3}]})",
                          R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
                          R"({"messages": [{"role": "user", "content": [{"type": 5, "text": "a"}]}]})",
                          R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]})",
                          R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3})",
                          R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": true}})",
                          R"({"messages": [{"role": "user", "content": "a"}], "documents": [{"text": "a"}]})",
                          R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [1]}]})"}) {
    EXPECT_THROW(static_cast<void>(parse_chat(bad, limits)), ApiError) << bad;
  }
}

TEST(Request, ManyStopsAreRefused) {
  nlohmann::json body = {{"prompt", "a"}, {"stop", std::vector<std::string>(65, "s")}};
  EXPECT_THROW(static_cast<void>(parsed(body.dump())), ApiError);
  body["stop"] = std::vector<std::string>(64, "s");
  EXPECT_EQ(parsed(body.dump()).stop.size(), 64U);
}

TEST(Request, Tokenizing) {
  const TokenizeRequest request = parse_tokenize(R"({"prompt": "a", "add_special_tokens": false})");
  EXPECT_EQ(request.prompt, "a");
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_TRUE(parse_tokenize(R"({"prompt": ""})").add_special_tokens);
  EXPECT_EQ(parse_detokenize(R"({"tokens": [3, 1]})", limits()), (Ids{3, 1}));
  EXPECT_TRUE(parse_detokenize(R"({"tokens": []})", limits()).empty());
  for (const char* wrong : {"{}", R"({"prompt": 1})", R"({"prompt": ["a"]})", "null"}) {
    EXPECT_THROW(static_cast<void>(parse_tokenize(wrong)), ApiError) << wrong;
  }
  for (const char* wrong : {"{}", R"({"tokens": "a"})", R"({"tokens": [100]})", R"({"tokens": [[1]]})"}) {
    EXPECT_THROW(static_cast<void>(parse_detokenize(wrong, limits())), ApiError) << wrong;
  }
}

}  // namespace
}  // namespace qdelta::serve
