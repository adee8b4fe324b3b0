// Matrix products of small tiles on the tensor cores, written once for two operand types:
//   __nv_bfloat16   one product
//   float           three tf32 products of the operands' upper and lower halves, as good as float32
// Sums are float32. A warp multiplies a 16 x 16 fragment A by a 16 x 8 fragment B into a 16 x 8 Sum.
//
// Lane = 4 group + quad. It holds of a Sum the elements (group, 2 quad + {0, 1}) and (group + 8, 2 quad + {0, 1}), and
// the operands are arranged such that a lane's own sums are what it needs of them as a fragment A.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace qdelta::cuda {

using bf16 = __nv_bfloat16;
template <class E>
inline constexpr bool kIsBf16 = std::is_same_v<E, bf16>;

struct Lane {
  int index, group, quad;
  __device__ Lane() : index(static_cast<int>(threadIdx.x) & 31), group(index >> 2), quad(index & 3) {}
};

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline float low_half(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// ---------------------------------------------------------------------------------------------------------------------
// Tiles.

// A matrix in shared memory, in panels of 128 bytes to a row, one after the other. The 16-byte units of a panel's row
// are permuted by the row's number, so that eight rows of the same columns lie in different banks. This is the layout
// that the warpgroup products of the 9.0 architecture call a 128-byte swizzle; for them a tile starts at a multiple of
// 1024.
template <class E, int kTileRows, int kWidth>
struct Tile {
  static constexpr int kUnit = 16 / sizeof(E);
  static constexpr int kUnits = kWidth / kUnit;
  static constexpr int kPanel = 128 / sizeof(E);
  static constexpr int kElements = kTileRows * kWidth;
  static_assert(kWidth % kPanel == 0 && kTileRows % 8 == 0);
  E* data;

  __device__ E* at(int row, int column) const {
    return data + (column / kPanel * kTileRows + row) * kPanel + (((column % kPanel / kUnit) ^ (row & 7)) * kUnit) +
           column % kUnit;
  }
};

// Two neighbours of a row, the first in an even column.
template <int kRows, int kWidth>
__device__ inline float2 pair_at(const Tile<bf16, kRows, kWidth>& tile, int row, int column) {
  const auto pair = *reinterpret_cast<const std::uint32_t*>(tile.at(row, column));
  return {low_half(pair), high_half(pair)};
}
template <int kRows, int kWidth>
__device__ inline float2 pair_at(const Tile<float, kRows, kWidth>& tile, int row, int column) {
  return *reinterpret_cast<const float2*>(tile.at(row, column));
}
template <int kRows, int kWidth>
__device__ inline void set_pair(const Tile<bf16, kRows, kWidth>& tile, int row, int column, float first, float second) {
  *reinterpret_cast<std::uint32_t*>(tile.at(row, column)) = pack(first, second);
}
template <int kRows, int kWidth>
__device__ inline void set_pair(const Tile<float, kRows, kWidth>& tile, int row, int column, float first,
                                float second) {
  *reinterpret_cast<float2*>(tile.at(row, column)) = {first, second};
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
// The product of 16 is two of 8 here. Which element of the inner dimension has which place in the instruction is free
// as long as A and B agree; lanes have neighbours, as in a Sum.
template <>
struct FragmentA<float> {
  float x[2][4];
};
template <>
struct FragmentB<float> {
  float x[2][2];
};

struct Sum {
  float x[4]{};
};

__device__ inline void load_four(std::uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_four_transposed(std::uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}

// A[m][k] = tile[row + m][column + k]
template <int kRows, int kWidth>
__device__ inline FragmentA<bf16> load_a(const Tile<bf16, kRows, kWidth>& tile, int row, int column, const Lane& lane) {
  FragmentA<bf16> a;
  load_four(a.x, tile.at(row + (lane.index & 15), column + (lane.index >> 4) * 8));
  return a;
}
template <int kRows, int kWidth>
__device__ inline FragmentA<float> load_a(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                          const Lane& lane) {
  FragmentA<float> a;
  for (int s = 0; s < 2; ++s) {
    const float2 upper = pair_at(tile, row + lane.group, column + 8 * s + 2 * lane.quad);
    const float2 lower = pair_at(tile, row + lane.group + 8, column + 8 * s + 2 * lane.quad);
    a.x[s][0] = upper.x, a.x[s][1] = lower.x, a.x[s][2] = upper.y, a.x[s][3] = lower.y;
  }
  return a;
}

// A[m][k] = tile[row + k][column + m]
template <int kRows, int kWidth>
__device__ inline FragmentA<bf16> load_a_transposed(const Tile<bf16, kRows, kWidth>& tile, int row, int column,
                                                    const Lane& lane) {
  FragmentA<bf16> a;
  load_four_transposed(a.x,
                       tile.at(row + (lane.index & 7) + (lane.index >> 4) * 8, column + ((lane.index >> 3) & 1) * 8));
  return a;
}
template <int kRows, int kWidth>
__device__ inline FragmentA<float> load_a_transposed(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                                     const Lane& lane) {
  FragmentA<float> a;
  for (int s = 0; s < 2; ++s) {
    for (int i = 0; i < 2; ++i) {
      a.x[s][2 * i] = *tile.at(row + 8 * s + 2 * lane.quad + i, column + lane.group);
      a.x[s][2 * i + 1] = *tile.at(row + 8 * s + 2 * lane.quad + i, column + lane.group + 8);
    }
  }
  return a;
}

// Two fragments B side by side.
template <class E>
struct WideB {
  FragmentB<E> half[2];
};

// B[k][n] = tile[row + n][column + k]
template <int kRows, int kWidth>
__device__ inline WideB<bf16> load_b(const Tile<bf16, kRows, kWidth>& tile, int row, int column, const Lane& lane) {
  std::uint32_t x[4];
  load_four(x, tile.at(row + (lane.index & 7) + (lane.index >> 4) * 8, column + ((lane.index >> 3) & 1) * 8));
  return {{{{x[0], x[1]}}, {{x[2], x[3]}}}};
}
template <int kRows, int kWidth>
__device__ inline WideB<float> load_b(const Tile<float, kRows, kWidth>& tile, int row, int column, const Lane& lane) {
  WideB<float> b;
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 2; ++s) {
      const float2 pair = pair_at(tile, row + 8 * half + lane.group, column + 8 * s + 2 * lane.quad);
      b.half[half].x[s][0] = pair.x, b.half[half].x[s][1] = pair.y;
    }
  }
  return b;
}

// B[k][n] = tile[row + k][column + n]
template <int kRows, int kWidth>
__device__ inline WideB<bf16> load_b_transposed(const Tile<bf16, kRows, kWidth>& tile, int row, int column,
                                                const Lane& lane) {
  std::uint32_t x[4];
  load_four_transposed(x, tile.at(row + (lane.index & 15), column + (lane.index >> 4) * 8));
  return {{{{x[0], x[1]}}, {{x[2], x[3]}}}};
}
template <int kRows, int kWidth>
__device__ inline WideB<float> load_b_transposed(const Tile<float, kRows, kWidth>& tile, int row, int column,
                                                 const Lane& lane) {
  WideB<float> b;
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 2; ++s) {
      for (int i = 0; i < 2; ++i) {
        b.half[half].x[s][i] = *tile.at(row + 8 * s + 2 * lane.quad + i, column + 8 * half + lane.group);
      }
    }
  }
  return b;
}

// A[m][k] from the sums of a product, k over the columns of both.
template <class E>
__device__ inline FragmentA<E> fragment_of(const Sum& left, const Sum& right) {
  if constexpr (kIsBf16<E>) {
    return {{pack(left.x[0], left.x[1]), pack(left.x[2], left.x[3]), pack(right.x[0], right.x[1]),
             pack(right.x[2], right.x[3])}};
  } else {
    return {{{left.x[0], left.x[2], left.x[1], left.x[3]}, {right.x[0], right.x[2], right.x[1], right.x[3]}}};
  }
}

// The sums that a fragment was made of, up to its rounding: `which` is 0 for the left, 1 for the right ones.
__device__ inline Sum sum_of(const FragmentA<bf16>& a, int which) {
  return {{low_half(a.x[2 * which]), high_half(a.x[2 * which]), low_half(a.x[2 * which + 1]),
           high_half(a.x[2 * which + 1])}};
}
__device__ inline Sum sum_of(const FragmentA<float>& a, int which) {
  return {{a.x[which][0], a.x[which][2], a.x[which][1], a.x[which][3]}};
}

// ---------------------------------------------------------------------------------------------------------------------
// Products.

__device__ inline void multiply_add(Sum& sum, const FragmentA<bf16>& a, const FragmentB<bf16>& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.x[0]), "+f"(sum.x[1]), "+f"(sum.x[2]), "+f"(sum.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

__device__ inline void multiply_add_tf32(Sum& sum, const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.x[0]), "+f"(sum.x[1]), "+f"(sum.x[2]), "+f"(sum.x[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The upper 11 bits of a float's mantissa, and the rest.
__device__ inline void split(float value, std::uint32_t& high, std::uint32_t& low) {
  high = __float_as_uint(value) & 0xffffe000u;
  low = __float_as_uint(value - __uint_as_float(high));
}

__device__ inline void multiply_add(Sum& sum, const FragmentA<float>& a, const FragmentB<float>& b) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    std::uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(a.x[s][i], a_high[i], a_low[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) split(b.x[s][i], b_high[i], b_low[i]);
    multiply_add_tf32(sum, a_low, b_high);
    multiply_add_tf32(sum, a_high, b_low);
    multiply_add_tf32(sum, a_high, b_high);
  }
}

template <class E>
__device__ inline void multiply_add(Sum& left, Sum& right, const FragmentA<E>& a, const WideB<E>& b) {
  multiply_add(left, a, b.half[0]);
  multiply_add(right, a, b.half[1]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products of a warpgroup (architecture 9.0a): the rows of A are those of four warps, in their registers, and B is read
// from shared memory by the tensor cores themselves. They run in the background: registers and tiles that they use must
// be left alone until `wait_for_products`.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QDELTA_WARPGROUPS 1
#else
#define QDELTA_WARPGROUPS 0
#endif

template <class E>
inline constexpr bool kWarpgroup = kIsBf16<E>&& QDELTA_WARPGROUPS == 1;

// Where B is: kTransposed false, rows of the tile are columns of B; true, rows are rows.
template <bool kTransposed, int kRows, int kWidth>
__device__ inline std::uint64_t place_of_b(const Tile<bf16, kRows, kWidth>& tile, int row, int column) {
  constexpr std::uint64_t kPanelBytes = kRows * 128;
  constexpr std::uint64_t kLeading = kTransposed ? kPanelBytes >> 4 : 1;
  constexpr std::uint64_t kStride = 1024 >> 4;  // eight rows of a panel
  const std::uint32_t address =
      shared_address(tile.data) + column / 64 * static_cast<int>(kPanelBytes) + row * 128 + column % 64 * 2;
  return (std::uint64_t{1} << 62) | (kStride << 32) | (kLeading << 16) | ((address & 0x3ffff) >> 4);
}

#define QDELTA_SUM(i) "+f"(sum[i].x[0]), "+f"(sum[i].x[1]), "+f"(sum[i].x[2]), "+f"(sum[i].x[3])
#define QDELTA_SUM4(i) QDELTA_SUM(i), QDELTA_SUM(i + 1), QDELTA_SUM(i + 2), QDELTA_SUM(i + 3)
#define QDELTA_TEN(a) \
  "%" #a "0, %" #a "1, %" #a "2, %" #a "3, %" #a "4, %" #a "5, %" #a "6, %" #a "7, %" #a "8, %" #a "9, "
#define QDELTA_FIRST_TEN "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "

// sum[0 .. kColumns / 8) += A B for the kColumns columns of B that start at `b`. Products into the same sums must have
// the same width, unless they are waited for in between.
template <int kColumns, bool kTransposed>
__device__ inline void warpgroup_multiply_add(Sum* sum, const FragmentA<bf16>& a, std::uint64_t b) {
  static_assert(kColumns == 64 || kColumns == 128);
#if QDELTA_WARPGROUPS
  if constexpr (kColumns == 64) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" QDELTA_FIRST_TEN QDELTA_TEN(1) QDELTA_TEN(2) "%30, %31}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, %37; }"
                 : QDELTA_SUM4(0), QDELTA_SUM4(4)
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  } else {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{" QDELTA_FIRST_TEN QDELTA_TEN(1) QDELTA_TEN(2) QDELTA_TEN(3) QDELTA_TEN(4)
            QDELTA_TEN(5) "%60, %61, %62, %63}, {%64, %65, %66, %67}, %68, add, 1, 1, %69; }"
        : QDELTA_SUM4(0), QDELTA_SUM4(4), QDELTA_SUM4(8), QDELTA_SUM4(12)
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  }
#endif
}
#undef QDELTA_SUM
#undef QDELTA_SUM4
#undef QDELTA_TEN
#undef QDELTA_FIRST_TEN

// sum[0 .. kColumns / 8) += A B, B taken from a tile: kTransposed false, B[k][n] = tile[row + n][column + k]; true,
// B[k][n] = tile[row + k][column + n]. With four warps' A and one B where warpgroups have products of their own.
template <int kColumns, bool kTransposed, class E, int kRows, int kWidth>
__device__ inline void add_product(Sum* sum, const FragmentA<E>& a, const Tile<E, kRows, kWidth>& tile, int row,
                                   int column, const Lane& lane) {
  if constexpr (kWarpgroup<E>) {
    warpgroup_multiply_add<kColumns, kTransposed>(sum, a, place_of_b<kTransposed>(tile, row, column));
  } else {
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      const WideB<E> b =
          kTransposed ? load_b_transposed(tile, row, column + n, lane) : load_b(tile, row + n, column, lane);
      multiply_add(sum[n / 8], sum[n / 8 + 1], a, b);
    }
  }
}

// Around products that may run in the background: with the sums that they add to, so that the compiler keeps what it
// does with these on the right side. Between the two nothing may touch these sums or the left operands; where the
// compiler cannot see that, because of a branch around a product, it waits for each of them. Other products need
// neither.
template <int kSums>
__device__ inline void pin(Sum (&sums)[kSums]) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (([&] {
       asm volatile("" : "+f"(sums[I].x[0]), "+f"(sums[I].x[1]), "+f"(sums[I].x[2]), "+f"(sums[I].x[3])::"memory");
     }()),
     ...);
  }
  (std::make_integer_sequence<int, kSums>{});
}
template <class E, int... kSums>
__device__ inline void begin_products(Sum (&... sums)[kSums]) {
#if QDELTA_WARPGROUPS
  if constexpr (kWarpgroup<E>) {
    (pin(sums), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }
#endif
}
template <class E, int... kSums>
__device__ inline void wait_for_products(Sum (&... sums)[kSums]) {
#if QDELTA_WARPGROUPS
  if constexpr (kWarpgroup<E>) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    (pin(sums), ...);
  }
#endif
}

// Makes this thread's writes to shared memory visible to the tensor cores' own reads; a barrier follows.
__device__ inline void publish_tiles() {
#if QDELTA_WARPGROUPS
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// An 8 x 8 matrix, of which each lane has (group, 2 quad + {0, 1}), transposed.
__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// ---------------------------------------------------------------------------------------------------------------------
// Copies from device memory to shared memory that run in the background.

// 16 bytes, or 16 zeros.
__device__ inline void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but the newest kNewest groups of this thread's copies.
template <int kNewest>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

}  // namespace qdelta::cuda
