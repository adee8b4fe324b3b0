// From files to a trained model: `qdelta tokenize` on every kind of input, then `qdelta train` on its shards.
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <cmath>

#include "data/shards.h"
#include "data/tokenizer.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

std::string gzip(const std::string& text) {
  z_stream stream{};
  if (::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::runtime_error("zlib");
  std::string out(::deflateBound(&stream, text.size()), '\0');
  std::string in = text;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int end = ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  if (end != Z_STREAM_END) throw std::runtime_error("zlib");
  return out;
}
std::string xz(const std::string& text) {
  std::string out(::lzma_stream_buffer_bound(text.size()), '\0');
  std::size_t size = 0;
  if (::lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()),
                                text.size(), reinterpret_cast<std::uint8_t*>(out.data()), &size,
                                out.size()) != LZMA_OK) {
    throw std::runtime_error("lzma");
  }
  out.resize(size);
  return out;
}
std::string zstd(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

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
  for (const std::string_view mixer : mixer_names()) {
    const std::string name(mixer);
    static_cast<void>(run_well(command(name, {"--text", text, "--rule", name, "--lr", "1e-2"}, "20")));
    EXPECT_LT(log(name).back().loss, log(name).front().loss - 0.3) << name;
  }
}

}  // namespace
}  // namespace qdelta::testing
