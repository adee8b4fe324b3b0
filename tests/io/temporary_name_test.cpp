// Whose a temporary is, and which are removed.
#include "io/temporary_name.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io_testing.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

using testing::TemporaryFolder;
using testing::write_file;

// The parts of a name: host, boot, space, process, start, number.
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream in(name.substr(8, name.size() - 12));
  for (std::string part; std::getline(in, part, '-');) parts.push_back(part);
  return parts;
}
std::string name_with(std::size_t which, const std::string& value) {
  std::vector<std::string> parts = parts_of(temporary_name());
  parts[which] = value;
  return fmt::format(".qdelta-{}.tmp", fmt::join(parts, "-"));
}

// A process that has made up a name and waits; killed when the object goes, if not before.
class NamingChild {
 public:
  NamingChild() {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) throw std::runtime_error("no pipe");
    child_ = ::fork();
    if (child_ == 0) {
      const std::string name = temporary_name();
      if (::write(pipe[1], name.data(), name.size()) < 0) ::_exit(1);
      ::close(pipe[1]);
      ::pause();
      ::_exit(0);
    }
    ::close(pipe[1]);
    std::array<char, 256> text{};
    const ssize_t got = ::read(pipe[0], text.data(), text.size());
    name_ = std::string(text.data(), static_cast<std::size_t>(got));
    ::close(pipe[0]);
  }
  ~NamingChild() {
    end();
    reap();
  }
  NamingChild(const NamingChild&) = delete;
  NamingChild& operator=(const NamingChild&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  void end() const {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT);
  }
  void reap() {
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
  std::string name_;
};

TEST(TemporaryName, OfLivingProcessesAreNoLeftovers) {
  EXPECT_NE(temporary_name(), temporary_name());
  EXPECT_EQ(parts_of(temporary_name()).size(), 6U);
  EXPECT_FALSE(is_leftover(temporary_name()));
  EXPECT_TRUE(temporary_name("data").starts_with("data.qdelta-"));
  const NamingChild child;
  EXPECT_FALSE(is_leftover(child.name()));
  EXPECT_EQ(parts_of(child.name())[0], parts_of(temporary_name())[0]);
  EXPECT_NE(parts_of(child.name())[3], parts_of(temporary_name())[3]);
}

TEST(TemporaryName, OfDeadOnesAre) {
  NamingChild child;
  child.end();
  EXPECT_TRUE(is_leftover(child.name())) << "killed, but nobody has asked about it yet";
  child.reap();
  EXPECT_TRUE(is_leftover(child.name()));
}

TEST(TemporaryName, WhereItCannotBeKnownTheyAreNot) {
  ASSERT_NE(parts_of(temporary_name())[1], "00000000") << "no boot id here";
  EXPECT_TRUE(is_leftover(name_with(4, "1"))) << "another process had this id before";
  EXPECT_TRUE(is_leftover(name_with(1, "00000011"))) << "the machine was started again";
  EXPECT_FALSE(is_leftover(name_with(0, "00000011"))) << "another machine's";
  EXPECT_FALSE(is_leftover(name_with(2, "17"))) << "another container's";
  for (const char* other : {".qdelta-12-0.tmp", ".qdelta-.tmp", "qdelta-1-1-1-1-1-1.tmp", ".qdelta-1-1-1-1-1-1.txt",
                            ".qdelta-1-1-1-1-1-1-1.tmp", ".qdelta-x-1-1-1-1-1.tmp", ".qdelta-1-1-1--1-1-1.tmp"}) {
    EXPECT_FALSE(is_leftover(other)) << other;
  }
}

TEST(TemporaryName, LeftoversGoWithTheNextFile) {
  const TemporaryFolder folder;
  NamingChild child;
  child.end();
  child.reap();
  write_file(folder.file(child.name()), "half of a file");
  const std::string folder_name = "data" + name_with(4, "1");
  fs::create_directories(folder.file(folder_name + "/train"));
  write_file(folder.file(folder_name + "/train/tokens"), "");
  const std::vector<std::string> others{name_with(0, "00000011"), ".qdelta-12-0.tmp", "mine.tmp"};
  for (const std::string& other : others) write_file(folder.file(other), "");
  write_whole(folder.file("target"), "text");
  std::vector<std::string> expected = others;
  expected.emplace_back("target");
  std::ranges::sort(expected);
  EXPECT_EQ(folder.names(), expected);
}

}  // namespace
}  // namespace qdelta
