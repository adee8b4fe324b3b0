// The recurrence over whole sequences, a few tokens at a time: the fastest forward where nothing is saved for a
// backward.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/recurrence.h"

namespace qdelta::cpu {

void recurrence_blocked(const Device& device, const RecurrenceForward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_blocked_workspace(const Device& device, const RecurrenceForward& args);

}  // namespace qdelta::cpu
