// What kernels run on, and memory they can reach.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/memory.h"
#include "core/tensor.h"

namespace qdelta {

namespace cuda {
class Context;
class Graph;
}  // namespace cuda

struct Device {
  int threads = 0;                     // of the CPU; 0: all
  const cuda::Context* gpu = nullptr;  // null: the CPU
  // Of activations, and of the matrices they are multiplied with. Parameters, gradients, the residual stream, the gates
  // and the recurrent states are float32 on any device.
  DType activations = DType::f32;
};

// Whether this build can use a GPU.
[[nodiscard]] bool gpu_in_build();
// "GPU 0: name, memory, compute capability" for each GPU that there is.
struct Gpus {
  std::vector<std::string> names;
  std::string why_none;  // where there is none
};
[[nodiscard]] Gpus find_gpus();
// Opens a GPU. Says plainly where the build or the machine has none.
[[nodiscard]] std::shared_ptr<const cuda::Context> open_gpu(int ordinal);

// Memory on a device, zero-filled. On the CPU it is an AlignedBuffer.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Device& device, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // At least `bytes`; what was in it is lost when it grows.
  void grow(const Device& device, std::size_t bytes);

 private:
  AlignedBuffer host_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool on_gpu_ = false;
};

// A row-major tensor on a device, zero-filled.
class DeviceTensor {
 public:
  DeviceTensor(const Device& device, DType dtype, const Shape& shape)
      : dtype_(dtype), shape_(shape), storage_(device, static_cast<std::size_t>(shape.elements()) * size_of(dtype)) {}

  [[nodiscard]] TensorView view() noexcept { return {storage_.data(), dtype_, shape_}; }
  [[nodiscard]] ConstTensorView view() const noexcept { return {storage_.data(), dtype_, shape_}; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return storage_.size(); }

 private:
  DType dtype_;
  Shape shape_;
  DeviceBuffer storage_;
};

// Work that is repeated, always the same on the same memory. On a GPU the second replay captures it as a CUDA graph
// (the first runs it as it is, which loads kernels and chooses algorithms), and from then on it is one launch. On the
// CPU it just runs.
class CapturedGraph {
 public:
  CapturedGraph(const Device& device, std::function<void()> work) : device_(device), work_(std::move(work)) {}
  void replay();

 private:
  Device device_;
  std::function<void()> work_;
  int replays_ = 0;
  std::shared_ptr<cuda::Graph> graph_;
};

// Whether what is asked of it now is captured as a graph.
[[nodiscard]] bool is_capturing(const Device& device);

// Copies in the order of the device's other work. download waits until the bytes are there.
void upload(const Device& device, void* to, const void* host, std::size_t bytes);
void download(const Device& device, void* host, const void* from, std::size_t bytes);
void copy_on_device(const Device& device, void* to, const void* from, std::size_t bytes);
void clear(const Device& device, void* data, std::size_t bytes);
// Waits until all that was asked of it is done.
void synchronize(const Device& device);

}  // namespace qdelta
