// Tensors on the GPU for tests: uploaded with padding between and around their rows, and downloaded.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/cuda/context.h"
#include "kernels/device.h"

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

// Memory on the GPU, full of NaN whatever type it is read as, with guards at both ends that must stay as they are.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) : size_(bytes) {
    QDELTA_CUDA(cudaMalloc(reinterpret_cast<void**>(&start_), bytes + 2 * kMargin));
    QDELTA_CUDA(cudaMemset(start_, kGuard, bytes + 2 * kMargin));
    fill_with_nan();
  }
  ~DeviceMemory() {
    if (start_ == nullptr) return;
    expect_guard(start_);
    expect_guard(data() + size_);
    cudaFree(start_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return start_ == nullptr ? nullptr : start_ + kMargin; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), size_}; }
  // Waits until it is there: fills and copies may return before, and the context's stream does not wait for them.
  void upload(const void* from) const {
    if (size_ > 0) QDELTA_CUDA(cudaMemcpy(data(), from, size_, cudaMemcpyHostToDevice));
    QDELTA_CUDA(cudaDeviceSynchronize());
  }
  void fill_with_nan() const {
    if (size_ > 0) QDELTA_CUDA(cudaMemset(data(), 0xff, size_));
    QDELTA_CUDA(cudaDeviceSynchronize());
  }
  // After everything on the context's stream.
  void download(void* to) const {
    device_context().synchronize();
    if (size_ > 0) QDELTA_CUDA(cudaMemcpy(to, data(), size_, cudaMemcpyDeviceToHost));
  }

 private:
  static constexpr std::size_t kMargin = 1024;
  static constexpr unsigned char kGuard = 0xa5;

  void expect_guard(const std::byte* at) const {
    std::array<std::byte, kMargin> guard{};
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(guard.data(), at, kMargin, cudaMemcpyDeviceToHost) != cudaSuccess) {
      ADD_FAILURE() << "the memory cannot be read back: " << cudaGetErrorString(cudaGetLastError());
      return;
    }
    const bool whole =
        std::all_of(guard.begin(), guard.end(), [](std::byte byte) { return byte == std::byte{kGuard}; });
    EXPECT_TRUE(whole) << "memory outside of " << size_ << " bytes was written";
  }

  std::byte* start_ = nullptr;
  std::size_t size_ = 0;
};

// A vector of numbers.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<T>& values) : memory_(values.size() * sizeof(T)) {
    memory_.upload(values.data());
  }
  [[nodiscard]] std::span<T> span() const { return {reinterpret_cast<T*>(memory_.data()), memory_.size() / sizeof(T)}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> out(memory_.size() / sizeof(T));
    memory_.download(out.data());
    return out;
  }

 private:
  DeviceMemory memory_;
};

// Where a tensor lies: elements before its first one, gaps after each row of the last axis, and whether the other axes
// are in their order or the other way round, with gaps; gates (three axes) then have gaps between all elements.
struct Placement {
  std::int64_t offset = 0, padding = 0;
  bool reversed = false;
};

class DeviceTensor {
 public:
  DeviceTensor() = default;
  explicit DeviceTensor(const Tensor& content, const Placement& place = {}) {
    if (content.data() == nullptr) return;
    std::vector<std::byte> image = lay_out(content.dtype(), content.shape(), place);
    for_each_run([&](std::size_t there, std::size_t here, std::size_t bytes) {
      std::memcpy(image.data() + there, content.data() + here, bytes);
    });
    memory_.upload(image.data());
  }
  // Full of NaN.
  DeviceTensor(DType dtype, const Shape& shape, const Placement& place = {}) { lay_out(dtype, shape, place); }

  [[nodiscard]] TensorView view() const { return view_; }
  // The values, row-major. Fails the test if anything around them has changed.
  [[nodiscard]] Tensor get() const {
    if (!view_) return {};
    std::vector<std::byte> image(memory_.size());
    memory_.download(image.data());
    Tensor out(view_.dtype, view_.shape);
    for_each_run([&](std::size_t there, std::size_t here, std::size_t bytes) {
      std::memcpy(out.data() + here, image.data() + there, bytes);
      std::memset(image.data() + there, 0xff, bytes);
    });
    const bool gaps_are_whole =
        std::all_of(image.begin(), image.end(), [](std::byte byte) { return byte == std::byte{0xff}; });
    EXPECT_TRUE(gaps_are_whole) << "memory around the elements of a tensor " << view_.shape.text() << " was written";
    return out;
  }

 private:
  // Returns what is in the memory now: NaN.
  std::vector<std::byte> lay_out(DType dtype, const Shape& shape, const Placement& place) {
    view_ = TensorView(nullptr, dtype, shape);
    const int rank = shape.rank;
    const bool gates = place.reversed && rank == 3;
    std::int64_t step = 1;
    const auto put = [&](int axis, std::int64_t gap) {
      view_.stride[static_cast<std::size_t>(axis)] = step;
      step = step * shape[axis] + gap;
    };
    if (rank > 0 && !gates) put(rank - 1, rank > 1 ? place.padding : 0);
    const int outer = gates ? rank : rank - 1;
    for (int i = 0; i < outer; ++i) {
      if (place.reversed) put(i, 5);
      if (!place.reversed) put(outer - 1 - i, 0);
    }
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    std::vector<std::byte> image(static_cast<std::size_t>((step + place.offset) * size), std::byte{0xff});
    memory_ = DeviceMemory(image.size());
    view_.data = memory_.data() + place.offset * size;
    return image;
  }

  // visit(offset in the memory, offset in a row-major tensor, bytes) for elements that follow one another in both: all
  // of them, those of the last axis, or single ones.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    const std::int64_t elements = view_.shape.elements();
    const auto size = static_cast<std::int64_t>(size_of(view_.dtype));
    const int last = view_.shape.rank - 1;
    const std::int64_t run = view_.contiguous() ? elements : view_.step(last) == 1 ? view_.shape[last] : 1;
    for (std::int64_t index = 0; index < elements; index += run) {
      std::int64_t rest = index;
      std::int64_t at = 0;
      for (int axis = last; axis >= 0; --axis) {
        at += rest % view_.shape[axis] * view_.step(axis);
        rest /= view_.shape[axis];
      }
      visit(static_cast<std::size_t>(view_.data - memory_.data() + at * size), static_cast<std::size_t>(index * size),
            static_cast<std::size_t>(run * size));
    }
  }

  DeviceMemory memory_;
  TensorView view_;
};

// A fixture with a GPU; its tests are skipped where there is none.
template <class Base>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    QDELTA_NEEDS_DEVICE();
    gpu_ = open_gpu(0);
  }
  [[nodiscard]] Device device(DType activations) const { return {1, gpu_.get(), activations}; }

 private:
  std::shared_ptr<const cuda::Context> gpu_;
};

}  // namespace qdelta::testing
