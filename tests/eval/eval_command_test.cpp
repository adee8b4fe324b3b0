// `qdelta eval`: its files, its messages, and Ctrl-C.
#include <sys/stat.h>

#include "cli/training_testing.h"
#include "data/byte_tokenizer.h"
#include "infer/generating_case.h"
#include "model/checkpoint.h"

namespace qdelta::testing {
namespace {

class EvalCommand : public ::testing::Test {
 protected:
  EvalCommand() {
    save_model(folder_.file("model"), *speaking_model(speaking_config()));
    save_tokenizer(ByteTokenizer(), folder_.file("model"));
    write_file(folder_.file("piqa.jsonl"),
               "{\"goal\": \"cross a river\", \"sol1\": \"take the bridge\", \"sol2\": \"wait\", \"label\": 0}\n"
               "{\"goal\": \"turn a wheel\", \"sol1\": \"push\", \"sol2\": \"ask it\", \"label\": 1}\n");
  }
  [[nodiscard]] Words words(const std::string& tasks, const Words& more = {}) const {
    return joined(
        {"eval", "--model", folder_.file("model"), "--data", folder_.path(), "--threads", "1", "--tasks", tasks}, more);
  }
  [[nodiscard]] nlohmann::json results() const { return nlohmann::json::parse(read_file(folder_.file("out.json"))); }

  const TemporaryFolder folder_;
};

TEST_F(EvalCommand, WritesResultsSettingsAndExamples) {
  const RunResult result = run_well(words("piqa,mqar", {"--mqar", "16:2:3", "--out", folder_.file("out.json"),
                                                        "--log-examples", folder_.file("log.jsonl")}));
  EXPECT_TRUE(contains(result.out, "acc_norm")) << result.out;
  EXPECT_TRUE(contains(result.out, "mqar_16_2")) << result.out;
  const nlohmann::json json = results();
  EXPECT_EQ(json["results"]["piqa"]["examples"], 2);
  EXPECT_EQ(json["settings"]["bos"], "auto");
  EXPECT_EQ(json["settings"]["batch"], 8);
  EXPECT_EQ(json["settings"]["data"], folder_.path());
  EXPECT_EQ(json["model"]["hash"].get<std::string>().size(), 16U);
  EXPECT_EQ(lines_in(folder_.file("log.jsonl")), 5U);
  const std::string log = read_file(folder_.file("log.jsonl"));
  const nlohmann::json first = nlohmann::json::parse(log.substr(0, log.find('\n')));
  EXPECT_EQ(first["texts"][0][0], "Question: cross a river\nAnswer:");
  EXPECT_EQ(first["log_likelihoods"].size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("out.json.journal")));
}

TEST_F(EvalCommand, RecallWithRewrites) {
  static_cast<void>(run_well(words("mqar", {"--mqar", "16:2:3", "--rewrites", "3", "--out", folder_.file("out.json"),
                                            "--log-examples", folder_.file("log.jsonl")})));
  EXPECT_EQ(results()["results"]["mqar_16_2_rewrites_3"]["examples"], 3);
  EXPECT_EQ(results()["settings"]["rewrites"], 3);
  const std::string log = read_file(folder_.file("log.jsonl"));
  const nlohmann::json first = nlohmann::json::parse(log.substr(0, log.find('\n')));
  std::map<int, int> last_value;
  for (std::size_t i = 0; i < 10; i += 2) last_value[first["tokens"][i]] = first["tokens"][i + 1];
  EXPECT_EQ(last_value.size(), 2U);
  int asked = 0;
  for (std::size_t i = 10; i < 16; ++i) {
    if (first["targets"][i] == -1) continue;
    EXPECT_EQ(first["targets"][i], last_value.at(first["tokens"][i]));
    ++asked;
  }
  EXPECT_EQ(asked, 2);
  const auto refuse = [&](const Words& more, const std::vector<std::string>& pieces) {
    expect_failure(run_qdelta(words("mqar", more)), 1, pieces);
  };
  refuse({"--rewrites", "2"}, {"--rewrites 2", "paper"});
  refuse({"--mqar", "16:2:3", "--rewrites", "-2"}, {"rewrites", "-2"});
  refuse({"--mqar", "16:2:3", "--rewrites", "5"}, {"2 pairs, 5 rewrites", "18 tokens", "16"});
}

TEST_F(EvalCommand, ADryRunOnlyWritesWhatWouldBeAsked) {
  expect_failure(run_qdelta(words("piqa", {"--dry-run"})), 1, {"--log-examples"});
  static_cast<void>(run_well(words("piqa", {"--dry-run", "--log-examples", folder_.file("log.jsonl")})));
  EXPECT_EQ(lines_in(folder_.file("log.jsonl")), 2U);
  EXPECT_FALSE(contains(read_file(folder_.file("log.jsonl")), "values"));
}

TEST_F(EvalCommand, SaysWhatIsWrong) {
  expect_failure(run_qdelta(words("pika")), 1, {"pika", "piqa", "niah_single_1"});
  expect_failure(run_qdelta(words("boolq")), 1, {"boolq_val.jsonl", folder_.path()});
  expect_failure(run_qdelta(words("piqa", {"--bos", "perhaps"})), 1, {"perhaps", "auto"});
  expect_failure(run_qdelta(words("piqa", {"--batch", "0"})), 1, {"batch"});
  expect_failure(run_qdelta(words("piqa", {"--limit", "-1"})), 1, {"limit"});
  expect_failure(run_qdelta(words("piqa", {"--max-length", "1"})), 1, {"max-length"});
  expect_failure(run_qdelta(words("niah_single_1", {"--lengths", "100"})), 1, {"100"});
  expect_failure(run_qdelta(words("niah_single_1", {"--lengths", "0"})), 1, {"lengths"});
  expect_failure(run_qdelta(words("niah_single_2", {"--ruler-data", folder_.path()})), 1, {"adjectives.txt"});
  expect_failure(run_qdelta(words("piqa", {"--out", folder_.file("no/out.json")})), 1, {"no/out.json"});
  expect_failure(run_qdelta(words("piqa", {"--out", folder_.path()})), 1, {"folder"});
  write_file(folder_.file("piqa.jsonl"), "{\"goal\": \"g\"\n");
  expect_failure(run_qdelta(words("piqa")), 1, {"piqa.jsonl: line 1"});
}

// Results are replaced, an empty file is filled, and whatever else has the name stays as it is.
TEST_F(EvalCommand, AFileThatIsNoResultIsNotReplaced) {
  const std::string out = folder_.file("out.json");
  for (const char* flag : {"--out", "--harness-out"}) {
    const Words args = words("mqar", {"--mqar", "16:2:3", flag, out});
    for (const char* other :
         {R"({"results": [1, 2]})", R"({"model_source": 3, "results": {}})", "[1, 2]", "notes", "{"}) {
      write_file(out, other);
      expect_failure(run_qdelta(args), 1, {out, "no result of qdelta eval", flag});
      EXPECT_EQ(read_file(out), other);
    }
    EXPECT_FALSE(std::filesystem::exists(out + ".journal"));
    write_file(out, "");
    for (int time = 0; time < 2; ++time) {
      static_cast<void>(run_well(args));
      EXPECT_TRUE(results().contains("results"));
    }
  }
}

TEST_F(EvalCommand, AFullDiskLosesNothing) {
  const std::string journal = folder_.file("out.json.journal");
  const Words args = words("mqar", {"--mqar", "16:2:100", "--out", folder_.file("out.json")});
  const RunResult full = run_with_file_limit(args, 2000);
  EXPECT_EQ(full.status, 1);
  EXPECT_TRUE(contains(full.err, "out.json.journal")) << full.err;
  EXPECT_GT(lines_in(journal), 5U);
  EXPECT_TRUE(contains(run_well(args).out, "Going on after"));
  EXPECT_EQ(results()["results"]["mqar_16_2"]["examples"], 100);
}

TEST_F(EvalCommand, APipeInTheJournalsPlaceIsNamed) {
  ASSERT_EQ(::mkfifo(folder_.file("out.json.journal").c_str(), 0600), 0);
  expect_failure(run_qdelta(words("mqar", {"--mqar", "16:2:3", "--out", folder_.file("out.json")})), 1,
                 {"out.json.journal", "not a file"});
}

TEST_F(EvalCommand, GoesOnAfterCtrlC) {
  const std::string journal = folder_.file("out.json.journal");
  const Words args = words("mqar", {"--mqar", "256:4:400", "--batch", "2"});
  const Words kept = joined(args, {"--out", folder_.file("out.json")});
  static_cast<void>(run_well(kept));
  const nlohmann::json expected = results()["results"];
  std::filesystem::remove(folder_.file("out.json"));
  Program program(kept);
  ASSERT_TRUE(wait_until([&] { return lines_in(journal) > 3; }));
  program.send(SIGINT);
  const RunResult stopped = program.wait();
  EXPECT_EQ(stopped.status, 130) << stopped.err;
  EXPECT_TRUE(contains(stopped.out, "to go on, give the same command")) << stopped.out;
  EXPECT_FALSE(std::filesystem::exists(folder_.file("out.json")));
  // Not with other settings.
  expect_failure(run_qdelta(joined(kept, {"--seed", "5"})), 1, {"--restart", "journal"});
  EXPECT_TRUE(contains(run_well(kept).out, "Going on after"));
  EXPECT_EQ(results()["results"], expected);
  EXPECT_FALSE(std::filesystem::exists(journal));
}

}  // namespace
}  // namespace qdelta::testing
