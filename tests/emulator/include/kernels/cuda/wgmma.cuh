// What src/kernels/cuda/wgmma.cuh has, for tests/emulator: the instructions as PTX's documentation describes them, and
// whether the emulated GPU has them.
#pragma once

#include <array>
#include <cstdint>

#include "block.h"
#include "kernels/cuda/accumulator.cuh"
#include "kernels/cuda/ptx.cuh"

namespace qdelta::cuda {

inline constexpr bool kHasWgmma = QDELTA_EMULATED_CAPABILITY == 9;

inline void fence_async_proxy() {}
inline void wgmma_begin() { __syncwarp(); }
inline void wgmma_commit() { __syncwarp(); }
inline void wgmma_wait() {
  emulator::finish_products();
  __syncwarp();
}
template <int kCount>
void fence_accumulators(Accumulator (&/*accs*/)[kCount]) {}

// The address, and above it the distance from 64 columns to the next 64 of a transposed B, in 16 bytes.
template <int kLeading = 16>
std::uint64_t wgmma_operand(const void* tile, int bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(tile) + static_cast<std::uintptr_t>(bytes);
  if (reinterpret_cast<std::uintptr_t>(tile) % 1024 != 0) emulator::give_up("a tile not at a multiple of 1024 bytes");
  if (address % 16 != 0 || address % 1024 >= 128) emulator::give_up("an operand that begins at none of eight rows");
  return address | std::uint64_t{kLeading / 16} << 48U;
}

namespace emulated {

struct Operand {
  std::uintptr_t address;
  std::uintptr_t leading;

  explicit Operand(std::uint64_t descriptor)
      : address(descriptor & 0xffffffffffffU), leading((descriptor >> 48U) * 16) {}
  // Element of row (of A, or column of B) `outer`, inner dimension `inner`.
  [[nodiscard]] float at(int outer, int inner, bool transposed) const {
    const int row = transposed ? inner : outer;
    const int column = transposed ? outer : inner;
    std::uintptr_t at = address + static_cast<std::uintptr_t>(row / 8 * 1024 + row % 8 * 128 + column % 64 * 2);
    if (transposed) at += static_cast<std::uintptr_t>(column / 64) * leading;
    at ^= (at / 128 % 8) * 16;
    return ptx::bits_to_float(std::uint32_t{*reinterpret_cast<const std::uint16_t*>(at)} << 16U);
  }
};

// A's elements in rows group and group + 8 of the warp's 16.
using LaneRows = std::array<std::array<float, 16>, 2>;

inline LaneRows rows_of(std::uint64_t a) {
  const Operand operand(a);
  LaneRows rows;
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + emulator::lane() / 4 + 8 * half;
    for (int k = 0; k < 16; ++k)
      rows[static_cast<std::size_t>(half)][static_cast<std::size_t>(k)] = operand.at(row, k, false);
  }
  return rows;
}

// c[n][i] of the lane; the sums are those of ptx::mma_bf16.
template <class GetRows>
void multiply(float* c, int columns, const GetRows& get_rows, std::uint64_t b, bool transposed, bool adds) {
  emulator::multiply_later([=] {
    const LaneRows rows = get_rows();
    const Operand operand(b);
    for (int n = 0; n < columns / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        double sum = 0;
        for (int k = 0; k < 16; ++k) {
          sum += double{rows[static_cast<std::size_t>(i / 2)][static_cast<std::size_t>(k)]} *
                 double{operand.at(n * 8 + emulator::lane() % 4 * 2 + i % 2, k, transposed)};
        }
        float& element = c[n * 4 + i];
        element = static_cast<float>((adds ? element : 0.0F) + sum);
      }
    }
  });
}

}  // namespace emulated

template <int kGroups>
void wgmma_bf16(float (&c)[kGroups][4], std::uint64_t a, std::uint64_t b, bool adds) {
  emulated::multiply(
      &c[0][0], kGroups * 8, [a] { return emulated::rows_of(a); }, b, false, adds);
}
template <int kColumns>
void wgmma(Accumulator* acc, std::uint64_t a, std::uint64_t b) {
  emulated::multiply(
      acc[0].x, kColumns, [a] { return emulated::rows_of(a); }, b, false, true);
}
template <int kColumns, bool kTransposed>
void wgmma(Accumulator* acc, const std::uint32_t (&a)[4], std::uint64_t b) {
  const ptx::FromLanes<std::array<std::uint32_t, 4>> lanes("wgmma", {a[0], a[1], a[2], a[3]});
  emulated::LaneRows rows;
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t pair =
          lanes[emulator::lane() / 4 * 4 + k % 8 / 2][static_cast<std::size_t>(half + k / 8 * 2)];
      rows[static_cast<std::size_t>(half)][static_cast<std::size_t>(k)] =
          ptx::bits_to_float(k % 2 == 0 ? pair << 16U : pair & 0xffff0000U);
    }
  }
  emulated::multiply(
      acc[0].x, kColumns, [rows] { return rows; }, b, kTransposed, true);
}

}  // namespace qdelta::cuda
