// `qdelta generate`: prompts, samples, states on disk, and what it says to wrong options.
#include <nlohmann/json.hpp>

#include <set>

#include "data/byte_tokenizer.h"
#include "infer/generating_case.h"
#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

class Generate : public ::testing::Test {
 protected:
  Generate() { save("model", 1); }

  void save(const std::string& name, std::uint64_t seed) {
    save_model(folder_.file(name), *speaking_model(speaking_config(), seed));
    save_tokenizer(ByteTokenizer(), folder_.file(name));
  }
  [[nodiscard]] Words command(const Words& more) const {
    return joined({"generate", "--model", folder_.file("model"), "--threads", "1"}, more);
  }
  // Standard output without its last newline.
  [[nodiscard]] std::string generate(const Words& more) const {
    const RunResult result = run_well(command(more));
    EXPECT_TRUE(result.out.ends_with("\n")) << result.out;
    return result.out.substr(0, result.out.size() - 1);
  }
  [[nodiscard]] std::string greedy(const Words& more) const { return generate(joined({"--temperature", "0"}, more)); }

  TemporaryFolder folder_;
};

TEST_F(Generate, ContinuesThePrompt) {
  const std::string text = greedy({"--prompt", "The river", "--max-tokens", "20"});
  EXPECT_EQ(text.size(), 9U + 20);
  EXPECT_TRUE(text.starts_with("The river"));
  EXPECT_EQ(greedy({"--prompt", "The river", "--max-tokens", "20", "--stream"}), text);
  write_file(folder_.file("prompt"), "The river");
  EXPECT_EQ(greedy({"--prompt-file", folder_.file("prompt"), "--max-tokens", "20"}), text);
}

TEST_F(Generate, AsJson) {
  const Words words{"--prompt", "The river", "a mill", "--num-samples", "2", "--max-tokens", "6", "--temperature", "0"};
  const auto json = nlohmann::json::parse(generate(joined(words, {"--json"})));
  EXPECT_EQ(json.at("model"), folder_.file("model"));
  ASSERT_EQ(json.at("sequences").size(), 4U);
  const nlohmann::json& third = json.at("sequences").at(2);
  EXPECT_EQ(third.at("prompt"), "a mill");
  EXPECT_EQ(third.at("tokens").size(), 6U);
  EXPECT_EQ(third.at("finish_reason"), "length");
  EXPECT_EQ("a mill" + third.at("text").get<std::string>(), greedy({"--prompt", "a mill", "--max-tokens", "6"}));
  EXPECT_EQ(third.at("prompt_tokens").size(), 7U);  // with the begin of text
  EXPECT_GT(json.at("speed").at("decode_seconds"), 0.0);
  EXPECT_EQ(json.at("speed").at("prompt_tokens"), 2 * (10 + 7));
  const std::string ended = third.at("text").get<std::string>().substr(2, 2);
  const auto stopped = nlohmann::json::parse(generate(joined(words, {"--json", "--stop", ended})));
  EXPECT_EQ(stopped.at("sequences").at(2).at("finish_reason"), "stop");
  expect_failure(run_qdelta(command({"--prompt", "x", "--json", "--stream"})), 1, {"--stream and --json"});
}

TEST_F(Generate, TheSameTextWhateverTheNumberOfThreads) {
  const Words words{"generate", "--model", folder_.file("model"), "--prompt", "The river", "--max-tokens", "40"};
  const std::string one = run_well(joined(words, {"--threads", "1"})).out;
  EXPECT_EQ(run_well(joined(words, {"--threads", "2"})).out, one);
  EXPECT_EQ(run_well(joined(words, {"--threads", "3"})).out, one);
}

TEST_F(Generate, SeveralPromptsAreEachAlone) {
  const std::string first = greedy({"--prompt", "The river", "--max-tokens", "20"});
  const std::string second = greedy({"--prompt", "a mill past the water", "--max-tokens", "20"});
  EXPECT_EQ(greedy({"--prompt", "The river", "a mill past the water", "--max-tokens", "20"}),
            "--- 1 ---\n" + first + "\n--- 2 ---\n" + second);
}

// Not as CLI11's lists, "[a, b]" for two values.
TEST_F(Generate, TakesTextsAsTheyStand) {
  const std::vector<std::string> texts{"[INST] hi", "[a, b]", "[a]", "[]",  "['a', 'b']",
                                       "[[a], b]",  "{}",     "%%",  "a, b"};
  const auto prompts_of = [&](const Words& words) {
    std::vector<std::string> prompts;
    const auto json = nlohmann::json::parse(generate(joined(words, {"--max-tokens", "1", "--json"})));
    for (const nlohmann::json& sequence : json.at("sequences")) prompts.push_back(sequence.at("prompt"));
    return prompts;
  };
  Words repeated;
  for (const std::string& text : texts) repeated.insert(repeated.end(), {"--prompt", text});
  EXPECT_EQ(prompts_of(repeated), texts);
  EXPECT_EQ(prompts_of(joined({"--prompt"}, texts)), texts);
  for (const std::string& text : texts) {
    EXPECT_EQ(prompts_of({"--prompt", text}), std::vector{text});
    EXPECT_EQ(prompts_of({"--prompt=" + text}), std::vector{text});
  }
}

TEST_F(Generate, TakesStopsAndFilesAsTheyStand) {
  const std::string whole = greedy({"--prompt", "The river", "--max-tokens", "20"});
  const std::string letter = whole.substr(12, 1);
  ASSERT_NE(letter, "]");
  EXPECT_EQ(greedy({"--prompt", "The river", "--max-tokens", "20", "--stop", "[" + letter + "]"}), whole);
  EXPECT_EQ(greedy({"--prompt", "The river", "--max-tokens", "20", "--stop", "[" + letter + "," + letter + "]"}),
            whole);
  expect_failure(run_qdelta(command({"--prompt-file", "[a, b]"})), 1, {"[a, b]"});
}

TEST_F(Generate, SeveralSamplesDiffer) {
  const std::string all = generate({"--prompt", "x", "--num-samples", "3", "--temperature", "2", "--max-tokens", "12"});
  std::set<std::string> texts;
  for (const char* mark : {"--- 1 ---\n", "--- 2 ---\n", "--- 3 ---\n"}) {
    ASSERT_TRUE(contains(all, mark)) << all;
    texts.insert(all.substr(all.find(mark) + std::string(mark).size(), 13));
  }
  EXPECT_EQ(texts.size(), 3U) << all;
  // The first of them is the one that comes alone.
  const std::string alone = generate({"--prompt", "x", "--temperature", "2", "--max-tokens", "12"});
  EXPECT_TRUE(all.starts_with("--- 1 ---\n" + alone + "\n")) << all;
}

TEST_F(Generate, TheSeedGivesTheSameText) {
  const Words words{"--prompt", "The river", "--max-tokens", "30", "--temperature", "1.5", "--seed"};
  const std::string seven = generate(joined(words, {"7"}));
  EXPECT_EQ(generate(joined(words, {"7"})), seven);
  EXPECT_NE(generate(joined(words, {"8"})), seven);
}

TEST_F(Generate, OneOfOneIsGreedy) {
  const std::string expected = greedy({"--prompt", "The river", "--max-tokens", "30"});
  const Words words{"--prompt", "The river", "--max-tokens", "30", "--temperature", "2"};
  EXPECT_NE(generate(words), expected);
  EXPECT_EQ(generate(joined(words, {"--top-k", "1"})), expected);
  EXPECT_EQ(generate(joined(words, {"--top-p", "0.000001"})), expected);
  EXPECT_EQ(generate(joined(words, {"--min-p", "0.999999"})), expected);
}

TEST_F(Generate, StopsAtStopStrings) {
  const std::string whole = greedy({"--prompt", "The river", "--max-tokens", "40"}).substr(9);
  for (const std::string& stop : {whole.substr(12, 4), whole.substr(30, 5)}) {
    const std::string expected = "The river" + whole.substr(0, whole.find(stop));
    EXPECT_EQ(greedy({"--prompt", "The river", "--max-tokens", "40", "--stop", stop}), expected);
    EXPECT_EQ(greedy({"--prompt", "The river", "--max-tokens", "40", "--stop", "0123", stop, "--stream"}), expected);
  }
}

TEST_F(Generate, ThePenaltyChangesWhatWouldBeRepeated) {
  const Words words{"--prompt", "bbbb", "--max-tokens", "26"};
  const std::string plain = greedy(words);
  EXPECT_EQ(greedy(joined(words, {"--repetition-penalty", "1"})), plain);
  EXPECT_NE(greedy(joined(words, {"--repetition-penalty", "4"})), plain);
}

TEST_F(Generate, ASplitPromptIsTheWholePrompt) {
  const std::string state = folder_.file("state");
  const std::string whole = greedy({"--prompt", "The river runs past the mill", "--max-tokens", "20"});
  const RunResult read = run_well(command({"--prompt", "The river runs", "--max-tokens", "0", "--save-state", state}));
  EXPECT_EQ(read.out, "");
  EXPECT_TRUE(contains(read.err, "state after 15 tokens kept in " + state)) << read.err;  // with the begin of text
  const std::string rest = greedy({"--load-state", state, "--prompt", " past the mill", "--max-tokens", "20"});
  EXPECT_EQ("The river runs" + rest, whole);
  // The state is still there, and unchanged.
  EXPECT_EQ(greedy({"--load-state", state, "--prompt", " past the mill", "--max-tokens", "20"}), rest);
}

TEST_F(Generate, GoesOnFromASavedState) {
  const std::string whole = greedy({"--prompt", "The river", "--max-tokens", "24"});
  const std::string first = greedy({"--prompt", "The river", "--max-tokens", "9", "--save-state", folder_.file("a")});
  const std::string second =
      greedy({"--load-state", folder_.file("a"), "--max-tokens", "8", "--save-state", folder_.file("b")});
  const std::string third = greedy({"--load-state", folder_.file("b"), "--max-tokens", "7"});
  EXPECT_EQ(first + second + third, whole);
  // And several ways at once.
  EXPECT_EQ(greedy({"--load-state", folder_.file("b"), "--prompt", "", "xyz", "--max-tokens", "7"}),
            "--- 1 ---\n" + third + "\n--- 2 ---\n" +
                greedy({"--load-state", folder_.file("b"), "--prompt", "xyz", "--max-tokens", "7"}));
}

// A prompt that was only read goes on by itself, as if it had never been interrupted.
TEST_F(Generate, GoesOnFromAPromptThatWasOnlyRead) {
  const std::string state = folder_.file("state");
  for (const std::string prompt : {"The river runs", ""}) {  // the second is the begin of text alone
    const std::string whole = greedy({"--prompt", prompt, "--max-tokens", "20"});
    run_well(command({"--prompt", prompt, "--max-tokens", "0", "--save-state", state}));
    EXPECT_EQ(prompt + greedy({"--load-state", state, "--max-tokens", "20"}), whole);
    // Also in steps: reading on from it, and reading nothing more.
    run_well(command({"--load-state", state, "--prompt", " past", "--max-tokens", "0", "--save-state", state}));
    run_well(command({"--load-state", state, "--max-tokens", "0", "--save-state", state}));
    EXPECT_EQ(prompt + " past" + greedy({"--load-state", state, "--max-tokens", "20"}),
              greedy({"--prompt", prompt + " past", "--max-tokens", "20"}));
  }
  const Words sampled{"--max-tokens", "20", "--temperature", "1.5", "--seed", "7"};
  run_well(command({"--prompt", "The river", "--max-tokens", "0", "--save-state", state}));
  EXPECT_EQ("The river" + generate(joined({"--load-state", state}, sampled)),
            generate(joined({"--prompt", "The river"}, sampled)));
}

// Files from before the last token was saved, and of a chat in which nothing was said.
TEST_F(Generate, AStateWithoutALastTokenNeedsAPrompt) {
  const std::string state = folder_.file("state");
  run_well(command({"--prompt", "The river", "--max-tokens", "0", "--save-state", state}));
  EditableCase file = EditableCase::read(state);
  file.metadata["pending"] = "0";
  file.write(state);
  expect_failure(run_qdelta(command({"--load-state", state})), 1, {state, "last token", "--prompt"});
  EXPECT_TRUE(greedy({"--load-state", state, "--prompt", " runs", "--max-tokens", "3"}).starts_with(" runs"));
}

TEST_F(Generate, CountsWhatItGenerated) {
  const auto said = [&](const Words& more) { return run_well(command(more)).err; };
  EXPECT_TRUE(
      contains(said({"--prompt", "The river", "--max-tokens", "60", "--temperature", "0"}), "generated 60 tokens at "));
  EXPECT_TRUE(contains(said({"--prompt", "The river", "a", "--max-tokens", "5", "--temperature", "0"}),
                       "generated 10 tokens at "));
  const std::string one = said({"--prompt", "The river", "--max-tokens", "1"});
  EXPECT_TRUE(contains(one, "prompt 10 tokens at ")) << one;  // with the begin of text
  EXPECT_TRUE(one.ends_with("generated 1 tokens\n")) << one;  // there was no step to take a rate of
  const std::string none = said({"--prompt", "The river", "--max-tokens", "0", "--save-state", folder_.file("s")});
  EXPECT_TRUE(contains(none, "prompt 10 tokens at ")) << none;
  EXPECT_TRUE(contains(none, "generated 0 tokens\n")) << none;
}

TEST_F(Generate, AStateOfAnotherModelIsRefused) {
  const std::string state = folder_.file("state");
  static_cast<void>(greedy({"--prompt", "a", "--max-tokens", "3", "--save-state", state}));
  save("model", 2);
  expect_failure(run_qdelta(command({"--load-state", state})), 1, {state, "another model"});
  save("model", 1);
  static_cast<void>(greedy({"--load-state", state, "--max-tokens", "3"}));
  const std::string good = read_file(state);
  write_file(state, good.substr(0, good.size() / 2));
  expect_failure(run_qdelta(command({"--load-state", state})), 1, {state});
  write_file(state, "");
  expect_failure(run_qdelta(command({"--load-state", state})), 1, {state});
  expect_failure(run_qdelta(command({"--load-state", folder_.file("nowhere")})), 1, {folder_.file("nowhere")});
  expect_failure(run_qdelta(command({"--load-state", folder_.file("model/model.safetensors")})), 1, {"no saved state"});
}

TEST_F(Generate, AStateThatCannotBeKeptIsAFailure) {
  const RunResult result =
      run_qdelta(command({"--prompt", "a", "--max-tokens", "2", "--save-state", folder_.file("nowhere/state")}));
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.err, folder_.file("nowhere/state"))) << result.err;
  EXPECT_EQ(result.out, "");  // it is said before anything is generated
  const RunResult full =
      run_with_file_limit(command({"--prompt", "a", "--max-tokens", "2", "--save-state", folder_.file("state")}), 500);
  EXPECT_EQ(full.status, 1);
  EXPECT_TRUE(contains(full.err, "File too large")) << full.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.file("state")));
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(run_qdelta(command({"--prompt", "a", "--max-tokens", "2"}), "/dev/full").status, 1);
}

TEST_F(Generate, WrongOptionsAreNamed) {
  const auto refused = [&](const Words& more, const Words& pieces) {
    const RunResult result = run_qdelta(command(more));
    EXPECT_NE(result.status, 0) << more[0];
    EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& piece : pieces) EXPECT_TRUE(contains(result.err, piece)) << piece << " in " << result.err;
  };
  const auto with = [](const std::string& option, const std::string& value) {
    return Words{"--prompt", "a", option, value};
  };
  refused(with("--temperature", "-1"), {"temperature", "-1"});
  refused(with("--temperature", "nan"), {"temperature"});
  refused(with("--temperature", "warm"), {"--temperature", "warm"});
  refused(with("--top-k", "-1"), {"top-k", "-1"});
  refused(with("--top-p", "0"), {"top-p", "0"});
  refused(with("--top-p", "1.5"), {"top-p", "1.5"});
  refused(with("--min-p", "1"), {"min-p", "1"});
  refused(with("--repetition-penalty", "0"), {"repetition penalty", "0"});
  refused(with("--max-tokens", "-1"), {"max-tokens", "-1", "at least 1", "0 with --save-state"});
  refused(with("--max-tokens", "0"), {"max-tokens", "0", "--save-state"});
  refused(with("--num-samples", "0"), {"num-samples", "0"});
  refused(with("--seed", "x"), {"--seed", "x"});
  refused({"--prompt", "a", "b", "--stream"}, {"--stream", "2"});
  refused({"--prompt", "a", "--num-samples", "3", "--stream"}, {"--stream", "3"});
  refused(with("--tokenizer", "nothing"), {"no tokenizer", "nothing"});
  refused({"--max-tokens", "5"}, {"--prompt", "--prompt-file", "--load-state"});
  refused({"--prompt-file", folder_.file("nowhere")}, {folder_.file("nowhere")});
  refused({"--prompt", "a", "--num-samples", "2", "--save-state", folder_.file("s")}, {"--save-state", "2 sequences"});
  refused({"--prompt", "", "--no-bos"}, {"no tokens", "leave --no-bos out"});
  expect_failure(run_qdelta({"generate", "--prompt", "a"}), 2, {"--model"});
  expect_failure(run_qdelta({"generate", "--model", folder_.file("nowhere"), "--prompt", "a"}), 1,
                 {folder_.file("nowhere")});
  const std::string larger = QDELTA_GOLDEN_DIR "/../data/fixtures/llama3_style.json";
  refused(with("--tokenizer", larger), {"do not belong together"});
}

TEST_F(Generate, AModelWithoutATokenizerSaysSo) {
  for (const char* name : {"qdelta_tokenizer.json", "tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::remove(folder_.file("model/") + name);
  }
  expect_failure(run_qdelta(command({"--prompt", "a"})), 1, {folder_.file("model"), "no tokenizer"});
  EXPECT_TRUE(greedy({"--prompt", "a", "--tokenizer", "bytes", "--max-tokens", "3"}).starts_with("a"));
}

}  // namespace
}  // namespace qdelta::testing
