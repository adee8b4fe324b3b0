// Device code: the inputs that left the state of a convolution (ShortConvForward::evicted).
#pragma once

#include <cstdint>

#include "kernels/layers.h"

namespace qdelta::cuda {

struct EvictedInputs {
  float* data = nullptr;  // null: they are not kept
  std::int64_t slot_stride = 0, ld = 0;
};

// Of one channel of a sequence.
class EvictedChannel {
 public:
  EvictedChannel() = default;
  __device__ EvictedChannel(const EvictedInputs& evicted, std::int64_t slot, std::int64_t channel) {
    if (evicted.data == nullptr) return;
    ring_ = evicted.data + slot * evicted.slot_stride + channel;
    next_ = static_cast<int>(ring_[kEvictedRows * evicted.ld]);
  }
  [[nodiscard]] __device__ explicit operator bool() const { return ring_ != nullptr; }
  __device__ void push(const EvictedInputs& evicted, float input) {
    ring_[next_ * evicted.ld] = input;
    move(evicted, 1);
  }
  // The one that left so many ago: 1 is the last.
  [[nodiscard]] __device__ float back(const EvictedInputs& evicted, int by) const {
    return ring_[(next_ - by + static_cast<int>(kEvictedRows)) % static_cast<int>(kEvictedRows) * evicted.ld];
  }
  __device__ void move(const EvictedInputs& evicted, int by) {
    constexpr int kRows = kEvictedRows;
    next_ = (next_ + by + kRows) % kRows;
    ring_[kRows * evicted.ld] = static_cast<float>(next_);
  }

 private:
  float* ring_ = nullptr;
  int next_ = 0;
};

}  // namespace qdelta::cuda
