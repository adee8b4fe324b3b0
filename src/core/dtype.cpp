#include "core/dtype.h"

#include <algorithm>
#include <array>

namespace qdelta {
namespace {

struct Row {
  DType type;
  std::string_view name;
  std::size_t size;
};

constexpr std::array kRows{
    Row{DType::boolean, "BOOL", 1},    Row{DType::u8, "U8", 1},           Row{DType::i8, "I8", 1},
    Row{DType::f8_e5m2, "F8_E5M2", 1}, Row{DType::f8_e4m3, "F8_E4M3", 1}, Row{DType::i16, "I16", 2},
    Row{DType::u16, "U16", 2},         Row{DType::f16, "F16", 2},         Row{DType::bf16, "BF16", 2},
    Row{DType::i32, "I32", 4},         Row{DType::u32, "U32", 4},         Row{DType::f32, "F32", 4},
    Row{DType::f64, "F64", 8},         Row{DType::i64, "I64", 8},         Row{DType::u64, "U64", 8},
};

}  // namespace

std::size_t size_of(DType type) noexcept { return kRows[static_cast<std::size_t>(type)].size; }

std::string_view name_of(DType type) noexcept { return kRows[static_cast<std::size_t>(type)].name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  const auto* row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  if (row == kRows.end()) return std::nullopt;
  return row->type;
}

}  // namespace qdelta
