// `qdelta info --model`: sizes against the counts that were published, and against the memory the engine takes.
#include <nlohmann/json.hpp>

#include "cli_testing.h"
#include "model/checkpoint.h"
#include "train/trainer.h"

namespace qdelta::testing {
namespace {

// A configuration of the repository.
std::string config_path(const std::string& name) { return QDELTA_GOLDEN_DIR "/../../configs/" + name + ".json"; }

nlohmann::json info_of(const std::string& model, const std::vector<std::string>& more = {}) {
  std::vector<std::string> args{"info", "--json", "--model", model};
  args.insert(args.end(), more.begin(), more.end());
  const RunResult result = run_qdelta(args);
  EXPECT_EQ(result.status, 0) << result.err;
  return result.status == 0 ? nlohmann::json::parse(result.out) : nlohmann::json();
}

TEST(ModelInfo, PublishedSizes) {
  const nlohmann::json small = info_of(config_path("340M"));
  EXPECT_EQ(small.at("rule"), "q_delta");
  EXPECT_EQ(small.at("layers"), 21);
  EXPECT_EQ(small.at("width"), 1024);
  EXPECT_EQ(small.at("parameters").at("total"), 380'017'148);
  EXPECT_EQ(small.at("parameters").at("embedding"), 32000 * 1024);
  EXPECT_EQ(small.at("parameters").at("head"), 32000 * 1024);
  const nlohmann::json large = info_of(config_path("1.3B"));
  EXPECT_EQ(large.at("width"), 2048);
  EXPECT_EQ(large.at("parameters").at("total"), 1'387'606'780);
  // A state is 6 matrices of 256 x 512 in each layer and three tokens of q, k and v.
  EXPECT_EQ(large.at("state_bytes"), 21 * 4 * (6 * 256 * 512 + 3 * 6 * (256 + 256 + 512)));
}

TEST(ModelInfo, ForPeople) {
  const RunResult result = run_qdelta({"info", "--model", config_path("340M"), "--rows", "2", "--seq-len", "1024"});
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* piece :
       {"340M.json", "Q-Delta (q_delta)", "21 of width 1024", "6, keys of 128, values of 256", "380,017,148",
        "32,768,000", "per sequence", "2 x 1024 tokens", "optimizer", "activations", "with recomputation"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece << " in " << result.out;
  }
}

// The same shapes with another mixer: one key more.
TEST(ModelInfo, OfMamba) {
  const TemporaryFolder folder;
  nlohmann::json config = nlohmann::json::parse(read_file(config_path("340M")));
  config["rule"] = "mamba";
  write_file(folder.file("config.json"), config.dump());
  const nlohmann::json json = info_of(folder.path());
  EXPECT_EQ(json.at("rule"), "mamba");
  EXPECT_EQ(json.at("inner_width"), 2048);
  EXPECT_EQ(json.at("state_size"), 16);
  EXPECT_EQ(json.at("dt_rank"), 64);
  EXPECT_EQ(json.at("parameters").at("total"), 387'236'864);
  EXPECT_EQ(json.at("state_bytes"), 21 * 4 * (16 + 3) * 2048);
  const RunResult people = run_qdelta({"info", "--model", folder.path()});
  for (const char* piece : {"Mamba (mamba)", "2048 of 16 states", "rank 64", "387,236,864"}) {
    EXPECT_TRUE(contains(people.out, piece)) << piece << " in " << people.out;
  }
}

TEST(ModelInfo, OfLayersThatDiffer) {
  const TemporaryFolder folder;
  ModelConfig config;
  config.num_hidden_layers = 3;
  config.choose_mixer("q_delta,mamba,gated_delta");
  write_file(folder.file("config.json"), config_to_json(config).dump());
  const nlohmann::json json = info_of(folder.path());
  EXPECT_EQ(json.at("rule"), "q_delta,mamba,gated_delta");
  EXPECT_EQ(json.at("layer_types"), (nlohmann::json{"q_delta", "mamba", "gated_delta"}));
  EXPECT_EQ(json.at("value_heads"), 6);
  EXPECT_EQ(json.at("inner_width"), 2048);
  const ParameterLayout layout(config);
  EXPECT_EQ(json.at("parameters").at("blocks"), layout.block_parameters);
  EXPECT_EQ(layout.block_parameters[0] - layout.block_parameters[2], 6 * 1024 + 1);  // lamb_proj and lamb_bias
  EXPECT_EQ(json.at("state_bytes"), ModelStates(config, 1).bytes());
  const RunResult people = run_qdelta({"info", "--model", folder.path()});
  for (const char* piece : {"Q-Delta + Mamba + Gated DeltaNet (q_delta,mamba,gated_delta)",
                            "Layer types     q_delta, mamba, gated_delta", "6, keys of 128", "2048 of 16 states"}) {
    EXPECT_TRUE(contains(people.out, piece)) << piece << " in " << people.out;
  }
}

// Every number is the engine's own.
TEST(ModelInfo, MemoryIsWhatTheEngineTakes) {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    ModelConfig config;
    config.choose_mixer(tied ? "mamba" : "q_delta");
    config.vocab_size = 70;
    config.hidden_size = 48;
    config.num_hidden_layers = 3;
    config.num_heads = 2;
    config.num_v_heads = 4;
    config.head_dim = 16;
    config.tie_word_embeddings = tied;
    LanguageModel model(config);
    save_model(folder.path(), model);
    const nlohmann::json json = info_of(folder.path(), {"--rows", "3", "--seq-len", "100"});
    EXPECT_EQ(json.at("parameters").at("total"), model.layout().parameters());
    EXPECT_EQ(json.at("parameters").at("head"), tied ? 0 : 70 * 48);
    const std::int64_t block = json.at("parameters").at("block");
    EXPECT_EQ(3 * block + (tied ? 1 : 2) * 70 * 48 + 48, model.layout().parameters());
    EXPECT_EQ(json.at("state_bytes"), ModelStates(config, 1).bytes());
    EXPECT_EQ(json.at("weight_bytes"), model.parameters().size_bytes());
    const nlohmann::json& training = json.at("training");
    EXPECT_EQ(training.at("optimizer_bytes"), OptimizerState(model.layout().size).memory.size());
    const std::size_t kept = ModelRunner::training_bytes(model.layout(), {}, 3, 100, Recompute::none);
    const std::size_t recomputed = ModelRunner::training_bytes(model.layout(), {}, 3, 100, Recompute::all);
    EXPECT_EQ(training.at("activation_bytes"), kept);
    EXPECT_EQ(training.at("activation_bytes_recomputed"), recomputed);
    EXPECT_LT(recomputed, kept);
    EXPECT_EQ(training.at("total_bytes"), 4 * model.parameters().size_bytes() + kept);
  }
}

TEST(ModelInfo, WhatIsNoModelIsNamed) {
  const TemporaryFolder folder;
  expect_failure(run_qdelta({"info", "--model", "/nowhere"}), 1, {"/nowhere"});
  expect_failure(run_qdelta({"info", "--model", folder.path()}), 1, {folder.path() + "/config.json"});
  write_file(folder.file("config.json"), "not JSON");
  expect_failure(run_qdelta({"info", "--model", folder.path()}), 1, {"config.json: not valid JSON"});
  write_file(folder.file("config.json"), R"({"hidden_size": "wide"})");
  expect_failure(run_qdelta({"info", "--model", folder.path(), "--json"}), 1, {"config.json", "hidden_size", "wide"});
  expect_failure(run_qdelta({"info", "--model", ""}), 1, {"cannot open"});
  expect_failure(run_qdelta({"info", "--model", config_path("tiny"), "--rows", "0"}), 1, {"--rows is 0"});
  expect_failure(run_qdelta({"info", "--model", config_path("tiny"), "--seq-len", "-5"}), 1, {"--seq-len is -5"});
  expect_failure(run_qdelta({"info", "--rows", "2"}), 2, {"--rows", "--model"});
}

}  // namespace
}  // namespace qdelta::testing
