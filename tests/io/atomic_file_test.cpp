#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "io/folder_lock.h"
#include "io/mapped_file.h"
#include "io_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::read_file;
using testing::TemporaryFolder;
using testing::to_bytes;
using testing::Unprivileged;
using testing::write_file;

std::string contents(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Lets files grow to `bytes` and no further: what a full disk looks like to a writer, without one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  FileSizeLimit(FileSizeLimit&&) = delete;
  FileSizeLimit& operator=(FileSizeLimit&&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(AtomicFile, WritesAndReplaces) {
  const TemporaryFolder folder;
  const std::string path = folder.file("target");
  for (const std::string text : {"first", "second, and longer", ""}) {
    AtomicFile file(path);
    const std::size_t half = text.size() / 2;
    file.write(to_bytes(text.substr(0, half)));
    file.write(to_bytes(text.substr(half)));
    file.commit();
    EXPECT_EQ(read_file(path), text);
    EXPECT_EQ(folder.count(), 1);
  }
}

TEST(AtomicFile, WritesInTheCurrentFolderAndSurvivesChdir) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  AtomicFile file("bare-name");
  std::filesystem::current_path(before);
  file.write(to_bytes("text"));
  file.commit();
  EXPECT_EQ(read_file(folder.file("bare-name")), "text");
}

TEST(AtomicFile, LeavesPermissionsToTheUmask) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  AtomicFile file(folder.file("target"));
  ::umask(before);
  file.commit();
  struct stat info {};
  ASSERT_EQ(::stat(folder.file("target").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0640u);
}

TEST(AtomicFile, WithoutCommitNothingHappens) {
  const TemporaryFolder folder;
  write_file(folder.file("target"), "old");
  {
    AtomicFile file(folder.file("target"));
    file.write(to_bytes("new"));
    EXPECT_EQ(folder.count(), 2);
    EXPECT_EQ(read_file(folder.file("target")), "old");
  }
  EXPECT_EQ(read_file(folder.file("target")), "old");
  EXPECT_EQ(folder.count(), 1);
}

TEST(AtomicFile, FullDiskKeepsTheOldFile) {
  const TemporaryFolder folder;
  write_file(folder.file("target"), "old");
  {
    AtomicFile file(folder.file("target"));
    {
      const FileSizeLimit limit(4096);
      file.write(to_bytes(std::string(4000, 'x')));
      // The first part of this fits, so the system writes less than asked before it refuses.
      expect_error(Status::io, {folder.file("target"), "File too large"},
                   [&] { file.write(to_bytes(std::string(4000, 'y'))); });
    }
    // There is room again, but the file has a gap: it must not be committed.
    expect_error(Status::io, {folder.file("target"), "an earlier write"}, [&] { file.commit(); });
    expect_error(Status::io, {"an earlier write"}, [&] { file.write(to_bytes("z")); });
  }
  EXPECT_EQ(read_file(folder.file("target")), "old");
  EXPECT_EQ(folder.count(), 1);
}

TEST(AtomicFile, UnwritableFolder) {
  const TemporaryFolder folder;
  const std::string path = folder.file("target");
  write_file(path, "old");
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0555});
  {
    const Unprivileged nobody;
    if (!nobody) GTEST_SKIP() << "cannot give up root here";
    expect_error(Status::io, {path, "Permission denied"}, [&] { AtomicFile file(path); });
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.count(), 1);
}

TEST(AtomicFile, TargetsThatCannotBe) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& path, const std::string& piece) {
    expect_error(Status::io, {"cannot write", piece}, [&] { AtomicFile file(path); });
  };
  refuse(folder.file("missing/target"), "No such file or directory");
  write_file(folder.file("file"), "old");
  refuse(folder.file("file/target"), "Not a directory");
  std::filesystem::create_directory(folder.file("directory"));
  refuse(folder.file("directory"), "Is a directory");
  refuse(folder.file("directory/"), "names no file");
  refuse("", "names no file");
  refuse(folder.file(std::string_view("a\0b", 3)), "NUL");
  EXPECT_EQ(folder.count(), 2);
}

TEST(AtomicFile, FollowsLinks) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("there"));
  std::filesystem::create_symlink("there/first", folder.file("link"));
  std::filesystem::create_symlink("../target", folder.file("there/first"));
  for (const char* text : {"new", "newer"}) {  // the target is not there, then it is
    write_whole(folder.file("link"), text);
    EXPECT_EQ(read_file(folder.file("target")), text);
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file("there/first")));
  }
  std::filesystem::create_symlink("loop", folder.file("loop"));
  expect_error(Status::io, {folder.file("loop"), "symbolic links"}, [&] { AtomicFile file(folder.file("loop")); });
}

TEST(AtomicFile, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  expect_error(Status::io, {folder.file("pipe"), "no regular file"}, [&] { AtomicFile file(folder.file("pipe")); });
  EXPECT_TRUE(std::filesystem::is_fifo(folder.file("pipe")));
  std::filesystem::create_symlink(folder.file("pipe"), folder.file("link"));
  expect_error(Status::io, {folder.file("link"), "no regular file"}, [&] { AtomicFile file(folder.file("link")); });
}

TEST(FolderLock, OneAtATime) {
  const TemporaryFolder folder;
  {
    const FileDescriptor first = lock_folder(folder.path());
    EXPECT_TRUE(first);
    expect_error(Status::io, {folder.path(), "another process"},
                 [&] { static_cast<void>(lock_folder(folder.path())); });
  }
  EXPECT_TRUE(lock_folder(folder.path()));
  EXPECT_FALSE(lock_folder(folder.file("not there")));
}

TEST(AtomicFile, FolderThatGoesAwayBeforeCommit) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("gone"));
  AtomicFile file(folder.file("gone/target"));
  file.write(to_bytes("text"));
  std::filesystem::remove_all(folder.file("gone"));
  expect_error(Status::io, {folder.file("gone/target"), "renaming"}, [&] { file.commit(); });
}

TEST(AtomicFile, CommitIsTheLastCall) {
  const TemporaryFolder folder;
  AtomicFile file(folder.file("target"));
  file.commit();
  expect_error(Status::internal, {"already committed"}, [&] { file.commit(); });
  expect_error(Status::internal, {"already committed"}, [&] { file.write(to_bytes("more")); });
}

TEST(MappedFile, ReadsWhatIsThere) {
  const TemporaryFolder folder;
  const std::string text(10'000, 'q');
  write_file(folder.file("file"), text);
  MappedFile file(folder.file("file"));
  EXPECT_EQ(contents(file), text);

  MappedFile moved(std::move(file));
  EXPECT_EQ(contents(moved), text);
  MappedFile assigned;
  EXPECT_TRUE(assigned.bytes().empty());
  assigned = std::move(moved);
  EXPECT_EQ(contents(assigned), text);
}

TEST(MappedFile, EmptyFile) {
  const TemporaryFolder folder;
  write_file(folder.file("empty"), "");
  EXPECT_TRUE(MappedFile(folder.file("empty")).bytes().empty());
}

TEST(MappedFile, PathsThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& path, const std::string& piece) {
    expect_error(Status::io, {path.substr(0, path.find('\0')), piece}, [&] { MappedFile file(path); });
  };
  refuse(folder.file("missing"), "No such file or directory");
  refuse(folder.path(), "Is a directory");
  refuse(folder.file(std::string_view("a\0b", 3)), "NUL");
  refuse("/dev/null", "not a file");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  refuse(folder.file("pipe"), "not a file");

  write_file(folder.file("secret"), "text");
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0755});
  std::filesystem::permissions(folder.file("secret"), std::filesystem::perms::none);
  const Unprivileged nobody;
  if (!nobody) GTEST_SKIP() << "cannot give up root here";
  refuse(folder.file("secret"), "Permission denied");
}

}  // namespace
}  // namespace qdelta
