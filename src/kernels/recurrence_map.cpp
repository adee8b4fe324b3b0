// The entry points of the map: check, then hand over to the CPU or the GPU.
#include "kernels/recurrence_map.h"

#include "kernels/cpu/recurrence_map.h"
#include "kernels/recurrence_check.h"
#include "kernels/work_times.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/recurrence_map.h"
#endif

namespace qdelta {
namespace {

template <class Args>
void check_all(const Device& device, const Args& args) {
  check(device);
  check(args);
}

}  // namespace

std::size_t recurrence_workspace(const Device& device, const RecurrenceMap& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_map_workspace(*device.gpu, args);
#endif
  check_all(device, args);
  return cpu::recurrence_map_workspace(device, args);
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceEntryGradient& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_map_workspace(*device.gpu, args);
#endif
  check_all(device, args);
  return cpu::recurrence_entry_gradient_workspace(device, args);
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceMapProduct& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_map_workspace(*device.gpu, args);
#endif
  check_all(device, args);
  return cpu::recurrence_map_product_workspace(device, args);
}

void recurrence_map(const Device& device, const RecurrenceMap& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_map(*device.gpu, args, workspace);
#endif
  check_all(device, args);
  cpu::recurrence_map(device, args, workspace.get(cpu::recurrence_map_workspace(device, args)));
}

void recurrence_entry_gradient(const Device& device, const RecurrenceEntryGradient& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_entry_gradient(*device.gpu, args, workspace);
#endif
  check_all(device, args);
  const std::span<std::byte> scratch = workspace.get(cpu::recurrence_entry_gradient_workspace(device, args));
  cpu::recurrence_entry_gradient(device, args, scratch);
}

void recurrence_map_product(const Device& device, const RecurrenceMapProduct& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_map_product(*device.gpu, args, workspace);
#endif
  check_all(device, args);
  cpu::recurrence_map_product(device, args, workspace.get(cpu::recurrence_map_product_workspace(device, args)));
}

}  // namespace qdelta
