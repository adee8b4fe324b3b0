// The part of CUDA's header that the kernels use, for tests/emulator.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  std::uint16_t bits = 0;
  __nv_bfloat16() = default;
  // To the nearest, ties to even.
  explicit __nv_bfloat16(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    bits = value != value ? 0x7fff : static_cast<std::uint16_t>((word + 0x7fffU + (word >> 16U & 1U)) >> 16U);
  }
  explicit operator float() const {
    const std::uint32_t word = std::uint32_t{bits} << 16U;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x); }
