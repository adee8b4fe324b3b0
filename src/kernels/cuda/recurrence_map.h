// The map of a range of tokens on the GPU: those of its segments (recurrence_chunk.h), combined in float32. As there,
// views and workspace are device memory and nothing waits; m, n, dn, state, add and out are contiguous.
#pragma once

#include <cstddef>

#include "kernels/cuda/context.h"
#include "kernels/recurrence_map.h"

namespace qdelta::cuda {

void recurrence_map(const Context& context, const RecurrenceMap& args, Workspace& workspace);
void recurrence_entry_gradient(const Context& context, const RecurrenceEntryGradient& args, Workspace& workspace);
void recurrence_map_product(const Context& context, const RecurrenceMapProduct& args, Workspace& workspace);
[[nodiscard]] std::size_t recurrence_map_workspace(const Context& context, const RecurrenceMap& args);
[[nodiscard]] std::size_t recurrence_map_workspace(const Context& context, const RecurrenceEntryGradient& args);
[[nodiscard]] std::size_t recurrence_map_workspace(const Context& context, const RecurrenceMapProduct& args);

}  // namespace qdelta::cuda
