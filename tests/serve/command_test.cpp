// `qdelta serve` as a program: it says where it listens, answers, and ends well when it is told to.
#include <csignal>

#include "cli/cli_testing.h"
#include "model/checkpoint.h"
#include "serving_case.h"

namespace qdelta::testing {
namespace {

class Command : public ::testing::Test {
 protected:
  Command() {
    save_model(folder_.file("model"), *speaking_model(speaking_config()));
    save_tokenizer(ByteTokenizer(), folder_.file("model"));
  }

  TemporaryFolder folder_;
};

TEST_F(Command, StartsAnswersAndStops) {
  const std::string said = folder_.file("said");
  std::vector<std::string> words{QDELTA_BINARY, "serve", "--model",   folder_.file("model"),
                                 "--port",      "0",     "--threads", "1"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int file = ::open(said.c_str(), O_WRONLY | O_CREAT, 0600);
    if (::dup2(file, STDERR_FILENO) >= 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ASSERT_GT(child, 0);
  const std::string mark = "listening on http://127.0.0.1:";
  std::size_t at = std::string::npos;
  for (int i = 0; i < 2000 && at == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string text = read_file(said);
    if (text.ends_with("\n")) at = text.find(mark);
  }
  ASSERT_NE(at, std::string::npos) << read_file(said);
  const HttpClient client(std::stoi(read_file(said).substr(at + mark.size())));
  const HttpClient::Result result =
      client.post("/v1/completions", R"({"prompt": "a", "temperature": 0, "max_tokens": 4})");
  ASSERT_TRUE(result);
  const nlohmann::json answer = nlohmann::json::parse(result->body);
  EXPECT_EQ(answer["model"], "model");
  EXPECT_EQ(answer["choices"][0]["text"].get<std::string>().size(), 4U);
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(read_file(said).ends_with("\nstopped\n")) << read_file(said);
}

TEST_F(Command, WhatItIsToldWrongly) {
  const std::string model = folder_.file("model");
  expect_failure(run_qdelta({"serve", "--model", folder_.file("none")}), 1, {"none"});
  expect_failure(run_qdelta({"serve", "--model", model, "--port", "70000"}), 1, {"port is 70000"});
  expect_failure(run_qdelta({"serve", "--model", model, "--max-batch", "0"}), 1, {"max-batch is 0"});
  expect_failure(run_qdelta({"serve", "--model", model, "--max-queue", "0"}), 1, {"max-queue is 0"});
  expect_failure(run_qdelta({"serve", "--model", model, "--host", "203.0.113.1", "--port", "0"}), 1,
                 {"cannot listen on 203.0.113.1"});
  expect_failure(run_qdelta({"serve"}), 2, {"--model is required"});
}

}  // namespace
}  // namespace qdelta::testing
