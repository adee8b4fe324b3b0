#include "kernels/caller_stream.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/runtime.h"
#endif

namespace qdelta {

#ifndef QDELTA_WITH_CUDA

// Without CUDA no Device has a GPU, so only the first is ever called, and says so.
namespace cuda {
namespace {
std::shared_ptr<const Context> open_on_stream(int ordinal, void* /*stream*/) { return open_gpu(ordinal); }
int exchange_current(const Context& /*gpu*/) { return -1; }
void restore_current(int /*ordinal*/) noexcept {}
}  // namespace
}  // namespace cuda

#endif

std::shared_ptr<const cuda::Context> open_gpu_on_stream(int ordinal, void* stream) {
  return cuda::open_on_stream(ordinal, stream);
}

CurrentGpu::CurrentGpu(const Device& device) {
  if (device.gpu != nullptr) before_ = cuda::exchange_current(*device.gpu);
}

CurrentGpu::~CurrentGpu() {
  if (before_ >= 0) cuda::restore_current(before_);
}

}  // namespace qdelta
