// The driver's encoder of tensor maps and what the copy engine does by them, for the emulator.
#include <cudaTypedefs.h>

#include <cstring>

#include "cuda_runtime.h"
#include "emulated_tensor_map.h"

namespace {

constexpr cuuint32_t kSwizzledColumns = 64;  // 128 bytes

// The requirements are those of CUDA's documentation.
CUresult encode(CUtensorMap* map, CUtensorMapDataType /*type*/, cuuint32_t rank, void* data, const cuuint64_t* shape,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                CUtensorMapInterleave /*interleave*/, CUtensorMapSwizzle /*swizzle*/,
                CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill /*fill*/) {
  static_assert(sizeof(emulator::TensorMapFields) <= sizeof(CUtensorMap));
  bool valid = rank == 4 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && box[0] == kSwizzledColumns &&
               box[1] >= 1 && box[1] <= 256 && box[2] == 1 && box[3] == 1;
  for (cuuint32_t i = 0; i < rank; ++i)
    valid = valid && shape[i] >= 1 && shape[i] <= cuuint64_t{1} << 32U && steps[i] == 1;
  for (cuuint32_t i = 0; i + 1 < rank; ++i)
    valid = valid && strides[i] > 0 && strides[i] % 16 == 0 && strides[i] < cuuint64_t{1} << 40U;
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  const emulator::TensorMapFields fields{static_cast<const std::uint16_t*>(data),
                                         {shape[0], shape[1], shape[2], shape[3]},
                                         {strides[0], strides[1], strides[2]},
                                         {box[0], box[1]}};
  std::memcpy(map->opaque, &fields, sizeof(fields));
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* /*name*/, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/, cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&encode);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

void emulator::TensorMapFields::copy_box(void* to, const std::int64_t (&origin)[4]) const {
  const auto inside = [&](int axis, std::int64_t at) {
    return at >= 0 && static_cast<std::uint64_t>(at) < shape[axis];
  };
  const bool has_matrix = inside(2, origin[2]) && inside(3, origin[3]);
  auto* place = static_cast<std::uint16_t*>(to);
  for (std::uint32_t r = 0; r < box[1]; ++r, place += kSwizzledColumns) {
    const std::int64_t row = origin[1] + r;
    const std::uint16_t* from = nullptr;
    if (has_matrix && inside(1, row)) {
      const auto offset = static_cast<std::uint64_t>(row) * strides[0] +
                          static_cast<std::uint64_t>(origin[2]) * strides[1] +
                          static_cast<std::uint64_t>(origin[3]) * strides[2];
      from = data + offset / sizeof(*data);
    }
    for (std::uint32_t c = 0; c < kSwizzledColumns; ++c) {
      const std::int64_t column = origin[0] + c;
      place[((c / 8) ^ (r % 8)) * 8 + c % 8] = from != nullptr && inside(0, column) ? from[column] : std::uint16_t{0};
    }
  }
}
