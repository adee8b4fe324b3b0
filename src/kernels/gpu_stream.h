// Streams and events of a GPU, for a library that launches work of its own beside the kernels (NCCL). In builds with
// CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "kernels/device.h"

namespace qdelta {

// What the device's kernels are launched on.
[[nodiscard]] cudaStream_t stream_of(const Device& device);
// The same for two processes only if they use the same GPU.
using GpuId = std::array<std::byte, 16>;
[[nodiscard]] GpuId id_of(const Device& device);

// A stream of the GPU that is current in this thread.
class GpuStream {
 public:
  GpuStream();
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void synchronize() noexcept;

 private:
  cudaStream_t stream_ = nullptr;
};

// Recorded on one stream and waited for on another.
class GpuEvent {
 public:
  GpuEvent();
  ~GpuEvent();
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void record(cudaStream_t stream);
  // What is asked of the stream from here on happens after what was recorded.
  void hold_back(cudaStream_t stream);

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace qdelta
