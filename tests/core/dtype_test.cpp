#include "core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "testing.h"

namespace qdelta::testing {
namespace {

std::uint16_t rounded(std::uint32_t float_bits) { return BFloat16(std::bit_cast<float>(float_bits)).bits; }

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    BFloat16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(wide)))) << bits;
    } else {
      EXPECT_EQ(BFloat16(wide).bits, bits);
    }
  }
}

// Against the definition, in exact arithmetic: the nearer neighbour, and of two equally near ones the even.
TEST(BFloat16, RoundsToTheNearestAndTiesToEven) {
  Random random(5);
  for (int repeat = 0; repeat < 200000; ++repeat) {
    auto bits = static_cast<std::uint32_t>(random.integer(0, 0x7f7effff));  // below the largest finite one
    if (repeat % 4 == 0) bits = (bits & 0xffff0000U) | 0x8000U;             // a tie
    const double exact = std::bit_cast<float>(bits);
    const std::uint32_t below = bits >> 16U;
    const double low = std::bit_cast<float>(below << 16U);
    const double high = std::bit_cast<float>((below + 1) << 16U);
    std::uint32_t nearest = below;
    if (high - exact < exact - low || (high - exact == exact - low && below % 2 == 1)) nearest = below + 1;
    ASSERT_EQ(rounded(bits), nearest) << exact;
    ASSERT_EQ(rounded(bits | 0x80000000U), nearest | 0x8000U) << -exact;
  }
}

TEST(BFloat16, TiesByHand) {
  EXPECT_EQ(rounded(0x3f808000U), 0x3f80);  // 1 + 2^-8: halfway, down to the even one
  EXPECT_EQ(rounded(0x3f818000U), 0x3f82);  // 1 + 3 * 2^-8: halfway, up to the even one
  EXPECT_EQ(rounded(0x3f807fffU), 0x3f80);
  EXPECT_EQ(rounded(0x3f808001U), 0x3f81);
}

TEST(BFloat16, OverflowsToInfinity) {
  constexpr float kLargest = 3.38953139e38F;  // 0x7f7f
  EXPECT_EQ(BFloat16(kLargest).bits, 0x7f7f);
  EXPECT_EQ(rounded(0x7f7f7fffU), 0x7f7f);
  EXPECT_EQ(rounded(0x7f7f8000U), 0x7f80);  // halfway to the next power of two
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::max()).bits, 0xff80);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
}

// Rounding the bits of a NaN would carry some of them into infinity or zero.
TEST(BFloat16, NaNStaysNaN) {
  for (const std::uint32_t bits : {0x7f800001U, 0x7f80ffffU, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(bits))))) << std::hex << bits;
    EXPECT_EQ(rounded(bits) & 0x8000U, (bits >> 16U) & 0x8000U) << "the sign of " << std::hex << bits;
  }
}

TEST(BFloat16, ZerosAndTheSmallestKeepTheirSign) {
  EXPECT_EQ(BFloat16(0.0F).bits, 0);
  EXPECT_EQ(BFloat16(-0.0F).bits, 0x8000);
  EXPECT_EQ(rounded(0x00000001U), 0);
  EXPECT_EQ(rounded(0x80000001U), 0x8000);
  EXPECT_EQ(rounded(0x00018000U), 2);  // a tie among the subnormal ones
}

constexpr DType kAllTypes[] = {DType::boolean, DType::u8,  DType::i8,  DType::f8_e5m2, DType::f8_e4m3,
                               DType::i16,     DType::u16, DType::f16, DType::bf16,    DType::i32,
                               DType::u32,     DType::f32, DType::f64, DType::i64,     DType::u64};

TEST(DType, NamesLeadBackToTheirTypes) {
  std::set<std::string_view> names;
  for (const DType type : kAllTypes) {
    EXPECT_EQ(dtype_from_name(name_of(type)), type) << name_of(type);
    names.insert(name_of(type));
  }
  EXPECT_EQ(names.size(), std::size(kAllTypes));
  for (const char* name : {"", "F3", "F322", "f32", "FLOAT"}) EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
}

TEST(DType, NamesAndSizesAreThoseOfSafetensors) {
  EXPECT_EQ(name_of(DType::boolean), "BOOL");
  EXPECT_EQ(name_of(DType::bf16), "BF16");
  EXPECT_EQ(name_of(DType::f32), "F32");
  EXPECT_EQ(name_of(DType::i64), "I64");
  EXPECT_EQ(name_of(DType::f8_e4m3), "F8_E4M3");
  for (const DType type : kAllTypes) {
    const std::string_view name = name_of(type);
    std::size_t expected = 1;
    if (name.ends_with("16")) expected = 2;
    if (name.ends_with("32")) expected = 4;
    if (name.ends_with("64")) expected = 8;
    EXPECT_EQ(size_of(type), expected) << name;
  }
}

TEST(DType, OfCppTypes) {
  EXPECT_EQ(dtype_of<float>::value, DType::f32);
  EXPECT_EQ(dtype_of<double>::value, DType::f64);
  EXPECT_EQ(dtype_of<BFloat16>::value, DType::bf16);
  EXPECT_EQ(dtype_of<std::int32_t>::value, DType::i32);
  EXPECT_EQ(dtype_of<std::int64_t>::value, DType::i64);
  EXPECT_EQ(sizeof(BFloat16), size_of(DType::bf16));
}

}  // namespace
}  // namespace qdelta::testing
