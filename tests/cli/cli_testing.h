// What the tests of the command line share: running the binary, and cases to change.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files.h"
#include "io/safetensors.h"
#include "testing.h"

namespace qdelta::testing {

inline bool contains(const std::string& text, std::string_view piece) { return text.find(piece) != std::string::npos; }

struct RunResult {
  int status = -1;  // the exit status; 128 + signal where it was killed
  std::string out, err;
};

// Runs the binary, its output into `out_path` where one is given.
inline RunResult run_qdelta(const std::vector<std::string>& args, const std::string& out_path = "") {
  const TemporaryFolder folder;
  const std::string out = out_path.empty() ? folder.file("out") : out_path;
  const std::string err = folder.file("err");
  std::vector<std::string> words{QDELTA_BINARY};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int out_file = ::open(out.c_str(), O_WRONLY | O_CREAT, 0600);
    const int err_file = ::open(err.c_str(), O_WRONLY | O_CREAT, 0600);
    if (::dup2(out_file, STDOUT_FILENO) >= 0 && ::dup2(err_file, STDERR_FILENO) >= 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("cannot run " QDELTA_BINARY);
  RunResult result;
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = out_path.empty() ? read_file(out) : "";
  result.err = read_file(err);
  return result;
}

// A failure as users should meet it: this exit status, one message that starts with our name and has all these pieces.
inline void expect_failure(const RunResult& result, int status, const std::vector<std::string>& pieces) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
  EXPECT_TRUE(result.err.ends_with("\n")) << result.err;
  EXPECT_EQ(result.out, "");
  for (const std::string& piece : pieces) {
    EXPECT_NE(result.err.find(piece), std::string::npos) << "message: " << result.err << "should contain: " << piece;
  }
}

// A golden case of the repository.
inline std::string golden(std::string_view name) {
  return QDELTA_GOLDEN_DIR "/op/" + std::string(name) + ".safetensors";
}
// The paths of all of them, and of those in the folder that QDELTA_GOLDEN names, without the ones that are in both.
inline std::vector<std::string> golden_paths() {
  std::vector<std::string> folders{QDELTA_GOLDEN_DIR};
  if (const char* more = std::getenv("QDELTA_GOLDEN")) folders.emplace_back(more);
  std::map<std::string, std::string> by_name;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/op")) {
      if (entry.path().extension() == ".safetensors") by_name.try_emplace(entry.path().stem(), entry.path());
    }
  }
  std::vector<std::string> paths;
  paths.reserve(by_name.size());
  for (const auto& [name, path] : by_name) paths.push_back(path);
  return paths;
}

// A file's contents in memory, to be changed and written again.
struct EditableCase {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;

  EditableCase() = default;
  EditableCase(const EditableCase& other) : metadata(other.metadata) {
    for (const auto& [name, tensor] : other.tensors) tensors.emplace(name, converted(tensor.view(), tensor.dtype()));
  }
  EditableCase(EditableCase&&) = default;
  EditableCase& operator=(const EditableCase&) = delete;
  EditableCase& operator=(EditableCase&&) = default;

  static EditableCase read(const std::string& path) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    EditableCase result;
    for (const std::string& name : file.names()) {
      result.tensors.emplace(name, converted(file.view(name), file.view(name).dtype));
    }
    result.metadata = file.metadata();
    return result;
  }
  void convert(const std::string& name, DType dtype) {
    tensors[name] = converted(std::as_const(tensors[name]).view(), dtype);
  }
  void write(const std::string& path) const {
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor.view()});
    write_safetensors(path, named, metadata);
  }
};

}  // namespace qdelta::testing
