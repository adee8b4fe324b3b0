// Small matrix products in registers, over packed float32 blocks:
//
//   C (rows x cols)  =, += or scale * C +=  A (rows x inner) B (inner x cols)
//
// A's elements are broadcast one by one, so A may be stored either way round; B and C are row-major, their columns fill
// vector registers. Blocks are padded so that there are no remainders: rows are a multiple of kTileRows, columns of
// kPad, and the padding holds zeros. Every element of C is one chain of fused multiply-adds in the order of `inner`,
// whatever tile it falls in, so results do not depend on how columns are divided among threads.
#if defined(QDELTA_KERNELS_CPU_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QDELTA_KERNELS_CPU_MATRIX_INL_H_
#undef QDELTA_KERNELS_CPU_MATRIX_INL_H_
#else
#define QDELTA_KERNELS_CPU_MATRIX_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/matrix.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

inline constexpr std::int64_t kPad = 16;  // floats; at least the lanes of the widest vector
// A tile of C is kTileRows x 2 vectors: 16 accumulators where there are 32 registers, 8 where there are 16.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;
#endif

template <Left left, Into into, int NR>
HWY_INLINE void Tile(const float* HWY_RESTRICT a, std::int64_t lda, const float* HWY_RESTRICT b, std::int64_t ldb,
                     float* HWY_RESTRICT c, std::int64_t ldc, std::int64_t inner, float scale) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vector acc[kTileRows][NR];
  for (int m = 0; m < kTileRows; ++m) {
    for (int n = 0; n < NR; ++n) acc[m][n] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < inner; ++k) {
    Vector right[NR];
    for (int n = 0; n < NR; ++n) right[n] = hn::Load(d, b + k * ldb + n * lanes);
#pragma GCC unroll 8
    for (int m = 0; m < kTileRows; ++m) {
      const Vector value = hn::Set(d, left == Left::row_major ? a[m * lda + k] : a[k * lda + m]);
      for (int n = 0; n < NR; ++n) acc[m][n] = hn::MulAdd(value, right[n], acc[m][n]);
    }
  }
  const Vector factor = hn::Set(d, scale);
  for (int m = 0; m < kTileRows; ++m) {
    for (int n = 0; n < NR; ++n) {
      float* out = c + m * ldc + n * lanes;
      if constexpr (into == Into::add) acc[m][n] = hn::Add(hn::Load(d, out), acc[m][n]);
      if constexpr (into == Into::scale_add) acc[m][n] = hn::MulAdd(factor, hn::Load(d, out), acc[m][n]);
      hn::Store(acc[m][n], d, out);
    }
  }
}

// One band of kTileRows rows of C.
template <Left left, Into into>
HWY_INLINE void Band(const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                     std::int64_t cols, std::int64_t inner, float scale = 1.0F) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  std::int64_t n = 0;
  for (; n + 2 * lanes <= cols; n += 2 * lanes) Tile<left, into, 2>(a, lda, b + n, ldb, c + n, ldc, inner, scale);
  for (; n < cols; n += lanes) Tile<left, into, 1>(a, lda, b + n, ldb, c + n, ldc, inner, scale);
}

template <Left left, Into into>
HWY_INLINE void Product(std::int64_t rows, std::int64_t cols, std::int64_t inner, const float* a, std::int64_t lda,
                        const float* b, std::int64_t ldb, float* c, std::int64_t ldc, float scale = 1.0F) {
  // Columns outside, so that a panel of B stays in the first-level cache while the rows go by.
  const std::int64_t panel = 2 * static_cast<std::int64_t>(hn::Lanes(Floats()));
  for (std::int64_t n = 0; n < cols; n += panel) {
    const std::int64_t width = cols - n < panel ? cols - n : panel;
    for (std::int64_t m = 0; m < rows; m += kTileRows) {
      Band<left, into>(a + (left == Left::row_major ? m * lda : m), lda, b + n, ldb, c + m * ldc + n, ldc, width, inner,
                       scale);
    }
  }
}

// C = A B of which only the tiles that touch the lower triangle are computed; the rest of C keeps what it held.
HWY_INLINE void LowerOfProduct(std::int64_t rows, std::int64_t inner, const float* a, std::int64_t lda, const float* b,
                               std::int64_t ldb, float* c, std::int64_t ldc, bool add) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    const std::int64_t cols = (m + kTileRows + lanes - 1) / lanes * lanes;
    if (add) {
      Band<Left::row_major, Into::add>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, cols, inner);
    } else {
      Band<Left::row_major, Into::set>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, cols, inner);
    }
  }
}

// C += A B with A lower triangular, for kTileRows rows and NV vectors of columns on the diagonal of A.
template <int NV>
HWY_INLINE void LowerTile(const float* HWY_RESTRICT a, std::int64_t lda, const float* HWY_RESTRICT b, std::int64_t ldb,
                          float* HWY_RESTRICT c, std::int64_t ldc) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vector sum[kTileRows][NV];
  for (int r = 0; r < kTileRows; ++r) {
    for (int n = 0; n < NV; ++n) sum[r][n] = hn::Load(d, c + r * ldc + n * lanes);
  }
  for (int i = 0; i < kTileRows; ++i) {
    Vector right[NV];
    for (int n = 0; n < NV; ++n) right[n] = hn::Load(d, b + i * ldb + n * lanes);
    for (int r = i; r < kTileRows; ++r) {
      const Vector value = hn::Set(d, a[r * lda + i]);
      for (int n = 0; n < NV; ++n) sum[r][n] = hn::MulAdd(value, right[n], sum[r][n]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int n = 0; n < NV; ++n) hn::Store(sum[r][n], d, c + r * ldc + n * lanes);
  }
}

// C += A B with A lower triangular. Nothing above A's diagonal is read, and no product with a later row of B is formed:
// what is infinite or NaN in a later token must not reach an earlier one.
HWY_INLINE void LowerTimes(std::int64_t rows, std::int64_t cols, const float* a, std::int64_t lda, const float* b,
                           std::int64_t ldb, float* c, std::int64_t ldc) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    if (m > 0) Band<Left::row_major, Into::add>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, cols, m);
    const float* diagonal = a + m * lda + m;
    std::int64_t n = 0;
    for (; n + 2 * lanes <= cols; n += 2 * lanes) {
      LowerTile<2>(diagonal, lda, b + m * ldb + n, ldb, c + m * ldc + n, ldc);
    }
    for (; n < cols; n += lanes) LowerTile<1>(diagonal, lda, b + m * ldb + n, ldb, c + m * ldc + n, ldc);
  }
}

// C += A^T B with A lower triangular and zero above the diagonal.
HWY_INLINE void LowerTransposedTimes(std::int64_t rows, std::int64_t cols, const float* a, std::int64_t lda,
                                     const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    Band<Left::column_major, Into::add>(a + m * lda + m, lda, b + m * ldb, ldb, c + m * ldc, ldc, cols, rows - m);
  }
}

// Solves (I - L) Y = R in place of R, for kTileRows rows and NV vectors of columns on the diagonal of L. `down`: from
// the first row to the last; otherwise with L transposed, from the last row to the first.
template <int NV, bool down>
HWY_INLINE void SolveTile(const float* HWY_RESTRICT l, std::int64_t ldl, float* HWY_RESTRICT r, std::int64_t ldr) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vector y[kTileRows][NV];
  for (int i = 0; i < kTileRows; ++i) {
    for (int n = 0; n < NV; ++n) y[i][n] = hn::Load(d, r + i * ldr + n * lanes);
  }
  // As soon as a row is known it is taken out of all that depend on it, which then do not wait for each other.
  for (int step = 0; step < kTileRows; ++step) {
    const int i = down ? step : kTileRows - 1 - step;
    for (int j = down ? i + 1 : 0; j < (down ? kTileRows : i); ++j) {
      const Vector value = hn::Set(d, down ? l[j * ldl + i] : l[i * ldl + j]);
      for (int n = 0; n < NV; ++n) y[j][n] = hn::MulAdd(value, y[i][n], y[j][n]);
    }
    for (int n = 0; n < NV; ++n) hn::Store(y[i][n], d, r + i * ldr + n * lanes);
  }
}

template <bool down>
HWY_INLINE void SolveDiagonal(std::int64_t cols, const float* l, std::int64_t ldl, float* r, std::int64_t ldr) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  std::int64_t n = 0;
  for (; n + 2 * lanes <= cols; n += 2 * lanes) SolveTile<2, down>(l, ldl, r + n, ldr);
  for (; n < cols; n += lanes) SolveTile<1, down>(l, ldl, r + n, ldr);
}

// Solves (I - L) Y = R in place of R, L strictly lower triangular: row by row, Y_r = R_r + sum_{i<r} L_ri Y_i.
HWY_INLINE void SolveLower(std::int64_t rows, std::int64_t cols, const float* l, std::int64_t ldl, float* r,
                           std::int64_t ldr) {
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    if (m > 0) Band<Left::row_major, Into::add>(l + m * ldl, ldl, r, ldr, r + m * ldr, ldr, cols, m);
    SolveDiagonal<true>(cols, l + m * ldl + m, ldl, r + m * ldr, ldr);
  }
}

// Solves (I - L)^T Y = R in place of R: from the last row up, Y_r = R_r + sum_{i>r} L_ir Y_i.
HWY_INLINE void SolveLowerTransposed(std::int64_t rows, std::int64_t cols, const float* l, std::int64_t ldl, float* r,
                                     std::int64_t ldr) {
  for (std::int64_t m = rows - kTileRows; m >= 0; m -= kTileRows) {
    const std::int64_t below = m + kTileRows;
    if (below < rows) {
      Band<Left::column_major, Into::add>(l + below * ldl + m, ldl, r + below * ldr, ldr, r + m * ldr, ldr, cols,
                                          rows - below);
    }
    SolveDiagonal<false>(cols, l + m * ldl + m, ldl, r + m * ldr, ldr);
  }
}

// B (cols x rows) = A^T for A (rows x cols); both extents are multiples of four.
HWY_INLINE void Transpose(std::int64_t rows, std::int64_t cols, const float* a, std::int64_t lda, float* b,
                          std::int64_t ldb) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t n = 0; n < cols; ++n) b[n * ldb + m] = a[m * lda + n];
  }
#else
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  for (std::int64_t m = 0; m < rows; m += 4) {
    for (std::int64_t n = 0; n < cols; n += 4) {
      const float* in = a + m * lda + n;
      const auto r0 = hn::Load(d, in);
      const auto r1 = hn::Load(d, in + lda);
      const auto r2 = hn::Load(d, in + 2 * lda);
      const auto r3 = hn::Load(d, in + 3 * lda);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
      float* out = b + n * ldb + m;
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + ldb);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * ldb);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * ldb);
    }
  }
#endif
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
