// A GPU as a library uses it inside someone else's program: on the caller's stream, and leaving the thread's current
// GPU as it was.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace qdelta {

// `stream` is a cudaStream_t, null the default stream; it must outlive all use. Opening allocates no memory of the GPU,
// so there is no matrix library either: for the recurrence, not for models.
[[nodiscard]] std::shared_ptr<const cuda::Context> open_gpu_on_stream(int ordinal, void* stream);

// Makes the device's GPU the current one of this thread for as long as it lives. Nothing happens on the CPU.
class CurrentGpu {
 public:
  explicit CurrentGpu(const Device& device);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int before_ = -1;  // -1: nothing to restore
};

}  // namespace qdelta
