#include "kernels/gpu_stream.h"

#include <cstring>

#include "kernels/cuda/context.h"

namespace qdelta {

cudaStream_t stream_of(const Device& device) { return device.gpu->stream(); }

GpuId id_of(const Device& device) {
  cudaDeviceProp properties{};
  QDELTA_CUDA(cudaGetDeviceProperties(&properties, device.gpu->ordinal()));
  GpuId id{};
  static_assert(sizeof(id) == sizeof(properties.uuid));
  std::memcpy(id.data(), &properties.uuid, sizeof(id));
  return id;
}

GpuStream::GpuStream() { QDELTA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
GpuStream::~GpuStream() { cudaStreamDestroy(stream_); }
void GpuStream::synchronize() noexcept { cudaStreamSynchronize(stream_); }

GpuEvent::GpuEvent() { QDELTA_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
GpuEvent::~GpuEvent() { cudaEventDestroy(event_); }
void GpuEvent::record(cudaStream_t stream) { QDELTA_CUDA(cudaEventRecord(event_, stream)); }
void GpuEvent::hold_back(cudaStream_t stream) { QDELTA_CUDA(cudaStreamWaitEvent(stream, event_)); }

}  // namespace qdelta
