#include "core/dtype.h"

#include <algorithm>
#include <array>

namespace qdelta {
namespace {

struct Row {
  DType type;
  std::string_view name;
  std::size_t bits;
};

constexpr std::array kRows{
    Row{DType::boolean, "BOOL", 8},
    Row{DType::f4, "F4", 4},
    Row{DType::f6_e2m3, "F6_E2M3", 6},
    Row{DType::f6_e3m2, "F6_E3M2", 6},
    Row{DType::u8, "U8", 8},
    Row{DType::i8, "I8", 8},
    Row{DType::f8_e5m2, "F8_E5M2", 8},
    Row{DType::f8_e4m3, "F8_E4M3", 8},
    Row{DType::f8_e8m0, "F8_E8M0", 8},
    Row{DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    Row{DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    Row{DType::i16, "I16", 16},
    Row{DType::u16, "U16", 16},
    Row{DType::f16, "F16", 16},
    Row{DType::bf16, "BF16", 16},
    Row{DType::i32, "I32", 32},
    Row{DType::u32, "U32", 32},
    Row{DType::f32, "F32", 32},
    Row{DType::c64, "C64", 64},
    Row{DType::f64, "F64", 64},
    Row{DType::i64, "I64", 64},
    Row{DType::u64, "U64", 64},
};

}  // namespace

std::size_t bits_of(DType type) noexcept { return kRows[static_cast<std::size_t>(type)].bits; }

std::size_t size_of(DType type) noexcept { return (bits_of(type) + 7) / 8; }

std::string_view name_of(DType type) noexcept { return kRows[static_cast<std::size_t>(type)].name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  const auto* row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  if (row == kRows.end()) return std::nullopt;
  return row->type;
}

}  // namespace qdelta
