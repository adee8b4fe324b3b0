// What the tests of `qdelta train` share: a small run, and a program that can be stopped, killed or short of disk.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

#include "cli_testing.h"
#include "train/run_numbers.h"

namespace qdelta::testing {

using Words = std::vector<std::string>;

inline Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// With the values of flags that are there already replaced, and others added: pairs of a flag and its value.
inline Words with(Words words, const Words& pairs) {
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const auto found = std::find(words.begin(), words.end(), pairs[i]);
    if (found == words.end()) {
      words.insert(words.end(), {pairs[i], pairs[i + 1]});
    } else {
      *(found + 1) = pairs[i + 1];
    }
  }
  return words;
}

// Prose of a kind, the same every time.
inline std::string sample_text(std::size_t size, std::uint64_t seed = 1) {
  const Words words{"river", "mill", "water", "stone", "wheel", "spring", "and", "the", "runs", "past", "of", "old"};
  Random random(seed);
  std::string text;
  while (text.size() < size) text += pick(random, words) + (chance(random, 0.1) ? ".\n" : " ");
  text.resize(size);
  return text;
}

// A model and batches so small that a step takes a millisecond.
inline Words tiny_model() {
  return {"--hidden-size", "32", "--layers", "2", "--heads", "2", "--head-dim", "8", "--mlp-width", "32"};
}
inline Words tiny_training(const std::string& steps) {
  return joined(tiny_model(), {"--seq-len", "32", "--rows", "2", "--warmup", "2", "--threads", "1", "--steps", steps});
}

// The binary, running.
class Program {
 public:
  // No file may grow beyond `file_limit` bytes; 0: as large as they like.
  explicit Program(const Words& args, rlim_t file_limit = 0) {
    Words words{QDELTA_BINARY};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = folder_.file("out");
    const std::string err = folder_.file("err");
    child_ = ::fork();
    if (child_ == 0) {
      const int out_file = ::open(out.c_str(), O_WRONLY | O_CREAT, 0600);
      const int err_file = ::open(err.c_str(), O_WRONLY | O_CREAT, 0600);
      if (file_limit > 0) {
        const rlimit limit{file_limit, file_limit};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(126);
      }
      if (::dup2(out_file, STDOUT_FILENO) >= 0 && ::dup2(err_file, STDERR_FILENO) >= 0) ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    if (child_ < 0) throw std::runtime_error("cannot run " QDELTA_BINARY);
  }
  ~Program() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const { ::kill(child_, signal); }
  RunResult wait() {
    int status = 0;
    if (::waitpid(child_, &status, 0) != child_) throw std::runtime_error("lost the program");
    child_ = -1;
    RunResult result;
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read_file(folder_.file("out"));
    result.err = read_file(folder_.file("err"));
    return result;
  }
  // The same, but killed when the time is over.
  RunResult wait_at_most(std::chrono::seconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0) {
      if (std::chrono::steady_clock::now() > end) send(SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return wait();
  }

 private:
  TemporaryFolder folder_;
  pid_t child_ = -1;
};

inline RunResult run_with_file_limit(const Words& args, rlim_t limit) { return Program(args, limit).wait(); }

inline RunResult run_well(const Words& args) {
  RunResult result = run_qdelta(args);
  EXPECT_EQ(result.status, 0) << result.err;
  return result;
}

// Asks again and again, for half a minute at most.
inline bool wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::size_t lines_in(const std::string& path) {
  const std::string contents = read_file(path);
  return static_cast<std::size_t>(std::count(contents.begin(), contents.end(), '\n'));
}

}  // namespace qdelta::testing
