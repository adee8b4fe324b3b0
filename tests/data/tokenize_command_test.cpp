// `qdelta tokenize`, run as a program.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "data/shards.h"
#include "data/tokenizer.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using testing::fixture;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;
using Ids = std::vector<std::int32_t>;

struct RunResult {
  int status = -1;
  std::string out, err;
};

RunResult run(const std::vector<std::string>& args) {
  const TemporaryFolder folder;
  std::vector<std::string> words{QDELTA_BINARY, "tokenize"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int out = ::open(folder.file("out").c_str(), O_WRONLY | O_CREAT, 0600);
    const int err = ::open(folder.file("err").c_str(), O_WRONLY | O_CREAT, 0600);
    if (::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  RunResult result;
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("cannot run " QDELTA_BINARY);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(folder.file("out"));
  result.err = read_file(folder.file("err"));
  return result;
}

void expect_success(const RunResult& result) { ASSERT_EQ(result.status, 0) << result.err; }
void expect_failure(const RunResult& result, const std::vector<std::string>& pieces) {
  EXPECT_NE(result.status, 0);
  EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
  for (const std::string& piece : pieces) EXPECT_NE(result.err.find(piece), std::string::npos) << result.err;
}

std::vector<Ids> documents(const std::string& folder) {
  const TokenDataset dataset = TokenDataset::open(folder);
  dataset.verify();
  std::vector<std::int64_t> starts;
  dataset.for_each_document_start(0, dataset.tokens(), [&](std::int64_t at) { starts.push_back(at); });
  starts.push_back(dataset.tokens());
  std::vector<Ids> all;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    all.emplace_back(static_cast<std::size_t>(starts[i + 1] - starts[i]));
    dataset.copy(starts[i], all.back());
  }
  return all;
}

TEST(TokenizeCommand, TextAndJsonLines) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "ab\n");
  write_file(folder.file("b.jsonl"), "{\"text\": \"c\"}\n{\"text\": \"\"}\n{\"text\": \"de\"}\n");
  const RunResult result =
      run({"--tokenizer", "bytes", "--out", folder.file("out"), folder.file("a.txt"), folder.file("b.jsonl")});
  expect_success(result);
  EXPECT_EQ(documents(folder.file("out")), (std::vector<Ids>{{97, 98, 10, 257}, {99, 257}, {100, 101, 257}}));
  for (const char* piece : {"documents  3, and 1 without text", "tokens     9", "1 shard"}) {
    EXPECT_NE(result.out.find(piece), std::string::npos) << result.out;
  }
  EXPECT_EQ(load_tokenizer(folder.file("out"))->name(), "bytes");
}

TEST(TokenizeCommand, OptionsOfDocuments) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "a\n\nb#c");
  const auto tokens = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"--tokenizer", "bytes", "--out", folder.file("out"), "--force"});
    options.push_back(folder.file("a.txt"));
    expect_success(run(options));
    return documents(folder.file("out"));
  };
  EXPECT_EQ(tokens({"--no-append-eos"}), (std::vector<Ids>{{97, 10, 10, 98, 35, 99}}));
  EXPECT_EQ(tokens({"--no-append-eos", "--prepend-bos"}), (std::vector<Ids>{{256, 97, 10, 10, 98, 35, 99}}));
  EXPECT_EQ(tokens({"--paragraphs"}), (std::vector<Ids>{{97, 257}, {98, 35, 99, 257}}));
  EXPECT_EQ(tokens({"--document-separator", "#"}), (std::vector<Ids>{{97, 10, 10, 98, 257}, {99, 257}}));
  EXPECT_EQ(tokens({"--document-separator", "\\n\\n"}), (std::vector<Ids>{{97, 257}, {98, 35, 99, 257}}));
}

TEST(TokenizeCommand, ThreadsAndShardsDoNotChangeTheTokens) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 500; ++i) {
    lines += "{\"text\": \"The river runs past mill number " + std::to_string(i * i) + ", and it's " +
             std::to_string(i) + " years old.\"}\n";
  }
  write_file(folder.file("a.jsonl"), lines);
  const auto tokens = [&](const std::string& threads, const std::string& shard) {
    expect_success(run({"--tokenizer", fixture("llama3_style.json"), "--out", folder.file("out"), "--force",
                        "--threads", threads, "--shard-tokens", shard, folder.file("a.jsonl")}));
    return documents(folder.file("out"));
  };
  const std::vector<Ids> expected = tokens("1", "1000000");
  ASSERT_EQ(expected.size(), 500U);
  const auto tokenizer = load_tokenizer(fixture("llama3_style.json"));
  Ids first = tokenizer->encode("The river runs past mill number 0, and it's 0 years old.");
  first.push_back(tokenizer->eos().value());
  EXPECT_EQ(expected.front(), first);
  EXPECT_EQ(tokens("4", "1000000"), expected);
  EXPECT_EQ(tokens("3", "777"), expected);
  EXPECT_GT(TokenDataset::open(folder.file("out")).shards().size(), 10U);
  EXPECT_EQ(TokenDataset::open(folder.file("out")).fingerprint(), tokenizer->fingerprint());
}

TEST(TokenizeCommand, TextThatIsNotUtf8IsCounted) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "mill \xff");
  const RunResult result =
      run({"--tokenizer", fixture("gpt2_style.json"), "--out", folder.file("out"), "--bytes", folder.file("a.txt")});
  expect_success(result);
  EXPECT_NE(result.out.find("1 documents have bytes that are not UTF-8; they became U+FFFD"), std::string::npos);
}

TEST(TokenizeCommand, WhatIsNoTextIsRefused) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "fine\n");
  write_file(folder.file("b.txt"), "mill \xff");
  write_file(folder.file("c.parquet"), std::string("PAR1\x15\x04\xff", 7));
  const std::string out = folder.file("out");
  expect_failure(run({"--tokenizer", "bytes", "--out", out, folder.file("a.txt"), folder.file("b.txt")}),
                 {"b.txt", "byte 0xff at offset 5", "--bytes"});
  // Before anything is written, though it comes last.
  expect_failure(run({"--tokenizer", "bytes", "--out", out, folder.file("a.txt"), folder.file("c.parquet")}),
                 {"c.parquet", "Parquet", "JSON lines"});
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a.txt", "b.txt", "c.parquet"}));
  expect_success(run({"--tokenizer", "bytes", "--out", out, "--bytes", folder.file("c.parquet")}));
  EXPECT_EQ(documents(out), (std::vector<Ids>{{'P', 'A', 'R', '1', 0x15, 0x04, 0xff, 257}}));
}

TEST(TokenizeCommand, PipesAndFoldersAreNoFiles) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  const auto with = [&](const std::string& input) {
    return run({"--tokenizer", "bytes", "--out", folder.file("out"), input});
  };
  expect_failure(with(folder.file("pipe")), {"pipe", "it is a device, pipe or socket, not a file"});
  expect_failure(with(folder.path()), {folder.path(), "Is a directory"});
  expect_failure(with(folder.file("nothing")), {"nothing", "No such file"});
}

TEST(TokenizeCommand, WhatGoesWrongIsSaid) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "a");
  write_file(folder.file("b.jsonl"), "{\"text\": \"fine\"}\n{\"txt\": \"x\"}\n");
  write_file(folder.file("empty.txt"), "");
  const std::string out = folder.file("out");
  expect_failure(run({"--out", out, folder.file("a.txt")}), {"--tokenizer"});
  expect_failure(run({"--tokenizer", "bytes", "--out", out}), {"inputs"});
  expect_failure(run({"--tokenizer", "nothing", "--out", out, folder.file("a.txt")}), {"no tokenizer", "nothing"});
  expect_failure(run({"--tokenizer", "bytes", "--out", out, folder.file("a.txt"), folder.file("c.txt")}), {"c.txt"});
  expect_failure(run({"--tokenizer", "bytes", "--out", out, folder.file("b.jsonl")}),
                 {"b.jsonl: line 2", "--text-key"});
  expect_failure(run({"--tokenizer", "bytes", "--out", out, folder.file("empty.txt")}), {"no documents"});
  expect_failure(
      run({"--tokenizer", "bytes", "--out", out, "--paragraphs", "--document-separator", "x", folder.file("a.txt")}),
      {"exclude"});
  expect_failure(run({"--tokenizer", "bytes", "--out", out, "--document-separator", "\\x", folder.file("a.txt")}),
                 {"backslash"});
  expect_failure(run({"--tokenizer", fixture("gemma_style.json"), "--out", out, "--append-eos", folder.file("a.txt")}),
                 {"--append-eos", "no token that ends a text"});
  expect_success(run({"--tokenizer", "bytes", "--out", out, folder.file("a.txt")}));
  expect_failure(run({"--tokenizer", "bytes", "--out", out, folder.file("a.txt")}), {"already", "--force"});
  EXPECT_EQ(documents(out), (std::vector<Ids>{{97, 257}}));
}

}  // namespace
}  // namespace qdelta
