// Variants, results and tables of a comparison.
#include "compare/comparison.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include "cli/cli_testing.h"
#include "compare/comparison_figure.h"
#include "io/run_log.h"

namespace qdelta::compare::testing {
namespace {

using qdelta::testing::expect_error;
using qdelta::testing::TemporaryFolder;
using qdelta::testing::write_file;

TEST(Variants, RulesAndAblations) {
  const std::vector<Variant> variants = variants_of("q_delta,gated_delta@no_decay,q_delta@lambda=0.5@no_decay");
  ASSERT_EQ(variants.size(), 3);
  EXPECT_EQ(variants[0].title(), "Q-Delta");
  EXPECT_EQ(variants[1].title(), "Gated DeltaNet, no decay");
  EXPECT_EQ(variants[2].title(), "Q-Delta, λ = 0.5, no decay");
  const ModelConfig config = variants[2].applied({});
  EXPECT_EQ(config.fixed_lambda, 0.5);
  EXPECT_FALSE(config.use_decay);
  EXPECT_EQ(variants[1].applied({}).mixer, "gated_delta");
  EXPECT_EQ(variants_of("mamba")[0].applied({}).mixer, "mamba");
  EXPECT_EQ(paper_ablations().size(), 6);
}

TEST(Variants, WhatIsNoneIsRefusedByName) {
  const auto refused = [](const char* text, const std::vector<std::string>& pieces) {
    expect_error(Status::invalid_argument, pieces, [&] { return variants_of(text); });
  };
  refused("", {"'' is no rule", "q_delta"});
  refused("q_delta,", {"'' is no rule"});
  refused("transformer", {"'transformer' is no rule"});
  refused("q_delta@mu=1", {"'mu=1' is no change"});
  refused("q_delta@lambda=", {"is no number"});
  refused("q_delta@lambda=nan", {"is no number"});
  refused("q_delta@lambda=1e999", {"is no number"});
  refused("q_delta@lambda=0.5x", {"is no number"});
  refused("delta@lambda=0.5", {"DeltaNet has no lambda"});
  refused("mamba@lambda=0.5", {"Mamba has no lambda"});
  refused("linear@no_decay", {"no decay that could be left out"});
  refused("delta,linear,delta", {"'delta' is named twice"});
}

Result result_of(const std::string& variant, std::uint64_t seed, std::map<std::string, double> scores) {
  return {variant, seed, variant == "delta" ? 1000 : 1010, 64, 4, 1.5, std::move(scores)};
}

TEST(Results, ComeBackAsTheyWere) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_result(folder.path()).has_value());
  write_result(folder.path(), result_of("delta", 7, {{"accuracy", 0.1}, {"validation_loss", std::nan("")}}));
  const auto result = read_result(folder.path());
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->variant, "delta");
  EXPECT_EQ(result->seed, 7);
  EXPECT_EQ(result->scores.at("accuracy"), 0.1);
  EXPECT_TRUE(std::isnan(result->scores.at("validation_loss")));
  write_file(folder.file("result.json"), "{\"variant\": 3}");
  expect_error(Status::corrupt, {"result.json is damaged: \"type must be string, but is number"},
               [&] { return read_result(folder.path()); });
  write_file(folder.file("result.json"), "{");
  expect_error(Status::corrupt, {"result.json: not valid JSON"}, [&] { return read_result(folder.path()); });
}

TEST(Settings, AnotherSettingIsNamed) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  claim_settings(out, {{"steps", "4"}, {"lr", "0.1"}});
  EXPECT_NO_THROW(claim_settings(out, {{"steps", "4"}, {"lr", "0.1"}}));
  expect_error(Status::invalid_argument, {"steps: was 4, is 5", "text: was (not given), is a", "lr: was 0.1, is (not"},
               [&] {
                 claim_settings(out, {{"steps", "5"}, {"text", "a"}});
                 return 0;
               });
}

Table sample_table() {
  const std::vector<Result> results{result_of("delta", 1, {{"loss", 1.0}, {"accuracy", 0.5}}),
                                    result_of("q_delta", 1, {{"loss", 0.5}, {"accuracy", 0.75}}),
                                    result_of("delta", 2, {{"loss", 3.0}, {"accuracy", 0.5}})};
  return table_of(variants_of("q_delta,delta,linear"),
                  {{"loss", "loss", true}, {"accuracy", "accuracy", false}, {"other", "other", true}}, results, 6);
}

TEST(Tables, MeanAndSampleDeviation) {
  const Table table = sample_table();
  ASSERT_EQ(table.rows.size(), 2);  // linear has no run yet
  ASSERT_EQ(table.scores.size(), 2);
  const Row& delta = table.rows[1];
  EXPECT_EQ(delta.runs, 2);
  EXPECT_DOUBLE_EQ(delta.scores.at("loss").mean, 2);
  EXPECT_DOUBLE_EQ(delta.scores.at("loss").deviation, std::sqrt(2.0));
  EXPECT_EQ(table.rows[0].scores.at("loss").deviation, 0);
  EXPECT_EQ(table.best(table.scores[0]), 0);
  EXPECT_EQ(table.best(table.scores[1]), 0);
}

TEST(Tables, AsText) {
  const Table table = sample_table();
  EXPECT_EQ(markdown_table(table),
            "| rule | parameters | tokens | seeds | loss ↓ | accuracy ↑ |\n"
            "|---|---:|---:|---:|---:|---:|\n"
            "| Q-Delta | 1,010 (+1.00 %) | 64 | 1 | **0.5000** | **0.7500** |\n"
            "| DeltaNet | 1,000 (+0.00 %) | 64 | 2 | 2.0000 ± 1.4142 | 0.5000 ± 0.0000 |\n"
            "\n"
            "Mean ± sample standard deviation over seeds. In brackets: parameters beyond the smallest model's. 3 of 6 "
            "runs are finished.\n");
  EXPECT_EQ(csv_table(table),
            "variant,parameters,tokens,seeds,score,mean,sd\n"
            "q_delta,1010,64,1,loss,0.5,0\nq_delta,1010,64,1,accuracy,0.75,0\n"
            "delta,1000,64,2,loss,2,1.4142135623730951\ndelta,1000,64,2,accuracy,0.5,0\n");
  const auto json = nlohmann::json::parse(json_table(table));
  EXPECT_EQ(json["rows"][1]["scores"]["loss"]["values"], nlohmann::json({1.0, 3.0}));
  // Columns stand under each other.
  const std::string shown = terminal_table(table);
  EXPECT_NE(shown.find("DeltaNet  1,000 (+0.00 %)      64      2"), std::string::npos) << shown;
}

// Three rules whose curves lie on each other: each is thinner than those below it and has gaps of its own.
TEST(Figures, CurvesOnEachOtherStayVisible) {
  const TemporaryFolder folder;
  std::vector<Result> results;
  const std::vector<std::string> rules{"q_delta", "gated_delta", "delta"};
  for (const std::string& rule : rules) {
    Result& result = results.emplace_back();
    result.variant = rule;
    result.seed = 1;
    result.scores["loss"] = 1;
    const std::string run = run_folder(folder.path(), rule, 1);
    std::filesystem::create_directories(run);
    std::string log;
    for (int step = 1; step <= 40; ++step) {
      log += nlohmann::json{{"step", step}, {"tokens", 64 * step}, {"loss", 3.0 / step}}.dump() + "\n";
    }
    write_file(run + "/" + kRunLogName, log);
  }
  const Table table = table_of(variants_of("q_delta,gated_delta,delta"), {{"loss", "loss", true}}, results, 3);
  const plot::Panel curves = comparison_figure(folder.path(), table).panels.front();
  ASSERT_EQ(curves.series.size(), 3U);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(curves.series[i].y, curves.series[0].y);
    EXPECT_LT(curves.series[i].width, curves.series[i - 1].width);
    EXPECT_NE(curves.series[i].dash, plot::Dash::solid);  // gaps, through which those below are seen
    EXPECT_NE(curves.series[i].dash, curves.series[i - 1].dash);
  }
}

}  // namespace
}  // namespace qdelta::compare::testing
