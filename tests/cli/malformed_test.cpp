// Damaged models, configs and shards: one message that names the culprit, an exit status, no crash.
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <cstring>

#include "data/byte_tokenizer.h"
#include "data/shard_format.h"
#include "infer/generating_case.h"
#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class MalformedModel : public ::testing::Test {
 protected:
  MalformedModel() {
    save_model(model_, *speaking_model(speaking_config()));
    save_tokenizer(ByteTokenizer(), model_);
    config_ = Json::parse(read_file(model_ + "/config.json"));
    weights_ = read_file(model_ + "/model.safetensors");
  }
  [[nodiscard]] RunResult run() const {
    return run_qdelta({"generate", "--model", model_, "--prompt", "a", "--max-tokens", "1", "--threads", "1"});
  }
  void expect_refused(const Words& pieces) const { expect_failure(run(), 1, pieces); }
  void write_config(const Json& json) const { write_file(model_ + "/config.json", json.dump()); }
  void set(const std::string& key, const Json& value) const {
    Json changed = config_;
    changed[key] = value;
    write_config(changed);
  }
  void write_weights(const EditableCase& weights) const { weights.write(model_ + "/model.safetensors"); }

  TemporaryFolder folder_;
  std::string model_ = folder_.file("model");
  Json config_;
  std::string weights_;
};

TEST_F(MalformedModel, TheGoodOneRuns) { EXPECT_EQ(run().status, 0); }

TEST_F(MalformedModel, ConfigsThatAreNone) {
  const std::string path = model_ + "/config.json";
  const std::string text = config_.dump();
  for (const std::string& bad :
       {std::string(), text.substr(0, text.size() / 2), std::string("hidden_size: 32"), text + std::string(1, '\0')}) {
    write_file(path, bad);
    expect_refused({path, "not valid JSON"});
  }
  write_file(path, "\xff\xfe");
  expect_refused({path, "not valid UTF-8"});
  for (const char* bad : {"[]", "5", "null", "\"text\""}) {
    write_file(path, bad);
    expect_refused({path, "no JSON object"});
  }
  fs::remove(path);
  expect_refused({path});
  fs::create_directories(path);
  EXPECT_EQ(run().status, 1);
}

// What destroys, compares or prints a value calls itself for each level, and 100,000 levels of that are no stack.
TEST_F(MalformedModel, NestedTooDeep) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  set("anything", 1);
  std::string text = read_file(model_ + "/config.json");
  text.replace(text.find("\"anything\":1"), 12, "\"anything\":" + deep);
  write_file(model_ + "/config.json", text);
  expect_refused({model_ + "/config.json", "nested more than 100"});
  write_config(config_);
  fs::rename(model_ + "/model.safetensors", model_ + "/part.safetensors");
  write_file(model_ + "/model.safetensors.index.json", "{\"weight_map\":" + deep + "}");
  expect_refused({model_ + "/model.safetensors.index.json", "nested more than 100"});
}

TEST_F(MalformedModel, PipesAndDevicesAreNoFiles) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    const std::string path = model_ + "/" + name;
    fs::rename(path, path + ".good");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_refused({path, "not a file"});
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    expect_refused({path, "not a file"});
    fs::remove(path);
    fs::rename(path + ".good", path);
  }
  EXPECT_EQ(run().status, 0);
}

TEST_F(MalformedModel, LayersOfAttentionAreRefusedWhateverIsAsked) {
  for (const char* type : {"qdelta", "gated_deltanet"}) {
    Json changed = config_;
    changed["model_type"] = type;
    changed["attn"] = Json{{"layers", {1}}, {"num_heads", 2}};
    write_config(changed);
    expect_refused({model_, "'attn'", "only null"});
    expect_failure(run_qdelta({"info", "--model", model_}), 1, {model_, "'attn'", "only null"});
  }
}

TEST_F(MalformedModel, UnknownKeysAreWarnedOf) {
  set("a_new_key", 1);
  const RunResult result = run();
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("a_new_key"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("a_new_key"), result.err.rfind("a_new_key")) << result.err;
}

// Every published config leaves some keys out, which then have their published defaults: the tensors tell.
TEST_F(MalformedModel, MissingSizesDoNotFitTheTensors) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "head_dim"}) {
    Json changed = config_;
    changed.erase(key);
    write_config(changed);
    expect_refused({model_, "config.json", "model."});
  }
}

TEST_F(MalformedModel, WrongTypesNameTheKey) {
  const std::string path = model_ + "/config.json";
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "num_v_heads", "head_dim",
                          "conv_size", "intermediate_size", "bos_token_id", "eos_token_id"}) {
    for (const Json& bad : {Json("32"), Json(32.5), Json(true), Json::array({32}), Json::object()}) {
      if (key == std::string_view("eos_token_id") && bad.is_array()) continue;  // there may be several
      set(key, bad);
      expect_refused({path, key});
      if (quick()) break;
    }
  }
  for (const char* key : {"expand_v", "hidden_ratio", "norm_eps", "initializer_range", "lamb_bias", "fixed_lambda"}) {
    set(key, "wide");
    expect_refused({path, key});
  }
  for (const char* key :
       {"use_short_conv", "use_gate", "allow_neg_eigval", "use_mlp", "tie_word_embeddings", "use_decay"}) {
    set(key, 1);
    expect_refused({path, key});
  }
  for (const char* key : {"model_type", "rule", "hidden_act"}) {
    set(key, 7);
    expect_refused({path, key});
    set(key, "other");
    expect_refused({path, "other"});
  }
}

TEST_F(MalformedModel, AbsurdSizesNameTheKeyAndTakeNoMemory) {
  const std::string path = model_ + "/config.json";
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "head_dim", "conv_size"}) {
    for (const Json& bad : {Json(0), Json(-1), Json(1LL << 40), Json(INT64_MAX), Json(UINT64_MAX), Json(1e30)}) {
      set(key, bad);
      expect_refused({path, key});
      if (quick()) break;
    }
  }
  for (const char* key : {"num_v_heads", "intermediate_size"}) {
    for (const Json& bad : {Json(-2), Json(1LL << 40)}) {
      set(key, bad);
      expect_refused({path, key});
    }
  }
  for (const char* key : {"expand_v", "hidden_ratio", "norm_eps"}) {
    for (const Json& bad : {Json(0), Json(-1)}) {
      set(key, bad);
      expect_refused({path, key});
    }
  }
  set("expand_v", 1e300);
  expect_refused({path, "expand_v"});
  set("hidden_ratio", 1e300);
  expect_refused({path, "hidden_ratio"});
  // Each by itself could be, but not together.
  Json changed = config_;
  for (const char* key : {"vocab_size", "hidden_size", "num_heads", "head_dim"}) changed[key] = 1 << 24;
  write_config(changed);
  expect_refused({path, "parameters"});
  // Large, but not impossible: the tensors are not there, and are missed before memory is asked for.
  set("vocab_size", 1 << 24);
  expect_refused({"model.embeddings.weight: [258, 32] instead of [16777216, 32]"});
  set("num_hidden_layers", 5000);
  expect_refused({"missing", "model.layers.2.", "more"});
}

TEST_F(MalformedModel, TensorsThatDoNotFitAreNamed) {
  const EditableCase good = EditableCase::read(model_ + "/model.safetensors");
  const std::string name = "model.layers.1.attn.q_proj.weight";
  ASSERT_TRUE(good.tensors.contains(name));
  EditableCase missing = good;
  missing.tensors.erase(name);
  write_weights(missing);
  expect_refused({model_, "missing", name});
  EditableCase extra = good;
  extra.tensors["model.layers.9.attn.extra"] = Tensor(DType::f32, {2, 3});
  write_weights(extra);
  expect_refused({model_, "unknown", "model.layers.9.attn.extra [2, 3]"});
  EditableCase misshapen = good;
  misshapen.tensors[name] = Tensor(DType::f32, {16, 33});
  write_weights(misshapen);
  expect_refused({model_, name + ": [16, 33] instead of [16, 32]"});
  EditableCase integers = good;
  integers.tensors[name] = Tensor(DType::i32, {16, 32});
  write_weights(integers);
  expect_refused({model_, name, "I32", "F32"});
  write_weights(EditableCase());
  expect_refused({model_, "missing"});
  EditableCase halves = good;
  for (auto& [key, tensor] : halves.tensors) halves.convert(key, DType::bf16);
  write_weights(halves);
  EXPECT_EQ(run().status, 0);
}

TEST_F(MalformedModel, DamagedWeightsAreNamed) {
  const std::string path = model_ + "/model.safetensors";
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{5}, std::size_t{8}, std::size_t{300}, weights_.size() / 2, weights_.size() - 1}) {
    write_file(path, weights_.substr(0, size));
    expect_refused({path});
  }
  write_file(path, weights_ + "x");
  expect_refused({path});
  std::string changed = weights_;
  changed.replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
  write_file(path, changed);
  expect_refused({path});
  changed = weights_;
  changed[8] = '[';
  write_file(path, changed);
  expect_refused({path});
  fs::remove(path);
  expect_refused({path});
}

TEST_F(MalformedModel, DamagedIndexesAreNamed) {
  const std::string index = model_ + "/model.safetensors.index.json";
  fs::rename(model_ + "/model.safetensors", model_ + "/model-00001-of-00001.safetensors");
  const EditableCase good = EditableCase::read(model_ + "/model-00001-of-00001.safetensors");
  Json map;
  for (const auto& [name, tensor] : good.tensors) map[name] = "model-00001-of-00001.safetensors";
  write_file(index, Json{{"weight_map", map}}.dump());
  EXPECT_EQ(run().status, 0);
  for (const char* bad : {"{}", "[]", "{\"weight_map\": 5}", "{\"weight_map\": []}"}) {
    write_file(index, bad);
    expect_refused({index, "weight_map"});
  }
  for (const char* bad : {"", "{\"weight_map\""}) {
    write_file(index, bad);
    expect_refused({index, "not valid JSON"});
  }
  for (const char* bad : {"../model/model-00001-of-00001.safetensors", "/etc/passwd", "", "..", "sub/x.safetensors"}) {
    write_file(index, Json{{"weight_map", {{"a", bad}}}}.dump());
    expect_refused({index, "file name"});
  }
  write_file(index, Json{{"weight_map", {{"a", 5}}}}.dump());
  expect_refused({index, "\"a\""});
  write_file(index, Json{{"weight_map", {{"a", "nowhere.safetensors"}}}}.dump());
  expect_refused({"nowhere.safetensors"});
}

TEST_F(MalformedModel, EverySubcommandThatReadsOneSaysTheSame) {
  fs::remove(model_ + "/config.json");
  write_file(folder_.file("text"), "text");
  const std::string path = model_ + "/config.json";
  expect_failure(run_qdelta({"perplexity", "--model", model_, "--data", folder_.file("text")}), 1, {path});
  expect_failure(run_qdelta({"logits", "--model", model_, "--in", "x", "--out", "y"}), 1, {path});
  expect_failure(run_qdelta({"chat", "--model", model_}), 1, {path});
  expect_failure(run_qdelta({"train", "--text", folder_.file("text"), "--out", folder_.file("run"), "--seq-len", "1",
                             "--model-config", model_}),
                 1, {path});
  for (const char* command : {"generate", "chat"}) {
    expect_failure(run_qdelta({command, "--model", folder_.file("text"), "--load-state", "x"}), 1,
                   {folder_.file("text")});
  }
}

class MalformedShards : public ::testing::Test {
 protected:
  MalformedShards() {
    write_file(folder_.file("text"), sample_text(4000));
    static_cast<void>(run_well({"tokenize", "--tokenizer", "bytes", "--out", shards_, folder_.file("text")}));
    bytes_ = read_file(path_);
  }
  void expect_refused(const Words& pieces) const {
    expect_failure(run_qdelta(joined({"train", "--data", shards_, "--out", folder_.file("run")}, tiny_training("2"))),
                   1, pieces);
    EXPECT_FALSE(fs::exists(folder_.file("run/checkpoints")));
  }

  TemporaryFolder folder_;
  std::string shards_ = folder_.file("shards");
  std::string path_ = shards_ + "/tokens-00000.qdt";
  std::string bytes_;
};

TEST_F(MalformedShards, CutOnes) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{63}, bytes_.size() / 2, bytes_.size() - 1}) {
    write_file(path_, bytes_.substr(0, size));
    expect_refused({path_});
  }
}

TEST_F(MalformedShards, OtherFiles) {
  std::string changed = bytes_;
  changed[0] = 'X';
  write_file(path_, changed);
  expect_refused({path_, "QDTOKENS"});
  changed = bytes_;
  changed[8] = 9;
  write_file(path_, changed);
  expect_refused({path_, "version 9"});
  changed = bytes_;
  changed[20] = 1;  // the number of tokens
  write_file(path_, changed);
  expect_refused({path_, "cut short"});
  changed = bytes_;
  changed.back() = 1;  // the end of the last document
  write_file(path_, changed);
  expect_refused({path_, "checksum"});
}

// An id that the model does not have is never used, not even where the checksum says that it is meant.
TEST_F(MalformedShards, IdsThatCannotBe) {
  std::string changed = bytes_;
  for (std::size_t at = 64; at < 64 + 8000; at += 2) changed[at + 1] = 7;
  write_file(path_, changed);
  expect_refused({path_, "checksum"});
  const std::size_t padded = shard_data_bytes(4001, 2);  // the text and its end
  const std::uint64_t checksum =
      shard_token_checksum(kShardVersion, std::as_bytes(std::span(changed).subspan(64, padded)));
  std::memcpy(changed.data() + offsetof(ShardHeader, token_checksum), &checksum, sizeof(checksum));
  write_file(path_, changed);
  expect_refused({path_, "vocabulary"});
}

TEST_F(MalformedShards, Indexes) {
  const std::string index = shards_ + "/shards.json";
  const std::string good = read_file(index);
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("[]"), good.substr(0, good.size() / 2)}) {
    write_file(index, bad);
    expect_refused({index});
  }
  fs::remove(index);
  expect_refused({shards_});
  write_file(index, good);
  fs::remove(path_);
  expect_refused({path_});
  shards_ = folder_.file("nowhere");
  expect_refused({shards_});
}

class MalformedRun : public ::testing::Test {
 protected:
  MalformedRun() {
    write_file(folder_.file("text"), sample_text(4000));
    command_ = joined({"train", "--text", folder_.file("text"), "--out", folder_.file("run")}, tiny_training("4"));
    static_cast<void>(run_well(command_));
    command_.emplace_back("--resume");
    checkpoint_ = newest_checkpoint(folder_.file("run")).value();
  }
  void expect_refused(const Words& pieces) const {
    const RunResult result = run_qdelta(command_);
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
    for (const std::string& piece : pieces) EXPECT_TRUE(contains(result.err, piece)) << piece << " in " << result.err;
  }

  TemporaryFolder folder_;
  Words command_;
  std::string checkpoint_;
};

TEST_F(MalformedRun, EveryPartOfACheckpointIsNamed) {
  for (const char* name : {"/state.json", "/optimizer.safetensors", "/model.safetensors", "/config.json"}) {
    const std::string path = checkpoint_ + name;
    const std::string good = read_file(path);
    write_file(path, good.substr(0, good.size() / 2));
    expect_refused({path});
    write_file(path, good);
  }
  static_cast<void>(run_well(command_));
}

TEST_F(MalformedRun, ADamagedLogIsNamed) {
  const std::string path = log_of(folder_.file("run"));
  const std::string good = read_file(path);
  write_file(path, "nonsense\n" + good);
  expect_refused({path, "line 1"});
  write_file(path, good.substr(0, good.size() - 9));  // a torn last line is what a crash leaves
  static_cast<void>(run_well(command_));
}

}  // namespace
}  // namespace qdelta::testing
