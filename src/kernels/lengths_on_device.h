// The length of a sequence that only the device knows.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace qdelta {

// While one exists, recurrences that this thread launches on a GPU, of one packed sequence, read its offsets
// (cu_seqlens) from device memory, when they run: a captured graph then serves sequences of other lengths. What the
// host says of the sequence is the room it has: as many chunks (kDefaultChunk). Rows behind its end are not touched.
class LengthsOnDevice {
 public:
  explicit LengthsOnDevice(std::span<const std::int64_t> offsets)
      : offsets_(offsets), before_(std::exchange(current_, this)) {}
  ~LengthsOnDevice() { current_ = before_; }
  LengthsOnDevice(const LengthsOnDevice&) = delete;
  LengthsOnDevice& operator=(const LengthsOnDevice&) = delete;

  // Null: there is none, and lengths are as the host says.
  [[nodiscard]] static const LengthsOnDevice* current() { return current_; }

  [[nodiscard]] std::span<const std::int64_t> offsets() const { return offsets_; }

 private:
  static inline thread_local const LengthsOnDevice* current_ = nullptr;
  std::span<const std::int64_t> offsets_;
  const LengthsOnDevice* before_;
};

}  // namespace qdelta
