// IEEE half precision, which some checkpoints use.
#pragma once

#include <bit>
#include <cstdint>

namespace qdelta {

[[nodiscard]] inline float float_from_half(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000u) << 16u;
  const std::uint32_t rest = half & 0x7fffu;
  // Shifting exponent and mantissa into place leaves the exponent 112 too small; a multiplication mends that, for
  // subnormal halves as well. Infinity and NaN are the exception.
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest << 13u));
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest << 13u) * 0x1.0p112F));
}

}  // namespace qdelta
