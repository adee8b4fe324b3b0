// Names for what is being written, and the removal of what processes that are no more have left.
//
//   .qdelta-HOST-BOOT-SPACE-PID-START-N.tmp      maybe with a word before it
//
//   HOST    of this machine: a hash of its name and machine-id, so that a folder shared between machines is safe
//   BOOT    a hash of the kernel's boot id: no process survives a restart
//   SPACE   the number of the PID namespace: a container's process ids mean nothing outside
//   PID     of the process, and START, when it began in clock ticks since the boot: ids are used again
//   N       counts
#pragma once

#include <string>
#include <string_view>

namespace qdelta {

// Another name at every call, for a file or a folder that is to be renamed or removed in the end. `word`, for people,
// comes first.
[[nodiscard]] std::string temporary_name(std::string_view word = "");

// Whether a name is one of a process that is no more. False where that cannot be known: it is of another machine, of a
// container with ids of its own, or no such name.
[[nodiscard]] bool is_leftover(const std::string& name);

// Removes leftovers from a folder. What cannot be read or removed is left.
void remove_leftovers(const std::string& folder) noexcept;

}  // namespace qdelta
