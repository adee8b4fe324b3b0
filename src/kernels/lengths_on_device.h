// Lengths of sequences that only the device knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace qdelta {

// While one exists, recurrences that this thread launches on a GPU read the offsets of packed sequences (cu_seqlens)
// from device memory, when they run: a captured graph then serves sequences of other lengths. What the host says of
// them is the room they have: as many sequences, of as many chunks each (kDefaultChunk). Rows behind a sequence's end
// are not touched.
class LengthsOnDevice {
 public:
  // `tables`: device memory for what the first recurrence works out of the offsets, for itself and all others.
  LengthsOnDevice(std::span<const std::int64_t> offsets, std::span<std::byte> tables)
      : offsets_(offsets), tables_(tables), before_(std::exchange(current_, this)) {}
  ~LengthsOnDevice() { current_ = before_; }
  LengthsOnDevice(const LengthsOnDevice&) = delete;
  LengthsOnDevice& operator=(const LengthsOnDevice&) = delete;

  // Null: there is none, and lengths are as the host says.
  [[nodiscard]] static LengthsOnDevice* current() { return current_; }

  [[nodiscard]] std::span<const std::int64_t> offsets() const { return offsets_; }
  [[nodiscard]] std::span<std::byte> tables() const { return tables_; }
  // True once.
  [[nodiscard]] bool tables_are_missing() { return !std::exchange(built_, true); }

 private:
  static inline thread_local LengthsOnDevice* current_ = nullptr;
  std::span<const std::int64_t> offsets_;
  std::span<std::byte> tables_;
  bool built_ = false;
  LengthsOnDevice* before_;
};

}  // namespace qdelta
