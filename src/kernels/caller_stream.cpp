#include "kernels/caller_stream.h"

#include "core/error.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/runtime.h"
#endif

namespace qdelta {

#ifdef QDELTA_WITH_CUDA

std::shared_ptr<const cuda::Context> open_gpu_on_stream(int ordinal, void* stream) {
  return cuda::open_on_stream(ordinal, stream);
}

CurrentGpu::CurrentGpu(const Device& device) {
  if (device.gpu != nullptr) before_ = cuda::exchange_current(*device.gpu);
}
CurrentGpu::~CurrentGpu() {
  if (before_ >= 0) cuda::restore_current(before_);
}

#else

std::shared_ptr<const cuda::Context> open_gpu_on_stream(int ordinal, void* /*stream*/) { return open_gpu(ordinal); }

CurrentGpu::CurrentGpu(const Device& /*device*/) {}
CurrentGpu::~CurrentGpu() = default;

#endif

}  // namespace qdelta
