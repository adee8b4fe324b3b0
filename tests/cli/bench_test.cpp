// `qdelta bench train`, `bench generate` and `bench serve` on models so small that only the shape of the results is
// worth a look.
#include <nlohmann/json.hpp>

#include "training_testing.h"

namespace qdelta::testing {
namespace {

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kTiny = {"--hidden-size", "32", "--layers", "2", "--heads", "2", "--head-dim", "16", "--vocab-size", "50"};

TEST(Bench, HelpTeaches) {
  for (const char* name : {"train", "generate"}) {
    const RunResult result = run_qdelta({"bench", name, "--help"});
    EXPECT_EQ(result.status, 0) << name;
    for (const char* piece :
         {"--model-config", "--hidden-size", "--layers", "--heads", "--head-dim", "--vocab-size", "4096", "--rule",
          "--threads", "--json", "--baseline", "--tolerance", "limit", "medians", "Example"}) {
      EXPECT_TRUE(contains(result.out, piece)) << name << ": " << piece;
    }
  }
  const std::string train = run_qdelta({"bench", "train", "--help"}).out;
  for (const char* piece : {"--rows", "--seq-len"}) EXPECT_TRUE(contains(train, piece)) << piece;
  for (const char* former : {"--batch", "--tokens"}) EXPECT_FALSE(contains(train, former)) << former;
  const std::string group = run_qdelta({"bench", "--help"}).out;
  for (const char* name : {"op", "train", "generate"}) EXPECT_TRUE(contains(group, name)) << group;
}

TEST(Bench, Train) {
  const TemporaryFolder folder;
  const std::string file = folder.file("train.json");
  const RunResult result = run_qdelta(
      with({"bench", "train"},
           with(kTiny, {"--rows", "1,2", "--seq-len", "20", "--steps", "1", "--threads", "1", "--json", file})));
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* piece :
       {"q_delta, 2 layers of width 32, 2 heads of 16 x 32, vocabulary of 50", "parameters", "batch", "ms per step",
        "tokens/s", "GFLOP/s", "of limit", "Threads: 1", "matrix product", "train.json", "ms by kind of work",
        "products", "recurrence", "norms", "convolution", "mlp", "loss", "optimizer", "between them"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece << " in " << result.out;
  }
  const nlohmann::json json = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(json.at("version"), QDELTA_VERSION);
  EXPECT_EQ(json.at("threads"), 1);
  EXPECT_EQ(json.at("model").at("rule"), "q_delta");
  EXPECT_EQ(json.at("model").at("width"), 32);
  EXPECT_EQ(json.at("model").at("vocab_size"), 50);
  EXPECT_GT(json.at("model").at("parameters"), 0);
  const double flop = json.at("flop_per_token");
  EXPECT_GT(flop, 6.0 * (json.at("model").at("parameters").get<double>() - 50 * 32));
  ASSERT_EQ(json.at("rows").size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const nlohmann::json& row = json.at("rows").at(i);
    EXPECT_EQ(row.at("batch"), i + 1);
    EXPECT_EQ(row.at("tokens"), 20);
    EXPECT_GT(row.at("limit"), 0.0);
    // Every kind of work has a share of the step, and together they are no more than it.
    double sum = 0;
    for (const auto& [kind, seconds] : row.at("timed_step").at("by_work").items()) {
      EXPECT_GT(seconds.get<double>(), 0.0) << kind;
      sum += seconds.get<double>();
    }
    EXPECT_LE(sum, row.at("timed_step").at("seconds").get<double>());
    EXPECT_EQ(row.at("peak_gpu_bytes"), 0);
    const double speed = row.at("tokens_per_s");
    EXPECT_NEAR(speed * row.at("seconds_per_step").get<double>(), 20.0 * static_cast<double>(i + 1), 1e-6);
    EXPECT_NEAR(row.at("flop_per_s").get<double>() / (speed * flop), 1.0, 1e-6);
  }
}

TEST(Bench, Op) {
  const TemporaryFolder folder;
  const std::string file = folder.file("op.json");
  const RunResult result = run_qdelta(
      {"bench", "op", "--shapes", "2x8x16", "--tokens", "1,70", "--batch", "3", "--threads", "1", "--json", file});
  ASSERT_EQ(result.status, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(json.at("device"), "cpu");
  EXPECT_EQ(json.at("batch"), 3);
  std::vector<std::string> ops;
  for (const nlohmann::json& row : json.at("rows")) {
    ops.push_back(row.at("op"));
    const double tokens = row.at("tokens").get<double>() * 3;
    EXPECT_NEAR(row.at("us_per_token").get<double>() * tokens, row.at("seconds").get<double>() * 1e6, 1e-3);
    EXPECT_LT(row.at("error"), 1e-5) << ops.back();
    // The larger of the two floors, and how much of the time it is.
    const double floor =
        std::max(row.at("bytes_floor_seconds").get<double>(), row.at("flop_floor_seconds").get<double>());
    EXPECT_GT(floor, 0.0);
    EXPECT_NEAR(row.at("of_limit").get<double>() * row.at("seconds").get<double>() / floor, 1.0, 1e-6);
    EXPECT_LE(row.at("best_seconds"), row.at("seconds"));
    EXPECT_TRUE(row.at("doubt").is_string());
  }
  EXPECT_EQ(ops, (std::vector<std::string>{"step", "forward", "backward", "training"}));

  const RunResult none = run_qdelta({"bench", "op", "--batch", "0"});
  EXPECT_NE(none.status, 0);
  EXPECT_TRUE(contains(none.err, "--batch")) << none.err;
}

// Times that nothing can be slower or faster than, in the file of an earlier run.
TEST(Bench, IsComparedWithAnEarlierRun) {
  const TemporaryFolder folder;
  const auto beside = [&](double seconds) {
    const nlohmann::json row{{"op", "step"}, {"heads", 1}, {"K", 8}, {"V", 8}, {"tokens", 1}, {"seconds", seconds}};
    write_file(folder.file("earlier.json"),
               nlohmann::json{{"benchmark", "op"}, {"rows", nlohmann::json::array({row})}}.dump());
    return run_qdelta({"bench", "op", "--shapes", "1x8x8,1x8x4", "--tokens", "1", "--threads", "1", "--tolerance", "50",
                       "--baseline", folder.file("earlier.json")});
  };
  const RunResult slower = beside(1e-12);
  EXPECT_EQ(slower.status, 1) << slower.out;
  EXPECT_TRUE(contains(slower.out, "times as long: op step, heads 1, K 8, V 8, tokens 1")) << slower.out;
  EXPECT_TRUE(contains(slower.out, "not in the baseline: op step, heads 1, K 8, V 4, tokens 1")) << slower.out;
  EXPECT_TRUE(contains(slower.out, "1 of 1 are more than 50 % slower")) << slower.out;
  const RunResult faster = beside(1e12);
  EXPECT_EQ(faster.status, 0) << faster.out;
  EXPECT_TRUE(contains(faster.out, "Nothing is more than 50 % slower")) << faster.out;
  // Before anything is measured.
  expect_failure(run_qdelta({"bench", "op", "--baseline", folder.file("none.json")}), 1, {"none.json"});
  expect_failure(run_qdelta({"bench", "train", "--tolerance", "-1"}), 1, {"--tolerance is -1"});
}

TEST(Bench, Generate) {
  const TemporaryFolder folder;
  const std::string file = folder.file("generate.json");
  const RunResult result =
      run_qdelta(with({"bench", "generate"}, with(kTiny, {"--batch", "1,3", "--prompt", "20,70", "--tokens", "4",
                                                          "--rule", "delta", "--threads", "1", "--json", file})));
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* piece : {"delta, 2 layers of width 32", "prompt", "batch", "ms per step", "tokens/s", "GB/s",
                            "of limit", "prefill / decode", "Threads: 1", "generate.json"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece << " in " << result.out;
  }
  const nlohmann::json json = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(json.at("model").at("rule"), "delta");
  // All weights but the embedding table; the state is the matrices and three tokens of q, k and v.
  const double weights = json.at("weight_bytes");
  EXPECT_EQ(weights, 4 * (json.at("model").at("parameters").get<double>() - 50 * 32));
  EXPECT_EQ(json.at("state_bytes"), 4 * 2 * (2 * 16 * 32 + 3 * (32 + 32 + 64)));
  ASSERT_EQ(json.at("prompts").size(), 2U);
  EXPECT_EQ(json.at("prompts").at(1).at("prompt"), 70);
  for (const nlohmann::json& row : json.at("prompts")) {
    EXPECT_NEAR(row.at("tokens_per_s").get<double>() * row.at("seconds").get<double>(), row.at("prompt"), 1e-6);
    EXPECT_GT(row.at("flop_per_s"), 0.0);
    EXPECT_GT(row.at("limit"), 0.0);
    EXPECT_LE(row.at("best_seconds"), row.at("seconds"));
  }
  const double prefill = json.at("prompts").at(0).at("tokens_per_s");
  ASSERT_EQ(json.at("rows").size(), 2U);
  for (const nlohmann::json& row : json.at("rows")) {
    const double seconds = row.at("seconds_per_step");
    const double speed = row.at("tokens_per_s");
    EXPECT_GT(row.at("limit"), 0.0);
    EXPECT_NEAR(speed * seconds, row.at("batch").get<double>(), 1e-6);
    EXPECT_NEAR(row.at("weight_bytes_per_s").get<double>() * seconds / weights, 1.0, 1e-6);
    EXPECT_NEAR(row.at("prefill_ratio").get<double>() * speed / prefill, 1.0, 1e-6);
  }
  EXPECT_EQ(json.at("rows").at(1).at("batch"), 3);
  const RunResult recent = run_qdelta(with({"bench", "generate"}, with(kTiny, {"--recent-tokens"})));
  EXPECT_EQ(recent.status, 1);
  EXPECT_TRUE(contains(recent.err, "on a GPU only")) << recent.err;
}

TEST(Bench, Serve) {
  const TemporaryFolder folder;
  const std::string file = folder.file("serve.json");
  const std::string drawing = folder.file("serve.svg");
  const RunResult result = run_qdelta(
      with({"bench", "serve"},
           with(kTiny, {"--clients", "1,3", "--prompt", "4-9",  "--tokens",  "6", "--seconds",       "0.4",
                        "--warm-up", "0.1", "--rate",   "20",   "--threads", "1", "--cached-prefix", "150,300",
                        "--json",    file,  "--svg",    drawing})));
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* piece :
       {"tokens/s", "generate", "first token", "between tokens", "p99", "20/s", "unlike", "cached", "Threads: 1"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece << " in " << result.out;
  }
  const auto json = nlohmann::json::parse(read_file(file));
  ASSERT_EQ(json["rows"].size(), 3U);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["tokens_per_s"], 0) << row;
    EXPECT_GT(row["generate_tokens_per_s"], 0) << row;
    EXPECT_GT(row["first_token_s"]["p50"], 0) << row;
    EXPECT_EQ(row["refused"], 0) << row;
  }
  ASSERT_EQ(json["prefixes"].size(), 2U);
  for (const auto& row : json["prefixes"]) {
    EXPECT_GT(row["unlike_first_token_s"]["p50"], 0) << row;
    EXPECT_GT(row["cached_first_token_s"]["p50"], 0) << row;
    EXPECT_EQ(row["refused"], 0) << row;
  }
  EXPECT_EQ(json["prefixes"][1]["tokens"], 300);
  EXPECT_TRUE(contains(read_file(drawing), "<svg"));
  // Requests from a file.
  write_file(folder.file("requests.jsonl"), "{\"prompt\": [1, 2, 3], \"max_tokens\": 4}\n");
  const Words replay =
      with({"bench", "serve"},
           with(kTiny, {"--clients", "1", "--seconds", "0.2", "--warm-up", "0.1", "--threads", "1", "--replay"}));
  EXPECT_EQ(run_qdelta(with(replay, {folder.file("requests.jsonl")})).status, 0);
  write_file(folder.file("bad.jsonl"), "{}\n");
  expect_failure(run_qdelta(with(replay, {folder.file("bad.jsonl")})), 1, {"bad.jsonl, line 1", "prompt"});
  expect_failure(run_qdelta({"bench", "serve", "--prompt", "9-x"}), 1, {"--prompt is '9-x'"});
  const RunResult backwards = run_qdelta({"bench", "serve", "--prompt", "9-2"});
  EXPECT_EQ(backwards.status, 1);
  EXPECT_TRUE(contains(backwards.err, "9-2 is no range")) << backwards.err;
  const RunResult nobody = run_qdelta({"bench", "serve", "--clients", "0"});
  EXPECT_EQ(nobody.status, 1);
  EXPECT_TRUE(contains(nobody.err, "clients is 0")) << nobody.err;
  const RunResult nothing = run_qdelta({"bench", "serve", "--cached-prefix", "0"});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_TRUE(contains(nothing.err, "a prefix of 0 tokens")) << nothing.err;
}

TEST(Bench, AConfigIsAStartingPoint) {
  const TemporaryFolder folder;
  write_file(folder.file("config.json"),
             R"({"model_type": "gated_deltanet", "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 3,
                 "num_heads": 2, "head_dim": 8, "tie_word_embeddings": true})");
  const RunResult result = run_qdelta({"bench", "generate", "--model-config", folder.path(), "--layers", "1", "--batch",
                                       "1", "--prompt", "3", "--tokens", "1", "--json", folder.file("out.json")});
  ASSERT_EQ(result.status, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(read_file(folder.file("out.json")));
  EXPECT_EQ(json.at("model").at("rule"), "gated_delta");
  EXPECT_EQ(json.at("model").at("layers"), 1);
  EXPECT_EQ(json.at("model").at("width"), 32);
  EXPECT_EQ(json.at("weight_bytes"), 4 * json.at("model").at("parameters").get<std::int64_t>());
}

TEST(Bench, BadOptionsAreNamed) {
  const auto fails = [](const Words& words, int status, const Words& pieces) {
    const RunResult result = run_qdelta(with({"bench"}, words));
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
    for (const std::string& piece : pieces) EXPECT_TRUE(contains(result.err, piece)) << piece << " in " << result.err;
  };
  for (const char* name : {"train", "generate"}) {
    fails({name, "--rule", "rwkv"}, 1, {"'rwkv' is no rule"});
    fails({name, "--model-config", "/nowhere/config.json"}, 1, {"/nowhere/config.json"});
    fails({name, "--hidden-size", "0"}, 1, {"hidden_size is 0"});
    fails({name, "--hidden-size", "wide"}, 2, {"--hidden-size", "wide"});
    fails({name, "--batch", "0"}, 1, {"batch", "0"});  // of train the former names, which still count
    fails({name, "--batch", "1,x"}, 2, {"--batch"});
    fails({name, "--tokens", "0"}, 1, {"token", "0"});
    fails({name, "--speed", "high"}, 2, {"--speed"});
  }
  fails({"train", "--steps", "0"}, 1, {"step", "0"});
  fails({"train", "--rows", "0"}, 1, {"batch", "0"});
  fails({"train", "--seq-len", "0"}, 1, {"token", "0"});
  fails({"train", "--rows", "1", "--batch", "2"}, 2, {"--rows", "--batch"});
  fails({"generate", "--prompt", "-1"}, 1, {"prompt", "-1"});
}

}  // namespace
}  // namespace qdelta::testing
