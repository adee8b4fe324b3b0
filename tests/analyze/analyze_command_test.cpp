// `qdelta analyze`, from the outside: a small model is trained, looked into, and the files are read back.
#include <sstream>

#include "cli/training_testing.h"
#include "plot/plot_testing.h"
#include "plot/png.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

// Fields of a CSV line without quotes, which these tables do not need.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ',') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

// A model for each rule, trained when the first test asks for it.
class AnalyzeCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_file(folder_->file("text.txt"), sample_text(8000));
    write_file(folder_->file("other.txt"), sample_text(1500, 2));
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string model(const std::string& rule) {
    const std::string run = folder_->file("run-" + rule);
    if (!fs::exists(run)) {
      static_cast<void>(run_well(
          joined({"train", "--text", folder_->file("text.txt"), "--out", run, "--rule", rule}, tiny_training("6"))));
    }
    return run + "/checkpoints/step-00000006";
  }
  static Words command(const std::string& rule, const std::string& out, const Words& more = {}) {
    return with({"analyze", "--model", model(rule), "--data", folder_->file("other.txt"), "--out", folder_->file(out),
                 "--tokens", "300", "--length", "160", "--history", "64", "--threads", "1"},
                more);
  }
  static TemporaryFolder* folder_;
};
TemporaryFolder* AnalyzeCommand::folder_ = nullptr;

TEST_F(AnalyzeCommand, WritesAReportThatNeedsNothingElse) {
  const RunResult result = run_well(command("q_delta", "report"));
  EXPECT_TRUE(contains(result.out, "they hold")) << result.out;
  EXPECT_TRUE(contains(result.out, "tokens whose error is above a bound: 0\n")) << result.out;
  EXPECT_TRUE(contains(result.out, "report.html")) << result.out;
  const std::string html = read_file(folder_->file("report/report.html"));
  for (const char* id : {"contraction", "drift", "bound", "values_similarity", "values_pca", "gates", "memory_length",
                         "state_rank", "identities"}) {
    EXPECT_TRUE(contains(html, std::string("<section id=\"") + id + "\">")) << id;
    const std::string svg = read_file(folder_->file(std::string("report/") + id + ".svg"));
    plot::testing::expect_tidy(svg, id);
    EXPECT_TRUE(contains(html, svg)) << id;
    if (plot::can_write_png()) {
      EXPECT_TRUE(read_file(folder_->file(std::string("report/") + id + ".png")).starts_with("\x89PNG\r\n")) << id;
    }
  }
  // Nothing is fetched from anywhere: the only addresses are the name of SVG's own language.
  std::size_t addresses = 0;
  std::size_t names = 0;
  for (std::size_t at = html.find("://"); at != std::string::npos; at = html.find("://", at + 1)) ++addresses;
  for (std::size_t at = html.find("xmlns="); at != std::string::npos; at = html.find("xmlns=", at + 1)) ++names;
  EXPECT_EQ(addresses, names);
  EXPECT_FALSE(contains(html, "<script"));
  // The page is well-formed XML after its first line.
  EXPECT_NO_THROW(static_cast<void>(plot::testing::read_svg(html.substr(html.find('\n') + 1))));
}

TEST_F(AnalyzeCommand, TablesHaveANumberInEveryColumn) {
  static_cast<void>(run_well(command("q_delta", "tables")));
  std::size_t tables = 0;
  for (const auto& entry : fs::directory_iterator(folder_->file("tables"))) {
    if (entry.path().extension() != ".csv") continue;
    ++tables;
    std::istringstream in(read_file(entry.path()));
    std::string line;
    std::getline(in, line);
    const std::size_t columns = fields_of(line).size();
    std::size_t rows = 0;
    for (; std::getline(in, line); ++rows) {
      EXPECT_EQ(fields_of(line).size(), columns) << entry.path() << ": " << line;
      EXPECT_FALSE(contains(line, "nan") || contains(line, "inf")) << entry.path() << ": " << line;
    }
    EXPECT_GT(rows, 0) << entry.path();
  }
  EXPECT_EQ(tables, 14);
}

TEST_F(AnalyzeCommand, LayersAndHeadsCanBeChosen) {
  static_cast<void>(run_well(command("q_delta", "chosen", {"--layers", "1", "--heads", "0-1"})));
  std::istringstream in(read_file(folder_->file("chosen/contraction.csv")));
  std::string line;
  std::vector<std::string> names;
  while (std::getline(in, line)) names.push_back(line.substr(0, 4));
  EXPECT_EQ(names, (std::vector<std::string>{"laye", "1,0,", "1,1,"}));
}

TEST_F(AnalyzeCommand, WhatDoesNotApplyIsLeftOutAndSaidSo) {
  const RunResult result = run_well(command("linear", "linear"));
  EXPECT_TRUE(contains(result.out, "left out")) << result.out;
  EXPECT_FALSE(fs::exists(folder_->file("linear/contraction.csv")));
  EXPECT_FALSE(fs::exists(folder_->file("linear/gates.svg")));
  const std::string html = read_file(folder_->file("linear/report.html"));
  EXPECT_TRUE(contains(html, "<section id=\"left_out\">"));
  EXPECT_TRUE(contains(html, "Linear attention only adds to its memory"));
  EXPECT_TRUE(contains(html, "<section id=\"identities\">"));
}

TEST_F(AnalyzeCommand, AScanHasNothingToLookAt) {
  expect_failure(run_qdelta(command("mamba", "mamba")), 1, {"Mamba has no keys and queries"});
}

TEST_F(AnalyzeCommand, SaysWhatIsWrong) {
  const auto fails = [&](const Words& more, const std::vector<std::string>& pieces) {
    expect_failure(run_qdelta(command("q_delta", "bad", more)), 1, pieces);
  };
  fails({"--layers", "2"}, {"--layers", "names 2", "0 to 1"});
  fails({"--layers", "1-"}, {"--layers is '1-'"});
  fails({"--layers", "99999999999999999999"}, {"--layers is '99999999999999999999'"});
  fails({"--layers", "1-0"}, {"goes backwards"});
  fails({"--heads", "x"}, {"--heads is 'x'"});
  fails({"--tokens", "1"}, {"tokens is 1"});
  fails({"--history", "0"}, {"history is 0"});
  fails({"--data", folder_->file("none.txt")}, {"none.txt"});
  fails({"--model", folder_->path()}, {"config.json"});
  fails({"--dtype", "bf16"}, {"bf16"});
  write_file(folder_->file("empty.txt"), "");
  fails({"--data", folder_->file("empty.txt")}, {"empty.txt"});
  EXPECT_FALSE(fs::exists(folder_->file("bad")));
}

TEST_F(AnalyzeCommand, AFullDiskLeavesNoHalfFile) {
  const RunResult result = run_with_file_limit(command("q_delta", "full"), 4096);
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.err, "qdelta: ")) << result.err;
  EXPECT_FALSE(fs::exists(folder_->file("full/report.html")));
  for (const auto& entry : fs::directory_iterator(folder_->file("full"))) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

// Ten seconds of work, so that it is in the middle of it.
TEST_F(AnalyzeCommand, InterruptedItWritesNothing) {
  const Words words =
      command("q_delta", "stopped",
              {"--data", folder_->file("text.txt"), "--tokens", "8000", "--length", "8000", "--history", "8000"});
  Program program(words);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  program.send(SIGINT);
  const RunResult result = program.wait_at_most(std::chrono::seconds(60));
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_FALSE(fs::exists(folder_->file("stopped")));
}

}  // namespace
}  // namespace qdelta::testing
