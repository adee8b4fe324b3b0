// A mapped file that is shortened: a message and an exit status instead of a signal.
#include "io/mapping_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "io/mapped_file.h"
#include "io_testing.h"

namespace qdelta {
namespace {

using testing::TemporaryFolder;
using testing::write_file;

volatile std::byte sink;

TEST(MappingGuardDeathTest, NamesTheFileThatWasShortened) {
  const TemporaryFolder folder;
  for (const char* name : {"first", "second", "third"}) write_file(folder.file(name), std::string(20'000, 'x'));
  const auto shortened = [&] {
    install_mapping_guard();
    { const MappedFile gone(folder.file("first")); }  // its entry is used again
    const MappedFile second(folder.file("second"));
    MappedFile third(folder.file("third"));
    const MappedFile moved = std::move(third);
    std::filesystem::resize_file(folder.file("second"), 10);
    sink = moved.bytes().back();
    sink = second.bytes().back();
  };
  EXPECT_EXIT(shortened(), ::testing::ExitedWithCode(1), "^qdelta: .*/second cannot be read any more");
}

TEST(MappingGuardDeathTest, OtherBusErrorsEndAsTheyDo) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has its own words";
  const TemporaryFolder folder;
  write_file(folder.file("file"), std::string(20'000, 'x'));
  const auto unknown = [&] {
    install_mapping_guard();
    { const MappedFile known(folder.file("file")); }
    const int file = ::open(folder.file("file").c_str(), O_RDONLY | O_CLOEXEC);
    const auto* bytes = static_cast<const std::byte*>(::mmap(nullptr, 20'000, PROT_READ, MAP_PRIVATE, file, 0));
    std::filesystem::resize_file(folder.file("file"), 10);
    sink = bytes[19'999];
  };
  EXPECT_EXIT(unknown(), ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace qdelta
