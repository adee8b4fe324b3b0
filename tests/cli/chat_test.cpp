// `qdelta chat`: turns, commands, the system message, and a terminal whose lines can be edited.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <pty.h>
#include <sys/ioctl.h>

#include "data/byte_tokenizer.h"
#include "infer/generating_case.h"
#include "model/checkpoint.h"
#include "training_testing.h"

namespace qdelta::testing {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
    "%}";

class Chat : public ::testing::Test {
 protected:
  Chat() {
    save_model(model(), *speaking_model(speaking_config()));
    save_tokenizer(ByteTokenizer(), model());
  }
  [[nodiscard]] std::string model() const { return folder_.file("model"); }
  void give_template() const { write_file(model() + "/chat_template.jinja", kTemplate); }
  [[nodiscard]] Words command(const Words& more) const {
    return joined(
        {QDELTA_BINARY, "chat", "--model", model(), "--threads", "1", "--temperature", "0", "--max-tokens", "8"}, more);
  }
  // What comes out when these lines come in: of a pipe, or typed at a terminal.
  [[nodiscard]] std::string said(const std::string& typed, const Words& more = {}, bool terminal = false) const {
    Words words = command(more);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int to_child[2] = {-1, -1}, from_child[2] = {-1, -1}, master = -1;
    pid_t child = -1;
    if (terminal) {
      const winsize size{40, 120, 0, 0};
      child = ::forkpty(&master, nullptr, nullptr, &size);
      to_child[1] = from_child[0] = master;
    } else {
      if (::pipe(to_child) != 0 || ::pipe(from_child) != 0) throw std::runtime_error("no pipes");
      child = ::fork();
      if (child == 0) {
        ::dup2(to_child[0], STDIN_FILENO);
        ::dup2(from_child[1], STDOUT_FILENO);
        ::close(to_child[1]);
      }
      if (child > 0) ::close(from_child[1]);
    }
    if (child == 0) {
      ::setenv("TERM", "xterm", 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    std::string out;
    const auto read_more = [&] {
      char buffer[4096];
      const ssize_t count = ::read(from_child[0], buffer, sizeof(buffer));
      if (count > 0) out.append(buffer, static_cast<std::size_t>(count));
      return count > 0;
    };
    while (terminal && !contains(out, "> ") && read_more()) {  // before that the terminal itself would edit
    }
    EXPECT_EQ(::write(to_child[1], typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
    if (!terminal) ::close(to_child[1]);
    while (read_more()) {
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << out;
    ::close(from_child[0]);
    if (!terminal) ::close(to_child[0]);
    return out;
  }
  // The answers alone: what stands behind each prompt, to the end of its line.
  [[nodiscard]] std::vector<std::string> answers(const std::string& typed, const Words& more = {}) const {
    const std::string out = said(typed, more);
    std::vector<std::string> lines;
    for (std::size_t at = out.find("\n> "); at != std::string::npos; at = out.find("\n> ", at + 1)) {
      lines.push_back(out.substr(at + 3, out.find('\n', at + 3) - at - 3));
    }
    return lines;
  }

  TemporaryFolder folder_;
};

TEST_F(Chat, TurnsGoOnFromOneAnotherUntilAReset) {
  const std::vector<std::string> got = answers("the river\nand then\n/reset\nthe river\n/quit\n");
  ASSERT_EQ(got.size(), 4U);  // the command's line has none
  EXPECT_EQ(got[0].size(), 8U);
  EXPECT_NE(got[0], got[1]);
  EXPECT_EQ(got[2], "> " + got[0]);
}

TEST_F(Chat, TheTemplateMakesThePromptAndTheSystemMessageIsPartOfIt) {
  give_template();
  const auto generated = [&](const std::string& prompt) {
    const RunResult result = run_well({"generate", "--model", model(), "--threads", "1", "--temperature", "0",
                                       "--max-tokens", "8", "--no-bos", "--prompt", prompt});
    return result.out.substr(prompt.size(), 8);
  };
  const std::string system = "<system>be brief";
  const std::string first = generated(system + "<user>hello<assistant>");
  const std::string second = generated(system + "<user>hello<assistant>" + first + "<user>and?<assistant>");
  const std::vector<std::string> got = answers("hello\nand?\n", {"--system", "be brief"});
  ASSERT_GE(got.size(), 2U);
  EXPECT_EQ(got[0], first);
  EXPECT_EQ(got[1], second);
  EXPECT_NE(answers("hello\n")[0], first);
}

TEST_F(Chat, IsKeptAndGoesOn) {
  for (const bool with_template : {false, true}) {
    if (with_template) give_template();
    const std::string file = folder_.file(with_template ? "talk" : "text");
    const std::vector<std::string> whole = answers("the river\nand then\n");
    static_cast<void>(said("the river\n/save " + file + "\n"));
    EXPECT_EQ(std::filesystem::exists(file + ".json"), with_template);
    const std::string loaded = said("something else\n/load " + file + "\nand then\n");
    EXPECT_TRUE(contains(loaded, "> " + whole[1] + "\n")) << loaded;
    EXPECT_EQ(answers("and then\n", {"--load-state", file})[0], whole[1]);
  }
}

// From the second turn on a turn begins with the last token of the answer before, which the conversation has only once.
TEST_F(Chat, IsKeptAfterAnyTurn) {
  give_template();
  const std::string file = folder_.file("talk");
  std::string typed;
  for (std::size_t turn = 1; turn <= 4; ++turn) {
    typed += fmt::format("line {}\n", turn);
    static_cast<void>(said(typed + "/save " + file + "\n"));
    const std::vector<std::string> whole = answers(typed + "and then\n");
    EXPECT_EQ(answers("and then\n", {"--load-state", file}).front(), whole.at(turn)) << turn;
  }
}

TEST_F(Chat, WhatIsNoCommandAndWhatIsNotThereEndsNothing) {
  const std::string out = said("/help\n/nonsense\n/load " + folder_.file("none") + "\nthe river\n");
  for (const char* piece : {"/reset", "/save FILE", "/load FILE", "There is no such command", "none"}) {
    EXPECT_TRUE(contains(out, piece)) << piece << out;
  }
  EXPECT_TRUE(contains(out, "> " + answers("the river\n")[0] + "\n")) << out;
}

// What was kept is wrong in many ways, and each leaves the conversation as it was.
TEST_F(Chat, AConversationThatCannotBeLoadedChangesNothing) {
  give_template();
  const std::vector<std::string> whole = answers("the river\nand then\n");
  const std::string file = folder_.file("talk");
  static_cast<void>(said("something else\n/save " + file + "\n"));
  const nlohmann::json kept = nlohmann::json::parse(read_file(file + ".json"));
  nlohmann::json fewer = kept, texts = kept, no_messages = kept;
  fewer["tokens"].erase(0);
  texts["tokens"][0] = "a";
  no_messages["messages"][0] = "a";
  for (const nlohmann::json& wrong : {fewer, texts, no_messages}) {
    write_file(file + ".json", wrong.dump());
    const std::string out = said("the river\n/load " + file + "\nand then\n");
    EXPECT_TRUE(contains(out, file + ".json ")) << out;
    EXPECT_TRUE(contains(out, "> " + whole[1] + "\n")) << out;
  }
}

TEST_F(Chat, AmongSeveralTemplatesTheDefaultCounts) {
  const auto give = [&](const char* templates) { write_file(model() + "/tokenizer_config.json", templates); };
  give(R"({"chat_template": [{"name": 5, "template": "a"}, {"template": "b"}]})");
  EXPECT_TRUE(contains(said("the river\n"), "has no chat template"));
  give(
      R"({"chat_template": [{"name": 5, "template": "a"}, {"name": "default", "template": "{{ messages[0].content }}"}]})");
  EXPECT_FALSE(contains(said("the river\n"), "has no chat template"));
}

// Ctrl-A goes to the beginning of a line, Ctrl-P to the line before.
TEST_F(Chat, LinesCanBeEditedAtATerminal) {
  const std::string out = said("help\x01/\r\x10\r/quit\r", {}, true);
  std::size_t helps = 0;
  for (std::size_t at = out.find("forgets the conversation"); at != std::string::npos;
       at = out.find("forgets the conversation", at + 1)) {
    ++helps;
  }
  EXPECT_EQ(helps, 2U) << out;
}

}  // namespace
}  // namespace qdelta::testing
