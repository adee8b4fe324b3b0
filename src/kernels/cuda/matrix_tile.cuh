// Shared-memory tiles and tensor-core products (mma, wgmma), written once for two operand types:
//   __nv_bfloat16   one mma
//   float           3xTF32: three tf32 products of the operands' high and low parts, as accurate as float32
// Accumulators are float32. The unit of work of a warp is m16n8k16: a 16 x 16 fragment A times a 16 x 8 fragment B
// into a 16 x 8 Accumulator.
//
// Lane = 4 group + quad. A lane holds elements (group, 2 quad + {0, 1}) and (group + 8, 2 quad + {0, 1}) of an
// Accumulator. Operands are laid out such that a lane's own accumulator elements are the ones it needs when the
// accumulator is the fragment A of the next product, so chained products need no shuffle.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/accumulator.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace qdelta::cuda {

using bf16 = __nv_bfloat16;
using namespace ptx;
template <class E>
inline constexpr bool kIsBf16 = std::is_same_v<E, bf16>;

__device__ inline std::uint32_t pack_bf16x2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline float low_half(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// ---------------------------------------------------------------------------------------------------------------------
// Tiles.

// A matrix in shared memory with the 128-byte swizzle: panels of 128 bytes a row, one panel after the other, the
// 16-byte vectors of a row XORed with the row index, so that eight rows of the same columns fall into different banks.
// wgmma reads this layout; it requires that a tile starts at a multiple of 1024 bytes.
template <class E, int kTileRows, int kWidth>
struct Tile {
  static constexpr int kVector = 16 / sizeof(E);  // elements of 16 bytes
  static constexpr int kVectorsPerRow = kWidth / kVector;
  static constexpr int kPanel = 128 / sizeof(E);
  static constexpr int kElements = kTileRows * kWidth;
  static_assert(kWidth % kPanel == 0 && kTileRows % 8 == 0);
  E* data;

  [[nodiscard]] __device__ static int offset(int row, int column) {
    return (column / kPanel * kTileRows + row) * kPanel + (((column % kPanel / kVector) ^ (row & 7)) * kVector) +
           column % kVector;
  }
  __device__ E* at(int row, int column) const { return data + offset(row, column); }
};

// Two adjacent elements of a row, the first in an even column.
__device__ inline float2 load_pair(const bf16* from) {
  const auto pair = *reinterpret_cast<const std::uint32_t*>(from);
  return {low_half(pair), high_half(pair)};
}
__device__ inline float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }
__device__ inline void store_pair(bf16* to, float first, float second) {
  *reinterpret_cast<std::uint32_t*>(to) = pack_bf16x2(first, second);
}
__device__ inline void store_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = {first, second};
}
template <class E, int kRows, int kWidth>
__device__ inline float2 pair_at(const Tile<E, kRows, kWidth>& tile, int row, int column) {
  return load_pair(tile.at(row, column));
}
template <class E, int kRows, int kWidth>
__device__ inline void set_pair(const Tile<E, kRows, kWidth>& tile, int row, int column, float first, float second) {
  store_pair(tile.at(row, column), first, second);
}

// ---------------------------------------------------------------------------------------------------------------------
// Fragments.

template <class E>
struct FragmentA;
template <class E>
struct FragmentB;

template <>
struct FragmentA<bf16> {
  std::uint32_t x[4];
};
template <>
struct FragmentB<bf16> {
  std::uint32_t x[2];
};
// k16 is two tf32 mma of k8. The order of elements along k is free as long as A and B agree: a lane holds adjacent
// ones, as in an Accumulator.
template <>
struct FragmentA<float> {
  float x[2][4];
};
template <>
struct FragmentB<float> {
  float x[2][2];
};

// A[m][k] = tile[row + m][column + k]
template <int kRows, int kWidth>
__device__ inline FragmentA<bf16> load_a(const Tile<bf16, kRows, kWidth>& tile, int row, int column, const Lane& lane) {
  FragmentA<bf16> a;
  ldmatrix_x4(a.x, tile.at(row + (lane.index & 15), column + (lane.index >> 4) * 8));
  return a;
}
template <int kRows, int kWidth>
__device__ inline FragmentA<float> load_a(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                          const Lane& lane) {
  FragmentA<float> a;
  for (int s = 0; s < 2; ++s) {
    const float2 upper = pair_at(tile, row + lane.row(0), column + lane.pair(s));
    const float2 lower = pair_at(tile, row + lane.row(1), column + lane.pair(s));
    a.x[s][0] = upper.x, a.x[s][1] = lower.x, a.x[s][2] = upper.y, a.x[s][3] = lower.y;
  }
  return a;
}

// tile[row + m][column + k] = A[m][k]
template <int kRows, int kWidth>
__device__ inline void store_a(const Tile<bf16, kRows, kWidth>& tile, int row, int column, const FragmentA<bf16>& a,
                               const Lane& lane) {
  if constexpr (kHasStmatrix) {
    stmatrix_x4(tile.at(row + (lane.index & 15), column + (lane.index >> 4) * 8), a.x);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<std::uint32_t*>(tile.at(row + lane.row(i % 2), column + lane.pair(i / 2))) = a.x[i];
  }
}
template <int kRows, int kWidth>
__device__ inline void store_a(const Tile<float, kRows, kWidth>& tile, int row, int column, const FragmentA<float>& a,
                               const Lane& lane) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    set_pair(tile, row + lane.row(0), column + lane.pair(s), a.x[s][0], a.x[s][2]);
    set_pair(tile, row + lane.row(1), column + lane.pair(s), a.x[s][1], a.x[s][3]);
  }
}

// A[m][k] = tile[row + k][column + m]
template <int kRows, int kWidth>
__device__ inline FragmentA<bf16> load_a_transposed(const Tile<bf16, kRows, kWidth>& tile, int row, int column,
                                                    const Lane& lane) {
  FragmentA<bf16> a;
  ldmatrix_x4_trans(a.x, tile.at(row + (lane.index & 7) + (lane.index >> 4) * 8, column + ((lane.index >> 3) & 1) * 8));
  return a;
}
template <int kRows, int kWidth>
__device__ inline FragmentA<float> load_a_transposed(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                                     const Lane& lane) {
  FragmentA<float> a;
  for (int s = 0; s < 2; ++s) {
    for (int i = 0; i < 2; ++i) {
      a.x[s][2 * i] = *tile.at(row + lane.pair(s) + i, column + lane.row(0));
      a.x[s][2 * i + 1] = *tile.at(row + lane.pair(s) + i, column + lane.row(1));
    }
  }
  return a;
}

// Two adjacent fragments B, 16 columns.
template <class E>
struct FragmentBPair {
  FragmentB<E> half[2];
};

// B[k][n] = tile[row + n][column + k]
template <int kRows, int kWidth>
__device__ inline FragmentBPair<bf16> load_b(const Tile<bf16, kRows, kWidth>& tile, int row, int column,
                                             const Lane& lane) {
  std::uint32_t x[4];
  ldmatrix_x4(x, tile.at(row + (lane.index & 7) + (lane.index >> 4) * 8, column + ((lane.index >> 3) & 1) * 8));
  return {{{{x[0], x[1]}}, {{x[2], x[3]}}}};
}
template <int kRows, int kWidth>
__device__ inline FragmentBPair<float> load_b(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                              const Lane& lane) {
  FragmentBPair<float> b;
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 2; ++s) {
      const float2 pair = pair_at(tile, row + lane.row(half), column + lane.pair(s));
      b.half[half].x[s][0] = pair.x, b.half[half].x[s][1] = pair.y;
    }
  }
  return b;
}

// B[k][n] = tile[row + k][column + n]
template <int kRows, int kWidth>
__device__ inline FragmentBPair<bf16> load_b_transposed(const Tile<bf16, kRows, kWidth>& tile, int row, int column,
                                                        const Lane& lane) {
  std::uint32_t x[4];
  ldmatrix_x4_trans(x, tile.at(row + (lane.index & 15), column + (lane.index >> 4) * 8));
  return {{{{x[0], x[1]}}, {{x[2], x[3]}}}};
}
template <int kRows, int kWidth>
__device__ inline FragmentBPair<float> load_b_transposed(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                                         const Lane& lane) {
  FragmentBPair<float> b;
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 2; ++s) {
      for (int i = 0; i < 2; ++i) {
        b.half[half].x[s][i] = *tile.at(row + lane.pair(s) + i, column + lane.row(half));
      }
    }
  }
  return b;
}

// Two adjacent accumulators, 16 columns, as the A operand of the next product.
template <class E>
__device__ inline FragmentA<E> to_fragment_a(const Accumulator& left, const Accumulator& right) {
  if constexpr (kIsBf16<E>) {
    return {{pack_bf16x2(left.x[0], left.x[1]), pack_bf16x2(left.x[2], left.x[3]), pack_bf16x2(right.x[0], right.x[1]),
             pack_bf16x2(right.x[2], right.x[3])}};
  } else {
    return {{{left.x[0], left.x[2], left.x[1], left.x[3]}, {right.x[0], right.x[2], right.x[1], right.x[3]}}};
  }
}

// The accumulator that a fragment was made of, rounded to the operand type: which is 0 for the left one, 1 for the
// right one.
__device__ inline Accumulator to_accumulator(const FragmentA<bf16>& a, int which) {
  return {{low_half(a.x[2 * which]), high_half(a.x[2 * which]), low_half(a.x[2 * which + 1]),
           high_half(a.x[2 * which + 1])}};
}
__device__ inline Accumulator to_accumulator(const FragmentA<float>& a, int which) {
  return {{a.x[which][0], a.x[which][2], a.x[which][1], a.x[which][3]}};
}

// ---------------------------------------------------------------------------------------------------------------------
// Products.

__device__ inline void mma(Accumulator& acc, const FragmentA<bf16>& a, const FragmentB<bf16>& b) {
  mma_bf16(acc.x, a.x, b.x);
}

// The part of a float that tf32 holds exactly, and the remainder.
__device__ inline void split_tf32(float value, std::uint32_t& high, std::uint32_t& low) {
  high = __float_as_uint(value) & 0xffffe000u;
  low = __float_as_uint(value - __uint_as_float(high));
}

__device__ inline void mma(Accumulator& acc, const FragmentA<float>& a, const FragmentB<float>& b) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    std::uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_tf32(a.x[s][i], a_high[i], a_low[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) split_tf32(b.x[s][i], b_high[i], b_low[i]);
    mma_tf32(acc.x, a_low, b_high);
    mma_tf32(acc.x, a_high, b_low);
    mma_tf32(acc.x, a_high, b_high);
  }
}

template <class E>
__device__ inline void mma(Accumulator& left, Accumulator& right, const FragmentA<E>& a, const FragmentBPair<E>& b) {
  mma(left, a, b.half[0]);
  mma(right, a, b.half[1]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products with a tile: by wgmma where there is one. It is asynchronous: registers and tiles in use must not be touched
// before `mma_commit_and_wait`.

template <class E>
inline constexpr bool kUsesWgmma = kIsBf16<E>&& kHasWgmma;

// The matrix descriptor of B. kTransposed false: rows of the tile are columns of B (K-major); true: rows are rows
// (MN-major).
template <bool kTransposed, int kRows, int kWidth>
__device__ inline std::uint64_t wgmma_descriptor(const Tile<bf16, kRows, kWidth>& tile, int row, int column) {
  constexpr int kPanelBytes = kRows * 128;
  return wgmma_operand < kTransposed
             ? kPanelBytes
             : 16 > (tile.data, column / 64 * kPanelBytes + row * 128 + column % 64 * static_cast<int>(sizeof(bf16)));
}

// acc[0 .. kColumns / 8) += A B with B from a tile: kTransposed false, B[k][n] = tile[row + n][column + k]; true,
// B[k][n] = tile[row + k][column + n]. By wgmma where there is one: then the four warps of a warpgroup call it together
// with the same B.
template <int kColumns, bool kTransposed, class E, int kRows, int kWidth>
__device__ inline void tile_mma(Accumulator* acc, const FragmentA<E>& a, const Tile<E, kRows, kWidth>& tile, int row,
                                int column, const Lane& lane) {
  if constexpr (kUsesWgmma<E>) {
    wgmma<kColumns, kTransposed>(acc, a.x, wgmma_descriptor<kTransposed>(tile, row, column));
  } else {
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      const FragmentBPair<E> b =
          kTransposed ? load_b_transposed(tile, row, column + n, lane) : load_b(tile, row + n, column, lane);
      mma(acc[n / 8], acc[n / 8 + 1], a, b);
    }
  }
}

// mma_fence comes before a batch of tile_mma, mma_commit after it and then mma_wait, with the accumulators of the
// batch. In between, accumulators and A operands must not be touched. There must be no branch around a single tile_mma
// either: where ptxas cannot prove that registers are untouched it serializes the wgmma instructions. Without wgmma
// both do nothing.
template <class E, int... kCount>
__device__ inline void mma_fence(Accumulator (&... accs)[kCount]) {
  if constexpr (kUsesWgmma<E>) {
    (fence_accumulators(accs), ...);
    wgmma_begin();
  }
}
template <class E>
__device__ inline void mma_commit() {
  if constexpr (kUsesWgmma<E>) wgmma_commit();
}
template <class E, int... kCount>
__device__ inline void mma_wait(Accumulator (&... accs)[kCount]) {
  if constexpr (kUsesWgmma<E>) {
    wgmma_wait();
    (fence_accumulators(accs), ...);
  }
}
template <class E, int... kCount>
__device__ inline void mma_commit_and_wait(Accumulator (&... accs)[kCount]) {
  mma_commit<E>();
  mma_wait<E>(accs...);
}

}  // namespace qdelta::cuda
