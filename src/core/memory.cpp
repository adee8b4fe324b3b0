#include "core/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace qdelta {

AlignedBuffer::AlignedBuffer(std::size_t bytes, Fill fill) : size_(bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes) fail(Status::out_of_memory, "cannot allocate {} bytes", bytes);
  // At least one line, so that an empty tensor is still "given".
  const std::size_t size = rounded == 0 ? kAlignment : rounded;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  if (data_ == nullptr) fail(Status::out_of_memory, "cannot allocate {} bytes", bytes);
  if (fill == Fill::zero) std::memset(data_, 0, size);
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    std::free(data_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

}  // namespace qdelta
