// From files to a trained model: `qdelta tokenize` on every kind of input, then `qdelta train` on its shards.
#include <cmath>
#include <regex>

#include "compressed.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "model/mixer_types.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

// The sentences of a text as JSON lines.
std::string json_lines(const std::string& text) {
  std::string lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines += "{\"id\": 1, \"text\": \"" + text.substr(at, end - at) + "\"}\n";
    at = end + 1;
  }
  return lines;
}

class TrainData : public ::testing::Test {
 protected:
  std::string tokenize(const std::string& name, const Words& inputs) {
    Words words{"tokenize", "--tokenizer", "bytes", "--out", folder_.file(name)};
    static_cast<void>(run_well(joined(words, inputs)));
    return folder_.file(name);
  }
  [[nodiscard]] Words command(const std::string& out, const Words& more, const std::string& steps = "12") const {
    return joined(joined({"train", "--out", folder_.file(out)}, tiny_training(steps)), more);
  }
  std::string written(const std::string& name, const std::string& contents) {
    write_file(folder_.file(name), contents);
    return folder_.file(name);
  }
  [[nodiscard]] std::vector<RunRecord> log(const std::string& run) const {
    return read_run_log(log_of(folder_.file(run)));
  }
  [[nodiscard]] Words checkpoints(const std::string& run) const {
    Words found;
    for (const auto& entry : fs::directory_iterator(folder_.file(run + "/checkpoints"))) {
      found.push_back(entry.path().filename());
    }
    std::ranges::sort(found);
    return found;
  }

  TemporaryFolder folder_;
};

TEST_F(TrainData, CompressedJsonLinesTrainLikePlainOnes) {
  const std::string lines = json_lines(sample_text(6000));
  const std::string plain = tokenize("plain", {written("a.jsonl", lines)});
  static_cast<void>(run_well(command("run", {"--data", plain})));
  const Numbers numbers = numbers_of(folder_.file("run"));
  const std::vector<std::pair<std::string, std::string>> compressed{
      {"gz", gzip(lines)}, {"xz", xz(lines)}, {"zst", zstd(lines)}};
  for (const auto& [end, contents] : compressed) {
    const std::string shards = tokenize(end, {written("a.jsonl." + end, contents)});
    EXPECT_TRUE(read_file(shards + "/tokens-00000.qdt") == read_file(plain + "/tokens-00000.qdt")) << end;
    static_cast<void>(run_well(command("run_" + end, {"--data", shards})));
    expect_same(numbers_of(folder_.file("run_" + end)), numbers);
  }
}

TEST_F(TrainData, ATextIsReadAsTokenizeReadsIt) {
  const auto trained = [&](const std::string& name, const std::string& contents, const Words& more = {}) {
    static_cast<void>(
        run_well(command("run_" + name, joined({"--text", written(name, contents)}, more), /*steps=*/"3")));
    return numbers_of(folder_.file("run_" + name));
  };
  const std::string text = sample_text(3000);
  const Numbers plain = trained("a.txt", text);
  expect_same(trained("a.txt.gz", gzip(text)), plain);

  const std::string lines = json_lines(text);
  const Numbers documents = trained("a.jsonl", lines);
  expect_same(trained("a.jsonl.gz", gzip(lines)), documents);
  expect_same(trained("a.jsonl.xz", xz(lines)), documents);
  expect_same(trained("a.ndjson.zst", zstd(lines)), documents);
  expect_same(trained("b.jsonl", std::regex_replace(lines, std::regex("text"), "body"), {"--text-key", "body"}),
              documents);
  // The shards hold what tokenize makes of it, in two parts.
  const auto tokens_of = [](const std::string& folder) {
    const TokenDataset dataset = TokenDataset::open(folder);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(dataset.tokens()));
    dataset.copy(0, ids);
    return ids;
  };
  const std::string run = folder_.file("run_a.jsonl.xz");
  std::vector<std::int32_t> ids = tokens_of(run + "/data/train");
  const std::vector<std::int32_t> held_out = tokens_of(run + "/data/validation");
  ids.insert(ids.end(), held_out.begin(), held_out.end());
  const std::string shards = tokenize("shards", {folder_.file("a.jsonl")});
  EXPECT_EQ(ids, tokens_of(shards));
  // One document is cut in two, unless the parts meet between two of them.
  const std::int64_t cut = TokenDataset::open({run + "/data/train", run + "/data/validation"}).documents() -
                           TokenDataset::open(shards).documents();
  EXPECT_TRUE(cut == 0 || cut == 1) << cut;
  expect_failure(run_qdelta(command("bad", {"--text", written("cut.jsonl.gz", gzip(lines).substr(0, 300))})), 1,
                 {"cut.jsonl.gz", "too early"});
}

// One id other than it was, and one that there could be.
TEST_F(TrainData, DamagedShardsAreNamed) {
  const std::string shards = tokenize("shards", {written("a.txt", sample_text(4000))});
  const auto damage = [](const std::string& path) {
    std::string contents = read_file(path);
    char& byte = contents[64 + 2 * 1000];
    byte = byte == 'a' ? 'b' : 'a';
    write_file(path, contents);
  };
  fs::copy(shards, folder_.file("damaged"), fs::copy_options::recursive);
  const std::string damaged = folder_.file("damaged/tokens-00000.qdt");
  damage(damaged);
  const Words pieces{damaged, "damaged", "checksum", "qdelta tokenize"};
  expect_failure(run_qdelta(command("run", {"--data", shards, folder_.file("damaged")})), 1, pieces);
  expect_failure(run_qdelta(command("run", {"--data", shards, "--validation", folder_.file("damaged")})), 1, pieces);
  Words words = command("run", {"--data", folder_.file("damaged")});
  words[0] = "compare";
  const RunResult compared = run_qdelta(words);
  EXPECT_EQ(compared.status, 1);
  EXPECT_TRUE(contains(compared.err, damaged) && contains(compared.err, "checksum")) << compared.err;
  // A text's own shards are as old as the run that made them.
  static_cast<void>(run_well(command("text", {"--text", folder_.file("a.txt")}, "3")));
  damage(folder_.file("text/data/train/tokens-00000.qdt"));
  expect_failure(run_qdelta(command("text", {"--text", folder_.file("a.txt"), "--resume"}, "3")), 1,
                 {"text/data/train/tokens-00000.qdt", "checksum"});
}

TEST_F(TrainData, TheConfigNamesTheTokenizersSpecialTokens) {
  const auto config_of = [&](const std::string& run, const Words& more) {
    static_cast<void>(run_well(command(run, more, "2")));
    const std::string model = newest_checkpoint(folder_.file(run)).value();
    static_cast<void>(load_model(model));
    return nlohmann::json::parse(read_file(model + "/config.json"));
  };
  const auto expect_ids = [](const nlohmann::json& config, const nlohmann::json& bos, const nlohmann::json& eos) {
    EXPECT_EQ(config.at("bos_token_id"), bos);
    EXPECT_EQ(config.at("eos_token_id"), eos);
  };
  const std::string text = written("a.txt", sample_text(6000));
  expect_ids(config_of("bytes", {"--text", text}), 256, 257);
  EXPECT_FALSE(config_of("mamba", {"--text", text, "--rule", "mamba", "--mlp", "false"}).contains("pad_token_id"));
  fs::create_directories(folder_.file("tokenizer"));
  fs::copy(QDELTA_GOLDEN_DIR "/../data/fixtures/llama2_style.json", folder_.file("tokenizer/tokenizer.json"));
  static_cast<void>(
      written("tokenizer/tokenizer_config.json", R"({"bos_token": "</s>", "eos_token": "<s>", "pad_token": "<unk>"})"));
  for (const Words& more : std::vector<Words>{{}, {"--rule", "mamba", "--mlp", "false"}}) {
    const std::string name = more.empty() ? "llama" : "llama_mamba";
    const nlohmann::json config =
        config_of(name, joined({"--text", text, "--tokenizer", folder_.file("tokenizer")}, more));
    expect_ids(config, 2, 1);
    EXPECT_EQ(config.at("pad_token_id"), 0);
  }
  // Shards bring theirs; without it there is only what a config says.
  const std::string shards = tokenize("shards", {text});
  expect_ids(config_of("shards_run", {"--data", shards}), 256, 257);
  fs::remove(shards + "/qdelta_tokenizer.json");
  expect_ids(config_of("without", {"--data", shards}), nullptr, nullptr);
  const std::string file = written("model.json", R"({"bos_token_id": null, "eos_token_id": 7, "vocab_size": 300})");
  expect_ids(config_of("by_file", {"--data", shards, "--model-config", file}), nullptr, 7);
  expect_ids(config_of("by_tokenizer", {"--data", shards, "--tokenizer", "bytes", "--model-config", file}), 256, 257);
  // Synthetic tokens have none, whatever the config was made for.
  const Words recall{"--mqar", "32:2:100", "--vocab-size", "64"};
  expect_ids(config_of("recall", recall), nullptr, nullptr);
  expect_ids(config_of("recall_by_file", joined(recall, {"--model-config", file})), nullptr, nullptr);
}

// Which are as long as the task says, whatever a row of text would be; and 0 validates on all of them.
TEST_F(TrainData, TheMemoryOfRecallIsThatOfItsExamples) {
  const auto said = [&](const char* name, const Words& more) {
    const std::string out = run_well(joined(command(name, {"--mqar", "32:2:40", "--vocab-size", "64"}), more)).out;
    return out.substr(0, out.find('\n'));
  };
  const std::string first = said("one", {});
  EXPECT_TRUE(contains(first, "MB of activations")) << first;
  EXPECT_EQ(first, said("other", {"--validation-rows", "0"}));
  const std::string longer = run_well(command("longer", {"--mqar", "64:2:40", "--vocab-size", "64"})).out;
  EXPECT_NE(first, longer.substr(0, longer.find('\n')));
}

TEST_F(TrainData, SamplesAreTextsOfTheModel) {
  const std::string text = written("a.txt", sample_text(4000));
  const RunResult result =
      run_well(command("run", {"--text", text, "--sample-every", "1", "--sample-prompt", "the first"}));
  EXPECT_TRUE(contains(result.out, "Step 1: the first")) << result.out;
  // Bytes that a terminal would obey are not shown.
  EXPECT_TRUE(std::ranges::none_of(result.out, [](unsigned char c) { return c < 0x20U && c != '\n' && c != '\t'; }));
  std::string events;
  for (const auto& entry : fs::directory_iterator(folder_.file("run"))) {
    if (entry.path().filename().string().starts_with("events.out")) events = read_file(entry.path().string());
  }
  EXPECT_TRUE(contains(events, "    the first"));
  EXPECT_TRUE(contains(events, "samples/text"));
  EXPECT_TRUE(contains(events, "_hparams_/session_start_info"));
  EXPECT_TRUE(contains(events, "sample-prompt"));
  // Looking at it changes nothing.
  static_cast<void>(run_well(command("plain", {"--text", text})));
  expect_same(numbers_of(folder_.file("plain")), numbers_of(folder_.file("run")));
  const Words recall{"--mqar", "32:2:100", "--vocab-size", "64", "--sample-every", "1"};
  expect_failure(run_qdelta(command("recall", recall)), 1, {"--sample-every", "tokenizer"});
}

TEST_F(TrainData, ShardsBringTheirTokenizer) {
  const std::string shards = tokenize("shards", {written("a.txt", sample_text(4000))});
  static_cast<void>(run_well(command("run", {"--data", shards})));
  const std::string model = newest_checkpoint(folder_.file("run")).value();
  EXPECT_EQ(load_tokenizer(model)->name(), "bytes");
  const RunResult said = run_well({"generate", "--model", model, "--prompt", "the", "--max-tokens", "3"});
  EXPECT_TRUE(said.out.starts_with("the")) << said.out;
}

TEST_F(TrainData, ShardsOfAnotherTokenizerAreRefused) {
  const std::string shards = tokenize("shards", {written("a.txt", sample_text(4000))});
  const std::string other = QDELTA_GOLDEN_DIR "/../data/fixtures/gpt2_style.json";
  expect_failure(run_qdelta(command("run", {"--data", shards, "--tokenizer", other})), 1,
                 {"another tokenizer", "gpt2_style.json"});
  static_cast<void>(
      run_well({"tokenize", "--tokenizer", other, "--out", folder_.file("other"), folder_.file("a.txt")}));
  expect_failure(run_qdelta(command("run", {"--data", shards, "--validation", folder_.file("other")})), 1,
                 {"validation", "different tokenizers"});
  expect_failure(run_qdelta(command("run", {"--data", shards, folder_.file("other")})), 1,
                 {"different tokenizers", shards, folder_.file("other")});
}

TEST_F(TrainData, ValidationIsShownWhileItTrains) {
  const std::string train = tokenize("train", {written("a.txt", sample_text(6000))});
  const std::string held_out = tokenize("held_out", {written("b.txt", sample_text(1500, 3))});
  const RunResult result = run_well(
      command("run", {"--data", train, "--validation", held_out, "--eval-every", "5", "--validation-rows", "6"}));
  for (const RunRecord& record : log("run")) {
    EXPECT_EQ(record.validation_loss.has_value(), record.step == 5 || record.step == 10 || record.step == 12);
  }
  EXPECT_TRUE(contains(result.out, fmt::format("val {:.4f}", *log("run")[4].validation_loss))) << result.out;
  EXPECT_TRUE(contains(result.out, fmt::format("validation loss {:.4f}", *log("run").back().validation_loss)));
  // It is about the data it was given: the text that was trained on has another loss.
  static_cast<void>(run_well(
      command("same", {"--data", train, "--validation", train, "--eval-every", "5", "--validation-rows", "6"})));
  EXPECT_EQ(log("same").back().loss, log("run").back().loss);
  EXPECT_NE(log("same").back().validation_loss, log("run").back().validation_loss);
  static_cast<void>(run_well(command("none", {"--data", train})));
  EXPECT_EQ(log("none").back().loss, log("run").back().loss);
  EXPECT_EQ(log("none").back().validation_loss, std::nullopt);
}

TEST_F(TrainData, ATextKeepsItsLastPartForValidation) {
  const std::string text = sample_text(8000);
  static_cast<void>(run_well(command("run", {"--text", written("a.txt", text)})));
  const TokenDataset train = TokenDataset::open(folder_.file("run/data/train"));
  const TokenDataset held_out = TokenDataset::open(folder_.file("run/data/validation"));
  EXPECT_EQ(train.tokens(), 7600);
  EXPECT_EQ(held_out.tokens(), 400);
  std::vector<std::int32_t> ids(400);
  held_out.copy(0, ids);
  EXPECT_EQ(std::string(ids.begin(), ids.end()), text.substr(7600));
  EXPECT_TRUE(log("run").back().validation_loss.has_value());
}

TEST_F(TrainData, OnlyTheLastCheckpointsAreKept) {
  const std::string text = written("a.txt", sample_text(6000));
  static_cast<void>(run_well(command("run", {"--text", text, "--save-every", "2", "--keep", "3"})));
  EXPECT_EQ(checkpoints("run"), (Words{"step-00000008", "step-00000010", "step-00000012"}));
  static_cast<void>(run_well(command("one", {"--text", text, "--eval-every", "5", "--keep", "1"})));
  EXPECT_EQ(checkpoints("one"), (Words{"step-00000012"}));
}

TEST_F(TrainData, ARunThatNoLongerGetsBetterStopsEarly) {
  const std::string text = written("a.txt", sample_text(6000));
  const RunResult result =
      run_well(command("run", {"--text", text, "--lr", "0", "--eval-every", "3", "--patience", "2"}, "100"));
  EXPECT_TRUE(contains(result.out, "Stopped early at step 9")) << result.out;
  EXPECT_EQ(log("run").size(), 9U);
  EXPECT_EQ(checkpoints("run").back(), "step-00000009");
}

TEST_F(TrainData, ATargetAccuracyStopsEarly) {
  const std::string text = written("a.txt", sample_text(6000));
  const RunResult result = run_well(command(
      "run", {"--text", text, "--lr", "1e-2", "--eval-every", "4", "--keep", "1", "--target-accuracy", "0.08"}, "300"));
  EXPECT_TRUE(contains(result.out, "Stopped early at step")) << result.out;
  EXPECT_GE(log("run").back().extra.at("validation_accuracy"), 0.08);
  EXPECT_LT(log("run").size(), 300U);
}

TEST_F(TrainData, EveryMixerTrains) {
  const std::string text = written("a.txt", sample_text(4000));
  std::vector<std::string> names{"q_delta,mamba"};  // a pattern for the two layers
  for (const std::string_view mixer : mixer_names()) names.emplace_back(mixer);
  for (const std::string& name : names) {
    static_cast<void>(run_well(command(name, {"--text", text, "--rule", name, "--lr", "1e-2"}, "20")));
    EXPECT_LT(log(name).back().loss, log(name).front().loss - 0.3) << name;
  }
}

}  // namespace
}  // namespace qdelta::testing
