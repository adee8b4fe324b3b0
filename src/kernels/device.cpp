#include "kernels/device.h"

#include <cstring>
#include <utility>

#include "core/error.h"
#include "kernels/device_thread.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/graph.h"
#include "kernels/cuda/runtime.h"
#endif

namespace qdelta {

#ifdef QDELTA_WITH_CUDA

bool gpu_in_build() { return true; }
Gpus find_gpus() {
  Gpus found;
  found.names = cuda::names(found.why_none);
  return found;
}
std::shared_ptr<const cuda::Context> open_gpu(int ordinal) { return cuda::open(ordinal); }

#else

bool gpu_in_build() { return false; }
Gpus find_gpus() { return {{}, "not in this build"}; }
std::shared_ptr<const cuda::Context> open_gpu(int /*ordinal*/) {
  fail(Status::unsupported, "this build of qdelta has no CUDA; build one with: make build CUDA=1");
}

// Without CUDA no Device has a GPU, so these are never called.
namespace cuda {
namespace {
[[noreturn]] void no_gpu() { fail(Status::internal, "a GPU in a build without CUDA"); }
void use_in_this_thread(const Context& /*gpu*/) { no_gpu(); }
std::byte* allocate(std::size_t /*bytes*/) { no_gpu(); }
void release(std::byte* /*data*/) noexcept {}
void upload(const Context& /*gpu*/, void* /*to*/, const void* /*host*/, std::size_t /*bytes*/) { no_gpu(); }
void download(const Context& /*gpu*/, void* /*host*/, const void* /*from*/, std::size_t /*bytes*/) { no_gpu(); }
void copy_on_device(const Context& /*gpu*/, void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) { no_gpu(); }
void clear(const Context& /*gpu*/, void* /*data*/, std::size_t /*bytes*/) { no_gpu(); }
void synchronize(const Context& /*gpu*/) { no_gpu(); }
std::shared_ptr<Graph> capture(const Context& /*gpu*/, const std::function<void()>& /*work*/) { no_gpu(); }
void launch(const Context& /*gpu*/, const Graph& /*graph*/) { no_gpu(); }
bool is_capturing(const Context& /*gpu*/) { no_gpu(); }
}  // namespace
}  // namespace cuda

#endif

void use_in_this_thread(const Device& device) {
  if (device.gpu != nullptr) cuda::use_in_this_thread(*device.gpu);
}

DeviceBuffer::DeviceBuffer(const Device& device, std::size_t bytes) : size_(bytes), on_gpu_(device.gpu != nullptr) {
  if (on_gpu_) {
    data_ = cuda::allocate(bytes);
    cuda::clear(*device.gpu, data_, bytes);
  } else {
    host_ = AlignedBuffer(bytes);
    data_ = host_.data();
  }
}

DeviceBuffer::~DeviceBuffer() {
  if (on_gpu_) cuda::release(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : host_(std::move(other.host_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      on_gpu_(std::exchange(other.on_gpu_, false)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    if (on_gpu_) cuda::release(data_);
    host_ = std::move(other.host_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    on_gpu_ = std::exchange(other.on_gpu_, false);
  }
  return *this;
}

void DeviceBuffer::grow(const Device& device, std::size_t bytes) {
  if (size_ >= bytes) return;
  *this = DeviceBuffer();  // first, so that the two need not fit side by side
  *this = DeviceBuffer(device, bytes);
}

void CapturedGraph::replay() {
  if (device_.gpu == nullptr || replays_++ == 0) return work_();
  if (graph_ == nullptr) graph_ = cuda::capture(*device_.gpu, work_);
  cuda::launch(*device_.gpu, *graph_);
}

bool is_capturing(const Device& device) { return device.gpu != nullptr && cuda::is_capturing(*device.gpu); }

void upload(const Device& device, void* to, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.gpu != nullptr) return cuda::upload(*device.gpu, to, host, bytes);
  std::memcpy(to, host, bytes);
}

void download(const Device& device, void* host, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.gpu != nullptr) return cuda::download(*device.gpu, host, from, bytes);
  std::memcpy(host, from, bytes);
}

void copy_on_device(const Device& device, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.gpu != nullptr) return cuda::copy_on_device(*device.gpu, to, from, bytes);
  std::memcpy(to, from, bytes);
}

void clear(const Device& device, void* data, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.gpu != nullptr) return cuda::clear(*device.gpu, data, bytes);
  std::memset(data, 0, bytes);
}

void synchronize(const Device& device) {
  if (device.gpu != nullptr) cuda::synchronize(*device.gpu);
}

}  // namespace qdelta
