#include "core/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace qdelta {
namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kLarge = 4 * kHugePage;

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t bytes, Fill fill) : size_(bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes) fail(Status::out_of_memory, "cannot allocate {} bytes", bytes);
  // At least one line, so that an empty tensor is still "given".
  const std::size_t size = rounded == 0 ? kAlignment : rounded;
  // Rows of one head are often a page or more apart, so that with small pages each costs a walk through the page table.
  const std::size_t alignment = size >= kLarge ? kHugePage : kAlignment;
  const std::size_t whole = (size + alignment - 1) / alignment * alignment;
  if (whole >= size) data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, whole));
  if (data_ == nullptr) fail(Status::out_of_memory, "cannot allocate {} bytes", bytes);
  if (alignment == kHugePage) madvise(data_, whole, MADV_HUGEPAGE);  // a wish: nothing is lost where it is not granted
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
