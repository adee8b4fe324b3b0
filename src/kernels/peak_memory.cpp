#include "kernels/peak_memory.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/runtime.h"
#endif

namespace qdelta {

std::size_t peak_memory(const Device& device) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::peak_memory();
#endif
  (void)device;
  return 0;
}

}  // namespace qdelta
