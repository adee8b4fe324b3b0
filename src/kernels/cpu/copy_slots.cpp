// rows[n] = pool[slots[n]];   pool[slots[n]] = rows[n]
#include <cstring>

#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/view_check.h"

namespace qdelta::cpu {
namespace {

// copy(in the pool, in the rows)
template <class Copy>
void for_slots(const Device& device, const CopySlots& args, const Copy& copy) {
  const std::int64_t width = args.pool.extent(1);
  for (const std::int64_t slot : args.slots) {
    require(slot >= 0 && slot < args.pool.extent(0), "there is no state {} in a pool of {}", slot, args.pool.extent(0));
  }
  parallel_for(args.rows.extent(0), thread_count(device.threads), [&](std::int64_t n, int /*worker*/) {
    copy(floats(args.pool) + args.slots[static_cast<std::size_t>(n)] * width, floats(args.rows) + n * width,
         static_cast<std::size_t>(width) * sizeof(float));
  });
}

}  // namespace

void gather_slots(const Device& device, const CopySlots& args) {
  for_slots(device, args, [](float* pool, float* rows, std::size_t bytes) { std::memcpy(rows, pool, bytes); });
}

void scatter_slots(const Device& device, const CopySlots& args) {
  for_slots(device, args, [](float* pool, float* rows, std::size_t bytes) { std::memcpy(pool, rows, bytes); });
}

}  // namespace qdelta::cpu
