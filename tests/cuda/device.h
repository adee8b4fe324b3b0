// Tensors on the GPU for tests: uploaded with room between and around their rows, and brought back.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/cuda/context.h"

namespace qdelta::testing {

inline bool have_device() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) cudaGetLastError();
  return found;
}
#define QDELTA_NEEDS_DEVICE() \
  if (!::qdelta::testing::have_device()) GTEST_SKIP() << "there is no CUDA device on this machine"

// One context for all tests of a program.
inline const cuda::Context& device_context() {
  static const cuda::Context context(0);
  return context;
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) : size_(bytes) {
    QDELTA_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), bytes > 0 ? bytes : 1));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
  // Waits until it is there: a copy from ordinary memory may return before, and the context's stream does not wait.
  void upload(const void* from) const {
    if (size_ > 0) QDELTA_CUDA(cudaMemcpy(data_, from, size_, cudaMemcpyHostToDevice));
    QDELTA_CUDA(cudaDeviceSynchronize());
  }
  // After everything on the context's stream.
  void download(void* to) const {
    device_context().synchronize();
    if (size_ > 0) QDELTA_CUDA(cudaMemcpy(to, data_, size_, cudaMemcpyDeviceToHost));
  }
  void fill(int byte) const {
    if (size_ > 0) QDELTA_CUDA(cudaMemset(data_, byte, size_));
    QDELTA_CUDA(cudaDeviceSynchronize());
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A vector of numbers.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<T>& values) : buffer_(values.size() * sizeof(T)) {
    buffer_.upload(values.data());
  }
  [[nodiscard]] std::span<T> span() const { return {reinterpret_cast<T*>(buffer_.data()), buffer_.size() / sizeof(T)}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> out(buffer_.size() / sizeof(T));
    buffer_.download(out.data());
    return out;
  }

 private:
  DeviceBuffer buffer_;
};

// Where a tensor lies: elements before its first one, and after each row of the last axis.
struct Placement {
  std::int64_t offset = 0, padding = 0;
};

class DeviceTensor {
 public:
  DeviceTensor() : buffer_(0) {}
  explicit DeviceTensor(const Tensor& content, const Placement& place = {})
      : DeviceTensor(content.dtype(), content.shape(), place) {
    std::vector<std::byte> image = image_;
    for_rows(image.data(), content.data(),
             [](std::byte* there, const std::byte* here, std::size_t bytes) { std::memcpy(there, here, bytes); });
    buffer_.upload(image.data());
  }
  // Full of NaN.
  DeviceTensor(DType dtype, const Shape& shape, const Placement& place = {}) : buffer_(0) {
    view_ = TensorView(nullptr, dtype, shape);
    const std::int64_t width = shape.rank > 0 ? shape[shape.rank - 1] : 1;
    std::int64_t step = width + place.padding;
    for (int axis = shape.rank - 2; axis >= 0; --axis) {
      view_.stride[static_cast<std::size_t>(axis)] = step;
      step *= shape[axis];
    }
    if (shape.rank < 2) step = width;
    const std::size_t size = size_of(dtype);
    image_.assign(static_cast<std::size_t>(step + place.offset + 16) * size, std::byte{0xff});
    buffer_ = DeviceBuffer(image_.size());
    buffer_.upload(image_.data());
    view_.data = buffer_.data() + static_cast<std::size_t>(place.offset) * size;
  }

  [[nodiscard]] TensorView view() const { return view_; }
  // The values, row-major. Fails the test if anything around them has changed.
  [[nodiscard]] Tensor get() const {
    std::vector<std::byte> image(image_.size());
    buffer_.download(image.data());
    Tensor out(view_.dtype, view_.shape);
    for_rows(image.data(), out.data(), [](std::byte* there, std::byte* here, std::size_t bytes) {
      std::memcpy(here, there, bytes);
      std::memset(there, 0xff, bytes);
    });
    for (const std::byte byte : image) {
      if (byte == std::byte{0xff}) continue;
      ADD_FAILURE() << "memory around a tensor " << view_.shape.text() << " was written";
      break;
    }
    return out;
  }

 private:
  // body(row in the image, row of a row-major tensor, bytes)
  template <class Byte, class Body>
  void for_rows(std::byte* image, Byte* content, const Body& body) const {
    const int rank = view_.shape.rank;
    const std::int64_t width = rank > 0 ? view_.extent(rank - 1) : 1;
    const std::int64_t rows = width > 0 ? view_.shape.elements() / width : 0;
    const auto size = static_cast<std::int64_t>(size_of(view_.dtype));
    const std::int64_t step = rank > 1 ? view_.step(rank - 2) : width;
    const std::int64_t start = view_.data - buffer_.data();
    for (std::int64_t r = 0; r < rows; ++r) {
      body(image + start + r * step * size, content + r * width * size, static_cast<std::size_t>(width * size));
    }
  }

  DeviceBuffer buffer_;
  std::vector<std::byte> image_;  // as it was before anything was written
  TensorView view_;
};

}  // namespace qdelta::testing
