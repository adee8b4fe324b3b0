// `qdelta train` told what to do: by flags, by a TOML file, and wrongly.
#include <nlohmann/json.hpp>

#include <regex>
#include <set>

#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;
using Settings = std::map<std::string, std::string>;

class TrainConfig : public ::testing::Test {
 protected:
  TrainConfig() {
    write_file(folder_.file("text"), sample_text(6000));
    write_file(folder_.file("held_out"), sample_text(2000, 2));
    for (const char* name : {"text", "held_out"}) {
      static_cast<void>(
          run_well({"tokenize", "--tokenizer", "bytes", "--out", folder_.file("shards") + name, folder_.file(name)}));
    }
  }
  // In TOML as people write it: numbers and truth values bare, the rest in quotes.
  static std::string toml(const Settings& settings) {
    std::string text = "# a run\n";
    for (const auto& [name, value] : settings) {
      const bool bare = value == "true" || value == "false" || value.find_first_not_of("0123456789.e-") == value.npos;
      text += name + " = " + (bare || value.starts_with('[') ? value : "\"" + value + "\"") + "\n";
    }
    return text;
  }
  RunResult run_config(const std::string& contents, const Words& more = {}) {
    write_file(folder_.file("run.toml"), contents);
    return run_qdelta(joined({"train", "--config", folder_.file("run.toml")}, more));
  }
  // The settings of a small run on the text.
  [[nodiscard]] Settings tiny(const std::string& out) const {
    return {{"text", folder_.file("text")},
            {"out", folder_.file(out)},
            {"hidden-size", "32"},
            {"layers", "1"},
            {"heads", "2"},
            {"head-dim", "8"},
            {"mlp-width", "32"},
            {"seq-len", "32"},
            {"rows", "2"},
            {"warmup", "2"},
            {"threads", "1"},
            {"steps", "4"}};
  }
  // One of the settings another one.
  [[nodiscard]] std::string with(const std::string& name, const std::string& value) const {
    Settings settings = tiny("bad");
    settings[name] = value;
    return toml(settings);
  }
  void expect_refused(const std::string& contents, const std::vector<std::string>& pieces) {
    // What is not refused must not train for ever.
    write_file(folder_.file("run.toml"), contents);
    Program program({"train", "--config", folder_.file("run.toml")});
    const RunResult result = program.wait_at_most(std::chrono::seconds(60));
    EXPECT_EQ(result.status, 1) << contents;
    EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
    for (const std::string& piece : pieces) EXPECT_TRUE(contains(result.err, piece)) << piece << " in " << result.err;
    EXPECT_FALSE(fs::exists(folder_.file("bad/checkpoints"))) << contents;
  }

  TemporaryFolder folder_;
};

// The long names in `qdelta train --help`.
std::set<std::string> flags_of_train() {
  const std::string help = run_well({"train", "--help"}).out;
  const std::string options = help.substr(0, help.find("Examples:"));
  std::set<std::string> names;
  const std::regex flag("\n +(?:-h,)?--([a-z0-9-]+)");
  for (std::sregex_iterator it(options.begin(), options.end(), flag), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

// A value for every flag that may stand beside the others, with shards in `folder`.
Settings all_together(const TemporaryFolder& folder) {
  return {{"resume", "true"},
          {"device", "cpu"},
          {"dtype", "f32"},
          {"threads", "2"},
          {"seed", "5"},
          {"data", folder.file("shardstext")},
          {"validation", folder.file("shardsheld_out")},
          {"tokenizer", "bytes"},
          {"seq-len", "24"},
          {"rows", "3"},
          {"curriculum", "12:2"},
          {"transport", "auto"},
          {"schedule", "linear"},
          {"decay-steps", "0"},
          {"decay-on", "matrices"},
          {"decay-embeddings", "false"},
          {"reset-at-documents", "true"},
          {"context-len", "20"},
          {"validation-rows", "7"},
          {"rule", "q_delta"},
          {"vocab-size", "300"},
          {"hidden-size", "24"},
          {"layers", "1"},
          {"heads", "2"},
          {"v-heads", "4"},
          {"head-dim", "8"},
          {"expand-v", "1.5"},
          {"conv-size", "3"},
          {"mlp-width", "40"},
          {"mlp", "true"},
          {"gate", "false"},
          {"gate-activation", "sigmoid"},
          {"short-conv", "true"},
          {"neg-eigval", "true"},
          {"tie", "true"},
          {"lambda-bias", "-0.5"},
          {"decay", "false"},
          {"steps", "5"},
          {"accumulate", "2"},
          {"lr", "2e-3"},
          {"warmup", "1"},
          {"min-lr-ratio", "0.2"},
          {"beta1", "0.8"},
          {"beta2", "0.9"},
          {"eps", "1e-8"},
          {"weight-decay", "0.05"},
          {"clip", "0.5"},
          {"recompute", "true"},
          {"eval-every", "2"},
          {"save-every", "3"},
          {"keep", "3"},
          {"patience", "50"},
          {"target-accuracy", "0.99"},
          {"ema", "0.9"},
          {"sample-every", "3"},
          {"sample-prompt", "the"}};
}

// Flags that cannot, or that are no settings.
std::set<std::string> flags_apart() {
  return {"help",
          "config",
          "out",
          "text",
          "text-key",
          "bytes",
          "mqar",
          "rewrites",
          "lambda",
          "model-config",
          "expand",
          "state-size",
          "dt-rank",            // and see below; the last ones are Mamba's
          "lambda-bias-start",  // not with a constant one
          "batch-tokens",
          "preset",
          "extend",
          "sequence-parallel",  // under mpirun; sequence_parallel_test.cpp
          "init-from"};         // instead of rows; train_resume_test.cpp
}

TEST_F(TrainConfig, EveryFlagMayStandInAFileAndMeansTheSameThere) {
  const Settings settings = all_together(folder_);
  std::set<std::string> covered = flags_apart();
  for (const auto& [name, value] : settings) covered.insert(name);
  EXPECT_EQ(covered, flags_of_train());

  Words flags{"train", "--out", folder_.file("flags")};
  for (const auto& [name, value] : settings) {
    flags.push_back("--" + name);
    if (name != "resume") flags.push_back(value);
  }
  static_cast<void>(run_well(flags));
  const RunResult result = run_config(toml(settings), {"--out", folder_.file("file")});
  EXPECT_EQ(result.status, 0) << result.err;
  const Numbers numbers = numbers_of(folder_.file("file"));
  expect_same(numbers, numbers_of(folder_.file("flags")));
  EXPECT_EQ(numbers.log.size(), 5U);
  const auto config = [&](const std::string& run) {
    return read_file(newest_checkpoint(folder_.file(run)).value() + "/config.json");
  };
  EXPECT_EQ(config("file"), config("flags"));
  for (const char* run : {"file", "flags"}) {
    EXPECT_TRUE(fs::exists(folder_.file(run) + std::string("/checkpoints/step-00000003")));
  }
  // Each is heeded: the settings of the model are in its config, those of the training in the recipe.
  const nlohmann::json json = nlohmann::json::parse(config("file"));
  EXPECT_EQ(json.at("num_v_heads"), 4);
  EXPECT_EQ(json.at("use_gate"), false);
  EXPECT_EQ(json.at("lamb_bias"), 0.5);
  EXPECT_EQ(json.at("output_gate_activation"), "sigmoid");
  const std::string recipe = numbers.state.at("recipe");
  for (const char* piece :
       {"rows of 24", "at most 20", "a sequence for each document", "2 batches of 3 rows", "5 steps",
        "rate 0.002 after 1", "down to 0.2", "seed 5", "0.8 0.9 1e-08", "decay 0.05", "clip 0.5"}) {
    EXPECT_TRUE(contains(recipe, piece)) << piece << " in " << recipe;
  }
}

TEST_F(TrainConfig, TheOtherSourcesOfDataAndModels) {
  write_file(folder_.file("model.json"), R"({"hidden_size": 24, "num_hidden_layers": 1, "num_heads": 2, "head_dim": 8,
    "intermediate_size": 32, "vocab_size": 258})");
  const RunResult text = run_config(toml({{"text", folder_.file("text")},
                                          {"out", folder_.file("a")},
                                          {"steps", "2"},
                                          {"warmup", "0"},
                                          {"seq-len", "32"},
                                          {"lambda", "0.5"},
                                          {"model-config", folder_.file("model.json")}}));
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(read_file(folder_.file("a/checkpoints/step-00000002/config.json")), "\"fixed_lambda\": 0.5"));
  const RunResult recall = run_config(toml({{"mqar", "32:2:100"},
                                            {"rewrites", "3"},
                                            {"vocab-size", "64"},
                                            {"out", folder_.file("b")},
                                            {"steps", "2"},
                                            {"warmup", "0"},
                                            {"model-config", folder_.file("model.json")},
                                            {"rows", "4"}}));
  EXPECT_EQ(recall.status, 0) << recall.err;
  EXPECT_TRUE(contains(recall.out, "recall examples, vocabulary 64")) << recall.out;
  EXPECT_TRUE(contains(recall.out, "100 of length 32 with 2 pairs and 3 rewrites")) << recall.out;
}

TEST_F(TrainConfig, SeveralFilesAreAList) {
  Settings settings = tiny("list");
  settings.erase("text");
  settings["data"] = "[\"" + folder_.file("shardstext") + "\", \"" + folder_.file("shardsheld_out") + "\"]";
  const RunResult result = run_config(toml(settings));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "8002 tokens in 2 documents")) << result.out;
}

// "[a, b]" in quotes is one path, in the file as behind the flag.
TEST_F(TrainConfig, APathInBracketsIsNoList) {
  Settings settings = tiny("brackets");
  settings.erase("text");
  const std::string rest = toml(settings);
  expect_failure(run_config(rest, {"--data", "[no, where]"}), 1, {"[no, where]"});
  expect_failure(run_config(rest + "data = \"[no, where]\"\n"), 1, {"[no, where]"});
  expect_failure(run_config(rest + "data = [\"" + folder_.file("shardstext") + "\", \"[no, where]\"]\n"), 1,
                 {"[no, where]"});
}

TEST_F(TrainConfig, FlagsWinOverTheFile) {
  const RunResult result = run_config(toml(tiny("run")), {"--steps", "2", "--out", folder_.file("other")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(fs::exists(folder_.file("other/checkpoints/step-00000002")));
  EXPECT_FALSE(fs::exists(folder_.file("run")));
}

TEST_F(TrainConfig, WhatTheFileGetsWrongIsNamed) {
  const std::string file = folder_.file("run.toml");
  expect_refused(with("stepps", "5"), {file, "stepps", "qdelta train --help"});
  expect_refused(toml(tiny("bad")) + "[model]\nlayers = 3\n", {file, "layers", "section"});
  expect_refused("steps = 3\n" + toml(tiny("bad")), {file, "'steps'", "twice"});
  for (const char* bad : {"many", "1.5", "1e400", "", "0x"}) {
    expect_refused(with("steps", bad), {file, "'steps'"});
  }
  for (const char* bad : {"fast", "1.2.3"}) expect_refused(with("lr", bad), {file, "'lr'"});
  expect_refused(with("gate", "perhaps"), {file, "'gate'"});
  expect_refused(with("steps", "[1, 2]"), {file, "'steps'"});
  expect_refused("steps 5\n", {file});
  expect_refused(std::string("\x7f"
                             "ELF\x01\x00\x02",
                             7),
                 {file});
  const RunResult missing = run_qdelta({"train", "--config", folder_.file("nowhere.toml")});
  expect_failure(missing, 1, {folder_.file("nowhere.toml")});
  expect_failure(run_qdelta({"train", "--config", folder_.path()}), 1, {folder_.path()});
}

TEST_F(TrainConfig, ValuesThatMakeNoSenseAreNamed) {
  const std::vector<std::pair<Words, Words>> cases{
      {{"steps", "0"}, {"0 steps"}},
      {{"steps", "-3"}, {"-3"}},
      {{"steps", "99999999999999999999999"}, {"steps"}},
      {{"warmup", "9"}, {"warm-up", "9"}},
      {{"lr", "-1"}, {"learning rate", "-1"}},
      {{"lr", "nan"}, {"learning rate", "nan"}},
      {{"min-lr-ratio", "2"}, {"lowest", "2"}},
      {{"rows", "0"}, {"row"}},
      {{"rows", "-1"}, {"row", "-1"}},
      {{"seq-len", "0"}, {"token"}},
      {{"seq-len", "-7"}, {"-7"}},
      {{"seq-len", "9223372036854775807"}, {"seq-len", "9223372036854775807"}},
      {{"seq-len", "100000"}, {"6000", "100000"}},
      {{"context-len", "-1"}, {"context", "-1"}},
      {{"accumulate", "0"}, {"accumulate", "0"}},
      {{"accumulate", "2147483648"}, {"accumulate", "2147483648", "65536"}},
      {{"eval-every", "-1"}, {"eval-every", "-1"}},
      {{"save-every", "-1"}, {"save-every", "-1"}},
      {{"patience", "-1"}, {"patience", "-1"}},
      {{"target-accuracy", "nan"}, {"target-accuracy", "nan"}},
      {{"target-accuracy", "1.5"}, {"target-accuracy", "1.5"}},
      {{"gate-activation", "relu"}, {"--gate-activation", "relu", "sigmoid"}},
      {{"keep", "0"}, {"keep", "0", "at least 1"}},
      {{"keep", "-2"}, {"keep", "-2", "at least 1"}},
      {{"validation-rows", "-1"}, {"-1"}},
      {{"rule", "q-delta"}, {"q-delta"}},
      {{"hidden-size", "0"}, {"hidden_size"}},
      {{"layers", "1000000000"}, {"num_hidden_layers"}},
      {{"expand-v", "1.3"}, {"expand_v"}},
      {{"vocab-size", "100"}, {"100", "258"}},
      {{"beta1", "1"}, {"beta1"}},
      {{"beta2", "-0.1"}, {"beta2"}},
      {{"eps", "0"}, {"eps"}},
      {{"weight-decay", "-1"}, {"weight decay"}},
      {{"clip", "-1"}, {"gradient norm"}},
      {{"ema", "1"}, {"ema", "less than 1"}},
      {{"sample-every", "-1"}, {"--sample-every", "-1"}},
      {{"sample-prompt", "the"}, {"--sample-prompt", "--sample-every"}},
      {{"device", "tpu"}, {"tpu", "cpu"}},
      {{"device", "cuda:99999999999"}, {"cuda:99999999999", "cuda:N"}},
      {{"dtype", "f16"}, {"f16", "bf16"}},
      {{"dtype", "bf16"}, {"bf16", "--device"}},
      {{"tokenizer", "nothing"}, {"nothing"}},
      {{"text", "nowhere.txt"}, {"nowhere.txt"}},
      {{"text", folder_.path()}, {folder_.path(), "directory"}},
      {{"data", "shards"}, {"--text", "--data", "--mqar"}},
      {{"validation", "shards"}, {"--validation", "--text"}},
      {{"model-config", "nowhere.json"}, {"nowhere.json"}},
  };
  for (const auto& [setting, pieces] : cases) expect_refused(with(setting[0], setting[1]), pieces);
  for (const char* bad : {"64", "64:4", "64x4x100", "64:4:100:", "a:b:c", "papers"}) {
    const RunResult result = run_qdelta({"train", "--mqar", bad, "--out", folder_.file("bad")});
    expect_failure(result, 1, {"--mqar", bad, "LENGTH:PAIRS:EXAMPLES"});
  }
  const auto refuse = [&](const Words& more, const std::vector<std::string>& pieces) {
    expect_failure(run_qdelta(joined({"train", "--out", folder_.file("bad")}, more)), 1, pieces);
  };
  refuse({"--text", folder_.file("text"), "--rewrites", "3"}, {"--rewrites 3", "--mqar"});
  refuse({"--text", folder_.file("text"), "--seq-len", "0", "--batch-tokens", "64"}, {"seq-len is 0"});
  refuse({"--mqar", "paper", "--rewrites", "3"}, {"--rewrites 3", "paper", "LENGTH:PAIRS:EXAMPLES"});
  refuse({"--mqar", "32:2:9", "--rewrites", "-1"}, {"rewrites", "-1"});
  refuse({"--mqar", "32:2:9", "--rewrites", "13"}, {"2 pairs, 13 rewrites", "34 tokens", "32"});
  expect_failure(run_qdelta({"train", "--text", folder_.file("text")}), 1, {"--out"});
  expect_failure(run_qdelta({"train", "--out", folder_.file("bad")}), 1, {"--text", "--data", "--mqar"});
  const RunResult blind = run_qdelta(
      joined({"train", "--data", folder_.file("shardstext"), "--out", folder_.file("bad"), "--patience", "2"},
             tiny_training("4")));
  expect_failure(blind, 1, {"--patience", "--validation"});
}

TEST_F(TrainConfig, WhereTheBiasOfLambdaStarts) {
  const Words tiny_run = joined({"train", "--text", folder_.file("text")}, tiny_training("4"));
  static_cast<void>(run_well(joined(tiny_run, {"--out", folder_.file("start"), "--lambda-bias-start", "-0.9"})));
  const std::string checkpoint = newest_checkpoint(folder_.file("start")).value();
  EXPECT_EQ(nlohmann::json::parse(read_file(checkpoint + "/config.json")).at("initial_lamb_bias"), 0.9);
  expect_failure(run_qdelta(joined(tiny_run, {"--out", folder_.file("both"), "--lambda-bias-start", "-0.9",
                                              "--lambda-bias", "-0.8"})),
                 1, {"--lambda-bias-start", "constant"});
}

TEST_F(TrainConfig, LambdaIsForRulesThatHaveIt) {
  for (const char* rule : {"gated_delta", "linear", "mamba"}) {
    for (const char* flag : {"--lambda", "--lambda-bias", "--lambda-bias-start"}) {
      expect_failure(run_qdelta({"train", "--text", folder_.file("text"), "--out", folder_.file("none"), "--rule", rule,
                                 flag, "0.5"}),
                     1, {"has no lambda"});
    }
  }
}

TEST_F(TrainConfig, AnEmptyTextIsNamed) {
  write_file(folder_.file("text"), "");
  expect_refused(toml(tiny("bad")), {folder_.file("text"), "0 tokens"});
}

}  // namespace
}  // namespace qdelta::testing
