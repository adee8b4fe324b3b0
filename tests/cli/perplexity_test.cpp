// `qdelta perplexity`, held against `qdelta logits` on the same tokens.
#include <cmath>
#include <cstdio>
#include <regex>

#include "compressed.h"
#include "data/byte_tokenizer.h"
#include "infer/generating_case.h"
#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

struct Measured {
  long tokens = 0;
  double loss = 0, perplexity = 0, bits = 0;
};

class Perplexity : public ::testing::Test {
 protected:
  Perplexity() {
    save_model(folder_.file("model"), *speaking_model(speaking_config()));
    save_tokenizer(ByteTokenizer(), folder_.file("model"));
  }
  [[nodiscard]] RunResult run(const Words& more = {}) const {
    return run_qdelta(joined({"perplexity", "--model", folder_.file("model"), "--data", folder_.file("text")}, more));
  }
  [[nodiscard]] Measured measure(const std::string& text, const Words& more = {}) const {
    write_file(folder_.file("text"), text);
    const RunResult result = run(more);
    EXPECT_EQ(result.status, 0) << result.err;
    Measured measured;
    const std::string last = result.out.substr(result.out.rfind('\n', result.out.size() - 2) + 1);
    EXPECT_GE(std::sscanf(last.c_str(), "%ld tokens, loss %lf, perplexity %lf, bits per byte %lf", &measured.tokens,
                          &measured.loss, &measured.perplexity, &measured.bits),
              3)
        << result.out;
    return measured;
  }
  // The mean loss of these tokens after the begin of text, from the logits.
  [[nodiscard]] double loss_from_logits(const std::string& text) const {
    const auto count = static_cast<std::int64_t>(text.size()) + 1;
    Tensor ids(DType::i64, {1, count});
    ids.as<std::int64_t>()[0] = ByteTokenizer().bos().value();
    for (std::size_t i = 0; i < text.size(); ++i) {
      ids.as<std::int64_t>()[i + 1] = static_cast<unsigned char>(text[i]);
    }
    const std::string out = folder_.file("logits");
    write_safetensors(folder_.file("ids"), std::vector<NamedTensor>{{"input_ids", ids.view()}}, {});
    static_cast<void>(
        run_well({"logits", "--model", folder_.file("model"), "--in", folder_.file("ids"), "--out", out}));
    const SafetensorsFile file = SafetensorsFile::open(out);
    const std::vector<double> logits = to_doubles(file.view("logits"));
    double sum = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::span<const double> row = std::span(logits).subspan(i * 258, 258);
      double total = 0;
      for (const double value : row) total += std::exp(value);
      sum += std::log(total) - row[static_cast<unsigned char>(text[i])];
    }
    const double mean = sum / static_cast<double>(text.size());
    EXPECT_NEAR(to_doubles(file.view("loss"))[0], mean, 1e-5);
    return mean;
  }

  TemporaryFolder folder_;
};

// The second is longer than what is read at a time: the state is carried over.
TEST_F(Perplexity, IsTheExponentialOfTheMeanLoss) {
  for (const std::size_t size : {1U, 200U, 1300U}) {
    const std::string text = sample_text(size);
    const Measured measured = measure(text);
    const double loss = loss_from_logits(text);
    EXPECT_EQ(measured.tokens, static_cast<long>(size));
    EXPECT_NEAR(measured.loss, loss, 2e-5);
    EXPECT_NEAR(measured.perplexity, std::exp(loss), 1e-4 * std::exp(loss));
    EXPECT_NEAR(measured.bits, loss / std::log(2.0), 2e-4);
  }
}

TEST_F(Perplexity, ALimitTakesTheFirstTokens) {
  const std::string text = sample_text(700);
  const Measured limited = measure(text, {"--limit", "101"});  // the begin of text is the first
  EXPECT_EQ(limited.tokens, 100);
  EXPECT_EQ(limited.loss, measure(text.substr(0, 100)).loss);
}

TEST_F(Perplexity, DoesNotDependOnTheNumberOfThreads) {
  const std::string text = sample_text(900);
  const Measured one = measure(text, {"--threads", "1"});
  EXPECT_EQ(measure(text, {"--threads", "3"}).loss, one.loss);
}

TEST_F(Perplexity, OfATrainedModelIsItsValidationLoss) {
  const std::string text = sample_text(8000);
  write_file(folder_.file("text"), text);
  // One row of the whole held-out part, so that the state is never cut.
  const RunResult result = run_well(joined({"train", "--text", folder_.file("text"), "--out", folder_.file("run"),
                                            "--seq-len", "399", "--rows", "2", "--warmup", "2", "--steps", "10"},
                                           tiny_model()));
  const std::vector<RunRecord> log = read_run_log(log_of(folder_.file("run")));
  // Validation does not begin with the begin of text: the same tokens through `logits`.
  Tensor ids(DType::i32, {1, 400});
  for (std::size_t i = 0; i < 400; ++i) ids.as<std::int32_t>()[i] = static_cast<unsigned char>(text[7600 + i]);
  write_safetensors(folder_.file("ids"), std::vector<NamedTensor>{{"input_ids", ids.view()}}, {});
  const std::string model = newest_checkpoint(folder_.file("run")).value();
  static_cast<void>(
      run_well({"logits", "--model", model, "--in", folder_.file("ids"), "--out", folder_.file("logits")}));
  const SafetensorsFile file = SafetensorsFile::open(folder_.file("logits"));
  EXPECT_NEAR(to_doubles(file.view("loss"))[0], *log.back().validation_loss, 1e-5);
}

TEST_F(Perplexity, OfCompressedTextAndJsonLinesIsThatOfTheTextInThem) {
  const auto loss_of = [&](const std::string& name, const std::string& contents, const Words& more = {}) {
    write_file(folder_.file(name), contents);
    const Words words{"perplexity", "--model", folder_.file("model"), "--data", folder_.file(name)};
    return run_well(joined(words, more)).out;
  };
  const std::string text = sample_text(300);
  const std::string plain = loss_of("a.txt", text);
  EXPECT_EQ(loss_of("a.txt.gz", gzip(text)), plain);
  EXPECT_EQ(loss_of("a.xz", xz(text)), plain);
  // Two documents, each with its end of text.
  const std::string lines = "{\"text\": \"the old mill\"}\n{\"text\": \"and the river\"}\n";
  const std::string both = loss_of("b.jsonl", lines);
  EXPECT_TRUE(contains(both, fmt::format("{} tokens", 12 + 1 + 13 + 1))) << both;
  EXPECT_EQ(loss_of("b.jsonl.zst", zstd(lines)), both);
  EXPECT_EQ(loss_of("c.jsonl", std::regex_replace(lines, std::regex("text"), "body"), {"--text-key", "body"}), both);
}

TEST_F(Perplexity, WhatGoesWrongIsNamed) {
  expect_failure(run_qdelta({"perplexity", "--model", folder_.file("model"), "--data", folder_.path()}), 1,
                 {folder_.path(), "directory"});
  expect_failure(run(), 1, {folder_.file("text")});
  write_file(folder_.file("text"), "");
  expect_failure(run(), 1, {folder_.file("text"), "too few tokens"});
  write_file(folder_.file("text"), "some text");
  expect_failure(run({"--limit", "1"}), 1, {"too few tokens"});
  expect_failure(run({"--limit", "-1"}), 1, {"limit", "-1"});
  expect_failure(run({"--limit", "x"}), 2, {"--limit", "x"});
  const std::string larger = QDELTA_GOLDEN_DIR "/../data/fixtures/llama3_style.json";
  expect_failure(run({"--tokenizer", larger}), 1, {"tokenizer", "258"});
  expect_failure(run_qdelta({"perplexity", "--data", folder_.file("text")}), 2, {"--model"});
}

TEST_F(Perplexity, LogitsOfIdsThatCannotBeAreRefused) {
  const auto refused = [&](const Tensor& ids, const Words& pieces) {
    write_safetensors(folder_.file("ids"), std::vector<NamedTensor>{{"input_ids", ids.view()}}, {});
    expect_failure(run_qdelta({"logits", "--model", folder_.file("model"), "--in", folder_.file("ids"), "--out",
                               folder_.file("out")}),
                   1, pieces);
    EXPECT_FALSE(std::filesystem::exists(folder_.file("out")));
  };
  Tensor ids(DType::i32, {1, 3});
  ids.as<std::int32_t>()[2] = 258;
  refused(ids, {"input_ids[2]", "258"});
  ids.as<std::int32_t>()[2] = -1;
  refused(ids, {"input_ids[2]", "-1"});
  refused(Tensor(DType::i32, {3}), {"input_ids", "[3]", "[batch, tokens]"});
  refused(Tensor(DType::i32, {2, 0}), {"input_ids", "empty"});
  refused(Tensor(DType::f32, {1, 3}), {"input_ids"});
}

}  // namespace
}  // namespace qdelta::testing
