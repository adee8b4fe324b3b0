// --sequence-parallel under mpirun: sequences over several processes give the numbers of one.
#include <nlohmann/json.hpp>

#include <cstdio>
#include <sstream>

#include "ranks_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class SequenceParallel : public RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    // Documents of any length, from a word to several rows.
    Random random(2);
    std::string documents;
    for (std::uint64_t i = 0; i < 120; ++i) {
      std::string text = sample_text(static_cast<std::size_t>(random.integer(1, 150)), i);
      std::replace(text.begin(), text.end(), '\n', ' ');
      documents += "{\"text\": \"" + text + "\"}\n";
    }
    write_file(documents_, documents);
  }
  [[nodiscard]] Words packed(const std::string& rows) const {
    return with(settings(rows), {"--text", documents_, "--reset-at-documents", "true", "--steps", "4", "--eval-every",
                                 "2", "--seq-len", "48"});
  }

  const std::string documents_ = folder_.file("documents.jsonl");
};

// Three rows of 48 tokens: the cuts lie inside of rows.
TEST_F(SequenceParallel, OnPackedDocumentsGivesTheNumbersOfOneProcess) {
  const Words hybrid{"--rule", "q_delta,mamba"};
  static_cast<void>(run_well(joined(with(packed("3"), hybrid), {"--out", folder_.file("one")})));
  for (const char* parts : {"2", "4"}) {
    run_ranks(std::stoi(parts), joined(with(packed("3"), hybrid), {"--sequence-parallel", parts, "--out",
                                                                   folder_.file(std::string("of") + parts)}));
    expect_alike("one", std::string("of") + parts);
  }
}

// Two groups of two ranks, which have three and four rows of each update, two at a time.
TEST_F(SequenceParallel, WithDataParallelAndUnevenRows) {
  static_cast<void>(run_well(joined(packed("7"), {"--out", folder_.file("one")})));
  run_ranks(4, joined(packed("2"), {"--batch-tokens", "336", "--sequence-parallel", "2", "--recompute", "all", "--out",
                                    folder_.file("groups")}));
  expect_alike("one", "groups");
}

// Parts of which some have no target at all.
TEST_F(SequenceParallel, OnTheRecallTask) {
  const Words words = joined({"train", "--mqar", "24:3:64", "--vocab-size", "64", "--rows", "3", "--warmup", "2",
                              "--threads", "1", "--steps", "3", "--eval-every", "3", "--ema", "0.8"},
                             tiny_model());
  static_cast<void>(run_well(joined(words, {"--out", folder_.file("one")})));
  run_ranks(4, joined(words, {"--sequence-parallel", "4", "--out", folder_.file("of4")}));
  expect_alike("one", "of4");
}

TEST_F(SequenceParallel, ARunMayBeResumedWithAnotherNumber) {
  static_cast<void>(run_well(joined(packed("4"), {"--out", folder_.file("one")})));
  const std::string run = folder_.file("run");
  const auto step_back = [&] { fs::remove_all(run + "/checkpoints/step-00000004"); };
  run_ranks(2, joined(packed("4"), {"--sequence-parallel", "2", "--keep", "3", "--out", run}));
  step_back();
  run_ranks(4, {"train", "--resume", run, "--sequence-parallel", "4"});
  expect_alike("one", "run");
  step_back();
  static_cast<void>(run_well({"train", "--resume", run, "--sequence-parallel", "1"}));
  expect_alike("one", "run");
  step_back();
  expect_failure(run_qdelta({"train", "--resume", run}), 1,
                 {"--sequence-parallel 2: 1 process cannot be divided into groups of so many"});
  expect_failure(run_qdelta({"train", "--resume", run, "--sequence-parallel", "1", "--rows", "3"}), 1,
                 {"--rows is 3 on 1 groups of processes, but was 4 on 1"});
}

TEST_F(SequenceParallel, RefusesWhatCannotBeDivided) {
  const RunResult three = mpirun(3, joined(packed("2"), {"--sequence-parallel", "2", "--out", folder_.file("run")}));
  EXPECT_NE(three.status, 0);
  EXPECT_TRUE(contains(three.out, "rank 0 of 3: --sequence-parallel 2: 3 processes cannot be divided")) << three.out;
  EXPECT_FALSE(fs::exists(folder_.file("run")));
  expect_failure(run_qdelta(joined(packed("2"), {"--sequence-parallel", "0", "--out", folder_.file("run")})), 1,
                 {"--sequence-parallel 0: 1 process cannot be divided"});
}

TEST_F(SequenceParallel, ARankThatIsKilledEndsTheRun) {
  expect_end_when_killed(4, 1, joined(packed("2"), {"--sequence-parallel", "4"}));
}

TEST_F(SequenceParallel, Perplexity) {
  static_cast<void>(run_well(joined(packed("4"), {"--out", folder_.file("one")})));
  const std::string model = newest_checkpoint(folder_.file("one")).value();
  // Stretches of 1024 tokens: two turns and most of a third, and a part of the first one.
  for (const char* limit : {"0", "300"}) {
    const Words words{"perplexity", "--model", model,     "--data", folder_.file("text"),
                      "--threads",  "1",       "--limit", limit};
    const std::string alone = run_well(words).out;
    const RunResult together = mpirun(3, joined(words, {"--sequence-parallel", "3"}));
    EXPECT_EQ(together.status, 0) << together.out;
    const auto measured = [](const std::string& out) {
      long tokens = 0;
      double loss = 0;
      const std::size_t line = out.rfind('\n', out.size() - 2) + 1;
      EXPECT_EQ(std::sscanf(out.c_str() + line, "%ld tokens, loss %lf", &tokens, &loss), 2) << out;
      return std::pair(tokens, loss);
    };
    EXPECT_EQ(measured(together.out).first, measured(alone).first);
    EXPECT_NEAR(measured(together.out).second, measured(alone).second, 2e-5);
  }
  const RunResult wrong =
      mpirun(4, {"perplexity", "--model", model, "--data", folder_.file("text"), "--sequence-parallel", "2"});
  EXPECT_TRUE(contains(wrong.out, "--sequence-parallel 2 on 4 processes: there is one text")) << wrong.out;
}

// Likelihoods over parts of the texts, answers at every position, and texts that are dealt out: as one process has
// them. The shortest has fewer tokens than there are ranks.
TEST_F(SequenceParallel, Eval) {
  static_cast<void>(run_well(joined(packed("4"), {"--out", folder_.file("one")})));
  write_file(folder_.file("own.jsonl"),
             "{\"q\": \"" + std::string(300, 'a') + "\"}\n{\"q\": \"b\"}\n{\"q\": \"c d\"}\n");
  write_file(folder_.file("choice.json"),
             R"({"task": "choice", "data": "own.jsonl", "prompt": "{{q}}", "choices": ["x", "yz"], "answer": "1"})");
  write_file(folder_.file("free.json"),
             R"({"task": "free", "data": "own.jsonl", "prompt": "{{q}}", "answer": "e", "max_tokens": 5})");
  const auto words = [&](const std::string& name) {
    return Words{"eval",
                 "--model",
                 folder_.file("one"),
                 "--mqar",
                 "16:2:3",
                 "--threads",
                 "1",
                 "--tasks",
                 folder_.file("choice.json") + "," + folder_.file("free.json") + ",mqar",
                 "--out",
                 folder_.file(name),
                 "--log-examples",
                 folder_.file(name + ".log")};
  };
  static_cast<void>(run_well(words("alone.json")));
  const auto lines = [&](const std::string& name) {
    std::vector<nlohmann::json> out;
    std::istringstream in(read_file(folder_.file(name + ".log")));
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  };
  for (const int ranks : {2, 4}) {
    const std::string name = fmt::format("of{}.json", ranks);
    const RunResult result = mpirun(ranks, joined(words(name), {"--sequence-parallel", std::to_string(ranks)}));
    ASSERT_EQ(result.status, 0) << result.out;
    const auto expected = lines("alone.json");
    const auto got = lines(name);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      for (const auto& [metric, value] : expected[i]["values"].items()) {
        EXPECT_NEAR(got[i]["values"][metric].get<double>(), value.get<double>(), 1e-5) << got[i].dump();
      }
      EXPECT_EQ(got[i].value("text", ""), expected[i].value("text", ""));
      for (std::size_t c = 0; c < got[i].value("log_likelihoods", nlohmann::json::array()).size(); ++c) {
        EXPECT_NEAR(got[i]["log_likelihoods"][c], expected[i]["log_likelihoods"][c], 1e-4);
      }
    }
    EXPECT_FALSE(fs::exists(folder_.file(name + ".journal")));
  }
  const RunResult wrong = mpirun(4, joined(words("wrong.json"), {"--sequence-parallel", "2"}));
  EXPECT_NE(wrong.status, 0);
  EXPECT_TRUE(contains(wrong.out, "--sequence-parallel 2 on 4 processes: there is one evaluation")) << wrong.out;
}

}  // namespace
}  // namespace qdelta::testing
