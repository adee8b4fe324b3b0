#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace qdelta::testing {
namespace {

// Against the definition: sign, 5 bits of exponent with a bias of 15, 10 of mantissa.
TEST(Half, EveryValueIsItsFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = float_from_half(static_cast<std::uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10U & 31U);
    const auto mantissa = static_cast<float>(bits & 1023U);
    ASSERT_EQ(std::signbit(value), bits >> 15U == 1) << bits;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), mantissa != 0) << bits;
      ASSERT_EQ(std::isinf(value), mantissa == 0) << bits;
    } else {
      const float expected = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(std::abs(value), expected) << bits;
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
