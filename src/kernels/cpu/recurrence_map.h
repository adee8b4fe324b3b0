// The map of a range of tokens on the CPU.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/recurrence_map.h"

namespace qdelta::cpu {

void recurrence_map(const Device& device, const RecurrenceMap& args, std::span<std::byte> workspace);
void recurrence_entry_gradient(const Device& device, const RecurrenceEntryGradient& args,
                               std::span<std::byte> workspace);
void recurrence_map_product(const Device& device, const RecurrenceMapProduct& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_map_workspace(const Device& device, const RecurrenceMap& args);
[[nodiscard]] std::size_t recurrence_entry_gradient_workspace(const Device& device,
                                                              const RecurrenceEntryGradient& args);
[[nodiscard]] std::size_t recurrence_map_product_workspace(const Device& device, const RecurrenceMapProduct& args);

}  // namespace qdelta::cpu
