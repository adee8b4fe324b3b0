// What to do where the memory does not suffice: only a subcommand knows which of its flags would help.
#pragma once

#include <fmt/format.h>

#include <new>

#include "core/error.h"

namespace qdelta {

inline constexpr const char* kLessTrainingMemory =
    "lower --rows or --seq-len, give --recompute some or all, or train a smaller model";

// Runs something; its complaint about memory then ends with the hint.
template <class Action>
auto with_memory_hint(const char* hint, Action&& action) {
  try {
    return action();
  } catch (const std::bad_alloc&) {
    fail(Status::out_of_memory, "out of memory; {}", hint);
  } catch (const Error& error) {
    if (error.status() != Status::out_of_memory) throw;
    fail(Status::out_of_memory, "{}; {}", error.what(), hint);
  }
}

}  // namespace qdelta
