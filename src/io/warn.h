// A word on standard error where nothing can be done if it does not get there. fmt::print throws when a disk is full,
// and in a thread of its own that would end the process.
#pragma once

#include <cstdio>
#include <string>

namespace qdelta {

inline void warn(const std::string& line) { static_cast<void>(std::fputs((line + "\n").c_str(), stderr)); }

}  // namespace qdelta
