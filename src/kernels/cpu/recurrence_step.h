// The recurrence by one token: a step on a pool of states.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/recurrence.h"

namespace qdelta::cpu {

void recurrence_step(const Device& device, const RecurrenceStep& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_step_workspace(const Device& device, const RecurrenceStep& args);

}  // namespace qdelta::cpu
