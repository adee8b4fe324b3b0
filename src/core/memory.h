// Memory: aligned owning buffers, and a bump allocator for the scratch space that kernels are handed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qdelta {

inline constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

// Memory aligned to a cache line, zero-filled unless told otherwise. Throws Error(out_of_memory) with the size that was
// asked for.
class AlignedBuffer {
 public:
  enum class Fill { zero, none };

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes, Fill fill = Fill::zero);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Hands out consecutive aligned pieces of one block. With a null base it only counts, so the same code that lays out
// the scratch space also answers how much of it is needed.
class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* base) : base_(base) {}

  template <class T>
  [[nodiscard]] T* take(std::int64_t count) noexcept {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(piece);
  }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace qdelta
