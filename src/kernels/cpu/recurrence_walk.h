// The recurrence over whole sequences, a few tokens at a time: the fastest forward where nothing is kept for a
// backward.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kernels.h"

namespace qdelta::cpu {

void recurrence_walk(const RecurrenceForward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_walk_workspace(const RecurrenceForward& args);

}  // namespace qdelta::cpu
