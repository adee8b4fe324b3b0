// Few-shot prompts, tasks from files and the harness's layout of results.
#include "eval/fewshot.h"

#include "cli/training_testing.h"
#include "data/byte_tokenizer.h"
#include "eval/python_random.h"
#include "eval_testing.h"
#include "infer/generating_case.h"
#include "model/checkpoint.h"

namespace qdelta::testing {
namespace {

using Indices = std::vector<std::size_t>;

// What random.Random(1234).sample(range(n), k) gives in Python 3.11, one call after the other.
TEST(PythonRandom, DrawsWhatPythonDraws) {
  eval::PythonRandom random(1234);
  EXPECT_EQ(random.sample(10, 3), (Indices{7, 1, 0}));
  EXPECT_EQ(random.sample(1000, 6), (Indices{92, 932, 965, 961, 826, 596}));
  EXPECT_EQ(random.sample(100, 5), (Indices{4, 85, 88, 10, 12}));
  EXPECT_EQ(random.sample(5000, 2), (Indices{2905, 1939}));
}

class FewshotCommand : public ::testing::Test {
 protected:
  FewshotCommand() {
    save_model(folder_.file("model"), *speaking_model(speaking_config()));
    save_tokenizer(ByteTokenizer(), folder_.file("model"));
    std::string lines;
    for (int i = 0; i < 4; ++i) {
      lines += fmt::format(R"({{"goal": "g{}", "sol1": "a{}", "sol2": "b{}", "label": {}}})", i, i, i, i % 2) + "\n";
    }
    write_file(folder_.file("piqa.jsonl"), lines);
    write_file(folder_.file("own.json"), R"({"task": "own", "data": "own.jsonl", "prompt": "Is {{goal}} {{n + 1}}?",
      "choices": ["{{first}}", "no"], "answer": "{{right}}"})");
    write_file(folder_.file("own.jsonl"), R"({"goal": "x", "n": 1, "first": "yes", "right": "no"})"
                                          "\n"
                                          R"({"goal": "y", "n": 2, "first": "maybe", "right": 0})"
                                          "\n");
  }
  [[nodiscard]] Words words(const std::string& tasks, const Words& more = {}) const {
    return joined({"eval", "--model", folder_.file("model"), "--data", folder_.path(), "--threads", "1", "--tasks",
                   tasks, "--log-examples", folder_.file("log.jsonl")},
                  more);
  }
  [[nodiscard]] std::vector<nlohmann::json> asked(const std::string& tasks, const Words& more = {}) const {
    static_cast<void>(run_well(words(tasks, more)));
    std::vector<nlohmann::json> lines;
    std::istringstream in(read_file(folder_.file("log.jsonl")));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  const TemporaryFolder folder_;
};

TEST_F(FewshotCommand, SolvedExamplesStandBeforeTheQuestion) {
  // Out of the test: three are drawn, and the question itself is not among the two that are shown.
  const auto lines = asked("piqa", {"--fewshot", "2", "--dry-run"});
  eval::PythonRandom random(1234);
  for (std::size_t n = 0; n < 4; ++n) {
    std::string expected;
    int used = 0;
    for (const std::size_t i : random.sample(4, 3)) {
      if (i == n || used == 2) continue;
      expected += fmt::format("Question: g{}\nAnswer: {}{}\n\n", i, i % 2 == 0 ? "a" : "b", i);
      ++used;
    }
    expected += fmt::format("Question: g{}\nAnswer:", n);
    EXPECT_EQ(lines[n]["texts"][0][0], expected);
    EXPECT_EQ(lines[n]["texts"][1][0], expected);
  }
  // Out of the training split, where there is one.
  write_file(folder_.file("piqa_train.jsonl"), R"({"goal": "t", "sol1": "u", "sol2": "v", "label": 1})");
  EXPECT_EQ(asked("piqa", {"--fewshot", "1", "--dry-run"})[0]["texts"][0][0],
            "Question: t\nAnswer: v\n\nQuestion: g0\nAnswer:");
  expect_failure(run_qdelta(words("piqa", {"--fewshot", "2"})), 1, {"2 examples", "only 1"});
  expect_failure(run_qdelta(words("mqar", {"--fewshot", "2"})), 1, {"--fewshot", "mqar"});
  expect_failure(run_qdelta(words("piqa", {"--fewshot", "-1"})), 1, {"fewshot is -1"});
}

TEST_F(FewshotCommand, ATaskOfOnesOwn) {
  const auto lines = asked(folder_.file("own.json") + ",piqa");
  ASSERT_EQ(lines.size(), 6U);
  std::map<std::string, nlohmann::json> by_text;
  for (const nlohmann::json& line : lines) by_text[line["texts"][0][0]] = line;
  EXPECT_EQ(by_text["Is x 2?"]["gold"], 1);
  EXPECT_EQ(by_text["Is y 3?"]["gold"], 0);
  EXPECT_EQ(by_text["Is y 3?"]["texts"][0][1], " maybe");
  EXPECT_EQ(asked(folder_.file("own.json"), {"--fewshot", "1", "--limit", "1"})[0]["texts"][0][0],
            "Is y 3? maybe\n\nIs x 2?");
  // Free answers.
  write_file(folder_.file("free.json"),
             R"({"task": "free", "data": "own.jsonl", "prompt": "{{goal}}", "answer": "{{first}}", "max_tokens": 4})");
  EXPECT_EQ(asked(folder_.file("free.json")).size(), 2U);
  EXPECT_EQ(asked(folder_.file("free.json"), {"--fewshot", "1", "--limit", "1"})[0]["prompt"], "y maybe\n\nx");
}

TEST_F(FewshotCommand, ATaskChoosesItsMetric) {
  const auto values = [&](const std::string& rest) {
    write_file(folder_.file("t.json"), R"({"task": "t", "data": "own.jsonl", "prompt": "{{goal}}", )" + rest + "}");
    std::vector<std::string> names;
    const nlohmann::json measured = asked(folder_.file("t.json"))[0]["values"];  // outlives the loop over its items
    for (const auto& [name, value] : measured.items()) names.push_back(name);
    return names;
  };
  const std::string choices = R"("choices": ["yes", "no"], "answer": "1")";
  EXPECT_EQ(values(choices), (std::vector<std::string>{"acc", "acc_norm"}));
  EXPECT_EQ(values(choices + R"(, "metric": "acc")"), (std::vector<std::string>{"acc"}));
  EXPECT_EQ(values(choices + R"(, "metric": "acc_norm")"), (std::vector<std::string>{"acc_norm"}));
  EXPECT_EQ(values(R"("answer": "a")"), (std::vector<std::string>{"contains"}));
  EXPECT_EQ(values(R"("answer": "a", "metric": "exact_match")"), (std::vector<std::string>{"exact_match"}));
  // What the model says, given as the answer, is right; with more around it it is contained and no exact match.
  const std::string said = asked(folder_.file("t.json"))[0]["text"];
  const auto score = [&](const std::string& answer, const char* metric) {
    write_file(
        folder_.file("s.json"),
        nlohmann::json{{"task", "s"}, {"data", "own.jsonl"}, {"prompt", "x"}, {"answer", answer}, {"metric", metric}}
            .dump());
    return asked(folder_.file("s.json"))[0]["values"][metric].get<int>();
  };
  ASSERT_GT(said.size(), 1U);
  EXPECT_EQ(score(said.substr(0, 1), "contains"), 1);
  EXPECT_EQ(score(said.substr(0, 1), "exact_match"), 0);
}

TEST_F(FewshotCommand, TasksThatMakeNoSenseAreNamed) {
  const auto fails = [&](const std::string& json, const std::vector<std::string>& pieces) {
    write_file(folder_.file("bad.json"), json);
    expect_failure(run_qdelta(words(folder_.file("bad.json"))), 1, pieces);
  };
  fails(R"({"task": "t", "data": "own.jsonl", "prompt": "p"})", {"bad.json", "answer"});
  fails(R"({"task": "t", "data": "own.jsonl", "prompt": "p", "answer": "a", "choises": ["a", "b"]})", {"choises"});
  fails(R"({"task": "t", "data": "none.jsonl", "prompt": "p", "answer": "a"})", {"none.jsonl"});
  fails(R"({"task": "t", "data": "own.jsonl", "prompt": "{{", "answer": "a"})", {"line 1"});
  fails(R"({"task": "t", "data": "own.jsonl", "prompt": "p", "choices": ["a", "b"], "answer": "c"})",
        {"own.jsonl: line 1", "'c'"});
  fails(R"({"task": "t", "data": "own.jsonl", "prompt": "p", "answer": "a", "metric": "acc"})",
        {"bad.json", "no metric 'acc'", "contains and exact_match"});
  fails("[1]", {"bad.json"});
}

TEST_F(FewshotCommand, ResultsInTheHarnessLayout) {
  static_cast<void>(asked("piqa", {"--fewshot", "2", "--harness-out", folder_.file("harness.json")}));
  const nlohmann::json json = nlohmann::json::parse(read_file(folder_.file("harness.json")));
  EXPECT_TRUE(json["results"]["piqa"]["acc,none"].is_number());
  EXPECT_TRUE(json["results"]["piqa"]["acc_norm_stderr,none"].is_number());
  EXPECT_EQ(json["results"]["piqa"]["alias"], "piqa");
  EXPECT_EQ(json["n-shot"]["piqa"], 2);
  EXPECT_EQ(json["n-samples"]["piqa"]["effective"], 4);
  EXPECT_EQ(json["higher_is_better"]["piqa"]["acc"], true);
  EXPECT_EQ(json["config"]["model"], "qdelta");
}

}  // namespace
}  // namespace qdelta::testing
