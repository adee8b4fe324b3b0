// Element types of tensors, in memory and in files.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace qdelta {

enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

// Size of one element in bytes. Elements of less than a byte lie side by side, and have no place of their own to speak
// of: 1.
[[nodiscard]] std::size_t size_of(DType type) noexcept;
[[nodiscard]] std::size_t bits_of(DType type) noexcept;
// So many elements, in whole bytes.
[[nodiscard]] inline std::size_t bytes_of(DType type, std::int64_t elements) noexcept {
  return (static_cast<std::size_t>(elements) * bits_of(type) + 7) / 8;
}
// The name safetensors files use: "F32", "BF16", ...
[[nodiscard]] std::string_view name_of(DType type) noexcept;
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name) noexcept;

// bfloat16: the upper half of a float32. Conversion to it rounds to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) noexcept {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<std::uint16_t>((word >> 16u) | 0x40u)
                  : static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16u) & 1u)) >> 16u);
  }
  explicit operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16u); }
};

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};

}  // namespace qdelta
