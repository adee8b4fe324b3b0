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

// C += A B with A lower triangular. Nothing above A's diagonal is read, and no product with a later row of B is formed:
// what is infinite or NaN in a later token must not reach an earlier one.
HWY_INLINE void LowerTimes(std::int64_t rows, std::int64_t cols, const float* a, std::int64_t lda, const float* b,
                           std::int64_t ldb, float* c, std::int64_t ldc) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    if (m > 0) Band<Left::row_major, Into::add>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, cols, m);
    for (std::int64_t n = 0; n < cols; n += lanes) {
      for (int r = 0; r < kTileRows; ++r) {
        Vector sum = hn::Load(d, c + (m + r) * ldc + n);
        for (int i = 0; i <= r; ++i) {
          sum = hn::MulAdd(hn::Set(d, a[(m + r) * lda + m + i]), hn::Load(d, b + (m + i) * ldb + n), sum);
        }
        hn::Store(sum, d, c + (m + r) * ldc + n);
      }
    }
  }
}

// C += A^T B with A lower triangular and zero above the diagonal.
HWY_INLINE void LowerTransposedTimes(std::int64_t rows, std::int64_t cols, const float* a, std::int64_t lda,
                                     const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    Band<Left::column_major, Into::add>(a + m * lda + m, lda, b + m * ldb, ldb, c + m * ldc, ldc, cols, rows - m);
  }
}

// Solves (I - L) Y = R in place of R, L strictly lower triangular: row by row, Y_r = R_r + sum_{i<r} L_ri Y_i.
HWY_INLINE void SolveLower(std::int64_t rows, std::int64_t cols, const float* l, std::int64_t ldl, float* r,
                           std::int64_t ldr) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t m = 0; m < rows; m += kTileRows) {
    if (m > 0) Band<Left::row_major, Into::add>(l + m * ldl, ldl, r, ldr, r + m * ldr, ldr, cols, m);
    for (std::int64_t n = 0; n < cols; n += lanes) {
      Vector y[kTileRows];
      for (int i = 0; i < kTileRows; ++i) y[i] = hn::Load(d, r + (m + i) * ldr + n);
      for (int i = 0; i < kTileRows; ++i) {
        for (int j = i + 1; j < kTileRows; ++j) y[j] = hn::MulAdd(hn::Set(d, l[(m + j) * ldl + m + i]), y[i], y[j]);
        hn::Store(y[i], d, r + (m + i) * ldr + n);
      }
    }
  }
}

// Solves (I - L)^T Y = R in place of R: from the last row up, Y_r = R_r + sum_{i>r} L_ir Y_i.
HWY_INLINE void SolveLowerTransposed(std::int64_t rows, std::int64_t cols, const float* l, std::int64_t ldl, float* r,
                                     std::int64_t ldr) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t m = rows - kTileRows; m >= 0; m -= kTileRows) {
    const std::int64_t below = m + kTileRows;
    if (below < rows) {
      Band<Left::column_major, Into::add>(l + below * ldl + m, ldl, r + below * ldr, ldr, r + m * ldr, ldr, cols,
                                          rows - below);
    }
    for (std::int64_t n = 0; n < cols; n += lanes) {
      Vector y[kTileRows];
      for (int i = 0; i < kTileRows; ++i) y[i] = hn::Load(d, r + (m + i) * ldr + n);
      for (int i = kTileRows - 1; i >= 0; --i) {
        for (int j = 0; j < i; ++j) y[j] = hn::MulAdd(hn::Set(d, l[(m + i) * ldl + m + j]), y[i], y[j]);
        hn::Store(y[i], d, r + (m + i) * ldr + n);
      }
    }
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
