#include "core/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "testing.h"

namespace qdelta::testing {
namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0; }

TEST(AlignedBuffer, IsAlignedAndZeroFilled) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, std::size_t{4097}}) {
    const AlignedBuffer buffer(bytes);
    EXPECT_TRUE(aligned(buffer.data()));
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(AlignedBuffer, OfNoBytesIsStillGiven) {
  const AlignedBuffer empty(0);
  EXPECT_NE(empty.data(), nullptr);
  EXPECT_EQ(empty.size(), 0U);
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
}

TEST(AlignedBuffer, CanBeLeftUnfilled) {
  AlignedBuffer buffer(100, AlignedBuffer::Fill::none);
  ASSERT_NE(buffer.data(), nullptr);
  std::fill_n(buffer.data(), buffer.size(), std::byte{7});
}

TEST(AlignedBuffer, MovesItsMemory) {
  AlignedBuffer first(128);
  first.data()[5] = std::byte{42};
  const std::byte* memory = first.data();
  AlignedBuffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.size(), 128U);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): a moved-from buffer is empty
  EXPECT_EQ(first.size(), 0U);

  AlignedBuffer third(8);
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.data()[5], std::byte{42});
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move)

  AlignedBuffer& alias = third;
  third = std::move(alias);
  EXPECT_EQ(third.data(), memory) << "assigned to itself";
  EXPECT_EQ(third.size(), 128U);
}

TEST(AlignedBuffer, TooManyBytesAreRefusedWithTheirNumber) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  expect_error(Status::out_of_memory, {std::to_string(kMost)}, [] { return AlignedBuffer(kMost); });
  if (kSanitized) return;
  constexpr std::size_t kHalf = kMost / 2;
  expect_error(Status::out_of_memory, {std::to_string(kHalf)}, [] { return AlignedBuffer(kHalf); });
}

TEST(BumpAllocator, HandsOutAlignedPiecesThatDoNotOverlap) {
  AlignedBuffer buffer(4096);
  BumpAllocator allocator(buffer.data());
  const std::byte* end = buffer.data();
  for (const std::int64_t count : {1, 16, 17, 0, 3, 64}) {
    const auto* piece = reinterpret_cast<const std::byte*>(allocator.take<float>(count));
    EXPECT_TRUE(aligned(piece));
    EXPECT_GE(piece, end);
    end = piece + count * static_cast<std::int64_t>(sizeof(float));
    EXPECT_GE(buffer.data() + allocator.used(), end);
  }
  EXPECT_LE(allocator.used(), buffer.size());
}

TEST(BumpAllocator, WithoutABaseOnlyCounts) {
  AlignedBuffer buffer(4096);
  BumpAllocator real(buffer.data());
  BumpAllocator counter(nullptr);
  const auto lay_out = [](BumpAllocator& allocator) {
    static_cast<void>(allocator.take<double>(9));
    static_cast<void>(allocator.take<char>(1));
    return allocator.take<float>(100);
  };
  EXPECT_EQ(lay_out(counter), nullptr);
  EXPECT_NE(lay_out(real), nullptr);
  EXPECT_EQ(counter.used(), real.used());
  EXPECT_EQ(counter.used(), 128U + 64U + 448U);
}

TEST(Memory, RoundingUp) {
  EXPECT_EQ(round_up(0, 16), 0);
  EXPECT_EQ(round_up(1, 16), 16);
  EXPECT_EQ(round_up(16, 16), 16);
  EXPECT_EQ(round_up(17, 16), 32);
  EXPECT_EQ(ceil_div(0, 64), 0);
  EXPECT_EQ(ceil_div(1, 64), 1);
  EXPECT_EQ(ceil_div(64, 64), 1);
  EXPECT_EQ(ceil_div(65, 64), 2);
}

}  // namespace
}  // namespace qdelta::testing
