// What fuzz targets expect of the code they feed.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace qdelta::fuzz {

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not as expected: %s\n", what);
  std::abort();
}

// Errors are how a reader refuses what is in a file; anything else is a bug.
template <class Action>
void may_refuse(const Action& action, Status another = Status::corrupt) {
  try {
    action();
  } catch (const Error& error) {
    const Status status = error.status();
    expect(status == Status::corrupt || status == Status::unsupported || status == another, error.what());
    expect(std::strlen(error.what()) < 2000, "a message that nobody can read");
  }
}

}  // namespace qdelta::fuzz
