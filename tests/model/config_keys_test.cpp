// Every key of config.json is read, must have a value that this engine can run, or is known to change nothing.
#include "model/config_keys.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>

#include "files.h"
#include "model/config.h"
#include "model_case.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Json = nlohmann::json;

// What the libraries have by default, with all keys (make_config_fixtures.py).
std::vector<std::string> recorded_configs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(QDELTA_TESTS_DIR "/model/fixtures/config")) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// A small file of each kind, as others write it.
const std::map<ConfigKind, Json>& kinds() {
  static const Json recurrence{{"vocab_size", 32}, {"hidden_size", 32}, {"num_hidden_layers", 2},
                               {"num_heads", 2},   {"hidden_ratio", 4}, {"hidden_act", "swish"}};
  static const Json mamba{{"vocab_size", 32}, {"hidden_size", 32}, {"num_hidden_layers", 2}, {"model_type", "mamba"}};
  static const auto with = [](Json json, const Json& more) {
    json.update(more);
    return json;
  };
  static const std::map<ConfigKind, Json> all{
      {ConfigKind::ours, with(recurrence, {{"model_type", "qdelta"}, {"head_dim", 16}})},
      {ConfigKind::gated_deltanet, with(recurrence, {{"model_type", "gated_deltanet"}, {"head_dim", 16}})},
      {ConfigKind::delta_net, with(recurrence, {{"model_type", "delta_net"}})},
      {ConfigKind::mamba, mamba}};
  return all;
}

std::string message_of(const Json& json) {
  try {
    (void)config_from_json(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ConfigKeys, DefaultsOfOtherLibrariesAreKnownToTheLastKey) {
  const std::vector<std::string> paths = recorded_configs();
  EXPECT_GE(paths.size(), 5U);
  for (const std::string& path : paths) {
    const Json json = Json::parse(read_file(path));
    EXPECT_EQ(unknown_config_keys(json), std::vector<std::string>()) << path;
    EXPECT_EQ(message_of(json), "") << path;
    // A file that says nothing but its type has the same sizes.
    Json least{{"model_type", json.at("model_type")}};
    if (json.contains("layer_norm_epsilon")) least["layer_norm_epsilon"] = json.at("layer_norm_epsilon");
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"}) {
      least[key] = json.at(key);
    }
    EXPECT_EQ(config_to_json(config_from_json(least)), config_to_json(config_from_json(json))) << path;
  }
}

TEST(ConfigKeys, NoneIsThereTwiceForAKind) {
  for (const auto& [kind, json] : kinds()) {
    std::map<std::string_view, int> seen;
    for (const ConfigKey& key : config_keys()) {
      if ((key.kinds & static_cast<unsigned>(kind)) != 0) ++seen[key.name];
      EXPECT_EQ(key.use == KeyUse::fixed, !key.allowed.empty()) << key.name;
    }
    for (const auto& [name, count] : seen) EXPECT_EQ(count, 1) << name;
  }
}

TEST(ConfigKeys, WhatCannotBeRunIsRefusedByName) {
  for (const auto& [kind, good] : kinds()) {
    ASSERT_EQ(message_of(good), "") << good;
    for (const ConfigKey& key : config_keys()) {
      if (key.use != KeyUse::fixed || (key.kinds & static_cast<unsigned>(kind)) == 0) continue;
      Json json = good;
      json[key.name] = Json{{"layers", {1, 3}}};
      const std::string message = message_of(json);
      EXPECT_NE(message.find("'" + std::string(key.name) + "'"), std::string::npos) << message << json;
      EXPECT_NE(message.find("only"), std::string::npos) << message;
      const std::string_view first = key.allowed.substr(0, key.allowed.find(' '));
      json[key.name] = Json::parse(first);
      EXPECT_EQ(message_of(json), "") << json;
    }
  }
}

// Other values, which make sense, of what is read. Several where one may be the default of a kind.
const std::map<std::string_view, std::vector<Json>>& others() {
  static const std::map<std::string_view, std::vector<Json>> values{
      {"vocab_size", {77}},
      {"hidden_size", {64}},
      {"num_hidden_layers", {3}},
      {"norm_eps", {1e-3}},
      {"tie_word_embeddings", {true, false}},
      {"initializer_range", {0.5}},
      {"bos_token_id", {5}},
      {"eos_token_id", {5}},
      {"pad_token_id", {5}},
      {"num_heads", {4}},
      {"num_v_heads", {4}},
      {"head_dim", {8}},
      {"expand_k", {0.5}},
      {"expand_v", {0.5}},
      {"conv_size", {3}},
      {"use_short_conv", {false}},
      {"use_gate", {true, false}},
      {"output_gate_activation", {"sigmoid"}},
      {"allow_neg_eigval", {true}},
      {"hidden_ratio", {64}},
      {"intermediate_size", {96}},
      {"lamb_bias", {0.9}},
      {"conv_kernel", {3}},
      {"layer_norm_epsilon", {1e-3}},
      {"expand", {4}},
      {"state_size", {8}},
      {"time_step_rank", {5}},
      {"dt_rank", {5}},
      {"use_mlp", {true, false}},
      {"fixed_lambda", {0.5}},
      {"initial_lamb_bias", {0.9}},
      {"use_decay", {false}},
  };
  return values;
}

TEST(ConfigKeys, WhatIsReadChangesTheModel) {
  for (const auto& [kind, good] : kinds()) {
    for (const ConfigKey& key : config_keys()) {
      if (key.use != KeyUse::read || (key.kinds & static_cast<unsigned>(kind)) == 0) continue;
      if (key.name == "model_type" || key.name == "rule" || key.name == "layer_types") continue;
      ASSERT_TRUE(others().contains(key.name)) << key.name;
      Json json = good;
      // What only Mamba reads needs one.
      const bool of_mamba = key.name == "expand" || key.name == "state_size" || key.name == "time_step_rank";
      if (kind == ConfigKind::ours && of_mamba) json["rule"] = "mamba";
      const auto before = config_to_json(config_from_json(json));
      bool changes = false;
      for (const Json& other : others().at(key.name)) {
        json[key.name] = other;
        // A repeated width is compared; others must be taken over.
        const bool repeated = kind == ConfigKind::mamba && key.name == "intermediate_size";
        if (repeated) {
          EXPECT_NE(message_of(json).find("intermediate_size"), std::string::npos) << message_of(json);
          changes = true;
          json[key.name] = 64;
          EXPECT_EQ(message_of(json), "");
        } else {
          ASSERT_EQ(message_of(json), "") << json;
          changes = changes || config_to_json(config_from_json(json)) != before;
        }
      }
      EXPECT_TRUE(changes) << key.name << " in " << good;
    }
  }
}

TEST(ConfigKeys, WhatIsIgnoredChangesNothing) {
  for (const auto& [kind, good] : kinds()) {
    const auto before = config_to_json(config_from_json(good));
    for (const ConfigKey& key : config_keys()) {
      if (key.use != KeyUse::ignored || (key.kinds & static_cast<unsigned>(kind)) == 0) continue;
      Json json = good;
      json[key.name] = "whatever";
      EXPECT_EQ(config_to_json(config_from_json(json)), before) << key.name;
      EXPECT_TRUE(unknown_config_keys(json).empty()) << key.name;
    }
  }
}

TEST(ConfigKeys, TwoNamesOfOneThingMustAgree) {
  Json json = kinds().at(ConfigKind::mamba);
  json["norm_eps"] = 1e-6;
  json["layer_norm_epsilon"] = 1e-5;
  EXPECT_NE(message_of(json).find("layer_norm_epsilon"), std::string::npos) << message_of(json);
  json["layer_norm_epsilon"] = 1e-6;
  EXPECT_EQ(message_of(json), "");
  EXPECT_EQ(config_from_json(json).norm_eps, 1e-6);
  json["time_step_rank"] = 3;
  json["dt_rank"] = 2;
  EXPECT_NE(message_of(json).find("dt_rank"), std::string::npos) << message_of(json);
  json["dt_rank"] = "auto";  // 2
  EXPECT_NE(message_of(json).find("dt_rank"), std::string::npos) << message_of(json);
  json["dt_rank"] = 3;
  EXPECT_EQ(config_from_json(json).step_rank(), 3);
}

// transformers reads the epsilon by one name, flash-linear-attention by another; either must get ours.
TEST(ConfigKeys, AWrittenMambaHasEveryNameOfWhatItSays) {
  ModelConfig config = small_config("mamba");
  config.use_mlp = false;
  config.norm_eps = 3e-4;
  config.dt_rank = 5;
  const auto json = config_to_json(config);
  EXPECT_EQ(json.at("model_type"), "mamba");
  EXPECT_EQ(json.at("norm_eps"), 3e-4);
  EXPECT_EQ(json.at("layer_norm_epsilon"), 3e-4);
  EXPECT_EQ(json.at("time_step_rank"), 5);
  EXPECT_EQ(json.at("dt_rank"), 5);
}

TEST(ConfigKeys, UnknownKeysAreNamed) {
  Json json = kinds().at(ConfigKind::gated_deltanet);
  json["output_gate_activations"] = "sigmoid";
  json["expand_k"] = 2;  // of another kind of file
  EXPECT_EQ(unknown_config_keys(json), (std::vector<std::string>{"expand_k", "output_gate_activations"}));
}

TEST(ConfigKeys, UnknownKeysAreWarnedOfOnce) {
  const TemporaryFolder folder;
  Json json = kinds().at(ConfigKind::ours);
  json["a_key\n"] = 1;
  write_file(folder.file("config.json"), json.dump());
  ::testing::internal::CaptureStderr();
  (void)load_config(folder.path());
  (void)load_config(folder.path());
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find(folder.file("config.json")), std::string::npos) << warning;
  EXPECT_NE(warning.find("\"a_key\\x0a\""), std::string::npos) << warning;
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
}

// A config of ours is a published one where it can be, and published readers of other rules ignore lambda.
TEST(ConfigKeys, WhatIsWrittenAndReadIsWrittenTheSameAgain) {
  for (const char* rule : {"gated_delta", "delta", "q_delta", "linear", "retnet"}) {
    const nlohmann::json given{{"rule", rule},           {"vocab_size", 50}, {"hidden_size", 32},
                               {"num_hidden_layers", 1}, {"num_heads", 1},   {"head_dim", 8}};
    for (const char* key : {"lamb_bias", "fixed_lambda", "initial_lamb_bias"}) {
      nlohmann::json with = given;
      with[key] = 2;
      const auto written = config_to_json(config_from_json(with));
      EXPECT_EQ(config_to_json(config_from_json(nlohmann::json::parse(written.dump()))), written) << rule << key;
      EXPECT_EQ(written.contains(key) && !written[key].is_null(), rule == std::string_view("q_delta")) << rule << key;
    }
  }
}

TEST(ConfigKeys, TheBiasOfLambdaStartsWhereTheConfigSays) {
  for (const double start : {0.8, 0.9}) {
    ModelConfig config = small_config(Rule::q_delta);
    config.initial_lamb_bias = start;
    const ModelConfig again = config_from_json(Json(config_to_json(config)));
    EXPECT_EQ(again.initial_lamb_bias, start);
    LanguageModel model(again);
    initialise(model.layout(), 1, model.parameters());
    for (const NamedSlot& tensor : model.layout().tensors) {
      if (!tensor.name.ends_with("lamb_bias")) continue;
      EXPECT_EQ(model.parameters()[static_cast<std::size_t>(tensor.slot.offset)], static_cast<float>(-start));
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
