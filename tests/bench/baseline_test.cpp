// Results beside those of an earlier run, made up.
#include "bench/baseline.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "files.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using bench::BaselineComparison;
using bench::compare_with_baseline;
using nlohmann::json;

json op_row(const char* op, int tokens, double seconds) {
  return {{"op", op}, {"heads", 4}, {"K", 8}, {"V", 16}, {"tokens", tokens}, {"chunk", 64}, {"seconds", seconds}};
}
json op_report(const std::vector<json>& rows, const char* version = "1") {
  return {{"version", version}, {"benchmark", "op"}, {"device", "cpu"},
          {"dtype", "f32"},     {"threads", 2},      {"rows", rows}};
}

TEST(Baseline, GivesRatiosAndNamesWhatIsMissing) {
  const json then = op_report({op_row("step", 1, 0.5), op_row("forward", 64, 2), op_row("backward", 64, 4)});
  json now = op_report({op_row("forward", 64, 3), op_row("step", 1, 0.4), op_row("training", 64, 1)}, "2");
  now["threads"] = 4;
  const BaselineComparison comparison = compare_with_baseline(now, then, "old.json");
  ASSERT_EQ(comparison.rows.size(), 2U);
  EXPECT_EQ(comparison.rows[0].name, "op forward, heads 4, K 8, V 16, tokens 64");
  EXPECT_EQ(comparison.rows[0].ratio(), 1.5);
  EXPECT_EQ(comparison.rows[1].ratio(), 0.8);
  EXPECT_EQ(comparison.missing, std::vector<std::string>{"op training, heads 4, K 8, V 16, tokens 64"});
  EXPECT_EQ(comparison.not_measured, std::vector<std::string>{"op backward, heads 4, K 8, V 16, tokens 64"});
  EXPECT_EQ(comparison.differences, (std::vector<std::string>{"version: 2 now, 1 then", "threads: 4 now, 2 then"}));
  ASSERT_EQ(slower_rows(comparison, 49).size(), 1U);
  EXPECT_EQ(slower_rows(comparison, 49).front().name, comparison.rows[0].name);
  EXPECT_TRUE(slower_rows(comparison, 51).empty());
}

TEST(Baseline, RatesAreTimesOfOneToken) {
  const json then{{"benchmark", "serve"}, {"rows", {{{"clients", 4}, {"rate", 0.0}, {"tokens_per_s", 100}}}}};
  const json now{{"benchmark", "serve"}, {"rows", {{{"clients", 4}, {"rate", 0.0}, {"tokens_per_s", 80}}}}};
  EXPECT_DOUBLE_EQ(compare_with_baseline(now, then, "old.json").rows.front().ratio(), 1.25);
}

TEST(Baseline, PromptsAreComparedToo) {
  const auto report = [](double prompt, double step) {
    return json{{"benchmark", "generate"},
                {"prompts", {{{"prompt", 512}, {"seconds", prompt}}}},
                {"rows", {{{"batch", 1}, {"seconds_per_step", step}}}}};
  };
  const BaselineComparison comparison = compare_with_baseline(report(2, 3), report(1, 1), "old.json");
  ASSERT_EQ(comparison.rows.size(), 2U);
  EXPECT_EQ(comparison.rows[0].name, "prompt 512");
  EXPECT_EQ(comparison.rows[0].ratio(), 2);
  EXPECT_EQ(comparison.rows[1].name, "batch 1");
  EXPECT_EQ(comparison.rows[1].ratio(), 3);
}

TEST(Baseline, OfSomethingElseIsRefused) {
  const json now = op_report({op_row("step", 1, 1)});
  json other = now;
  other["dtype"] = "bf16";
  EXPECT_NE(message_of([&] {
              static_cast<void>(compare_with_baseline(now, other, "old.json"));
            }).find("old.json has another dtype, so nothing in it can be compared: bf16, and now it is f32"),
            std::string::npos);
  const json nothing = op_report({op_row("step", 7, 1)});
  EXPECT_NE(message_of([&] {
              static_cast<void>(compare_with_baseline(now, nothing, "old.json"));
            }).find("nothing that was measured now; it has: op step, heads 4"),
            std::string::npos);
}

TEST(Baseline, DamagedFilesAreNamed) {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::string& text) {
    write_file(folder.file("old.json"), text);
    return message_of([&] { static_cast<void>(bench::read_baseline(folder.file("old.json"))); });
  };
  for (const char* wrong : {"", "{", "[]", "3", "{}", R"({"rows": 3})", R"({"rows": []})", R"({"rows": [4]})"}) {
    EXPECT_NE(complaint(wrong).find("old.json"), std::string::npos) << wrong << ": " << complaint(wrong);
  }
  EXPECT_NE(complaint(R"({"rows": [{"op": "step", "seconds": 0}]})").find("seconds"), std::string::npos);
  EXPECT_NE(complaint(R"({"rows": [{"op": "step", "seconds": "1"}]})").find("expected a number above 0"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"rows": [{"op": "step"}]})").find("there is neither seconds"), std::string::npos);
  EXPECT_NE(message_of([&] { static_cast<void>(bench::read_baseline(folder.file("none.json"))); }).find("none.json"),
            std::string::npos);
  write_file(folder.file("old.json"), op_report({op_row("step", 1, 1)}).dump());
  EXPECT_EQ(bench::read_baseline(folder.file("old.json")).at("benchmark"), "op");
}

}  // namespace
}  // namespace qdelta::testing
