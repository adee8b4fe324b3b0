// What happens when a mapped file is shortened, or its disk fails, while it is being read.
//
// The system then sends SIGBUS to the thread that touched the missing page. A handler looks the address up among the
// mappings, says which file it was and ends the process with status 1. The other way would be to read files with pread
// into memory of ours: an error that can be returned, but every shard and every checkpoint would be in memory twice, in
// the page cache and in the copy, and a random batch would cost a system call for each row. Data that is no longer
// there leaves nothing to go on with in either case.
//
// The handler belongs to a program, not to a library: `qdelta` installs it, libqdelta leaves signals to its host.
#pragma once

#include <cstddef>
#include <string>

namespace qdelta {

// Remembers that these addresses are those of a file, until they are forgotten.
class GuardedMapping {
 public:
  GuardedMapping() = default;
  GuardedMapping(const void* address, std::size_t size, const std::string& path);
  ~GuardedMapping();
  GuardedMapping(GuardedMapping&& other) noexcept;
  GuardedMapping& operator=(GuardedMapping&& other) noexcept;
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;

 private:
  struct Entry;
  friend void report_lost_mapping(const void* address);
  static Entry* first_entry() noexcept;

  Entry* entry_ = nullptr;
};

// Installs the handler. A SIGBUS at any other address ends the process as it always does.
void install_mapping_guard();

}  // namespace qdelta
