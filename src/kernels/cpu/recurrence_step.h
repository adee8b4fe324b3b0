// The recurrence token by token: one step on a pool of states, and whole sequences.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kernels.h"

namespace qdelta::cpu {

void recurrence_step(const RecurrenceStep& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_step_workspace(const RecurrenceStep& args);

void recurrence_scan(const RecurrenceForward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_scan_workspace(const RecurrenceForward& args);

}  // namespace qdelta::cpu
