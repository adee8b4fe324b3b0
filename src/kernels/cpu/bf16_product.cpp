#include "kernels/cpu/bf16_product.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define QDELTA_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace qdelta::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr int kRows = 8;  // a tile is 8 rows by 2 vectors

// Two rows of 16 floats as 16 pairs (first row's element low), the layout the dot-product instruction takes.
QDELTA_AVX512_BF16 inline __m512i pack_pairs(const float* first, const float* second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const auto both = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(second), _mm512_loadu_ps(first));
  return _mm512_permutexvar_epi16(order, both);
}

// out[k / 2][n] = the pair (in[k][n], in[k + 1][n]) for a block of `width` columns, `width` a multiple of 16.
QDELTA_AVX512_BF16 void pack_block(const float* in, std::int64_t ld, std::int64_t inner, std::int64_t width,
                                   std::int32_t* out) {
  for (std::int64_t k = 0; k < inner; k += 2) {
    for (std::int64_t n = 0; n < width; n += kLanes) {
      _mm512_store_si512(out + k / 2 * width + n, pack_pairs(in + k * ld + n, in + (k + 1) * ld + n));
    }
  }
}

// Rows of `inner` floats as rows of inner / 2 pairs.
QDELTA_AVX512_BF16 void pack_rows(const float* in, std::int64_t ld, std::int64_t rows, std::int64_t inner,
                                  std::int32_t* out) {
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t k = 0; k < inner; k += kLanes) {
      const auto packed = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(in + m * ld + k));
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + m * (inner / 2) + k / 2), packed);
    }
  }
}

// Pair (m, p) of A is at a[m * row_step + p * pair_step], pair (p, n) of B at b[p * width + n].
template <Into into, int NR>
QDELTA_AVX512_BF16 inline void tile(const std::int32_t* a, std::int64_t row_step, std::int64_t pair_step,
                                    const std::int32_t* b, std::int64_t width, float* c, std::int64_t ldc,
                                    std::int64_t pairs, float scale) {
  __m512 acc[kRows][NR];
  for (auto& row : acc) {
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  }
  for (std::int64_t p = 0; p < pairs; ++p) {
    __m512bh right[NR];
    for (int n = 0; n < NR; ++n) right[n] = (__m512bh)_mm512_load_si512(b + p * width + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const auto value = (__m512bh)_mm512_set1_epi32(a[m * row_step + p * pair_step]);
      for (int n = 0; n < NR; ++n) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], value, right[n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < NR; ++n) {
      float* out = c + m * ldc + n * kLanes;
      if constexpr (into == Into::add) acc[m][n] = _mm512_add_ps(_mm512_load_ps(out), acc[m][n]);
      if constexpr (into == Into::scale_add) {
        acc[m][n] = _mm512_fmadd_ps(_mm512_set1_ps(scale), _mm512_load_ps(out), acc[m][n]);
      }
      _mm512_store_ps(out, acc[m][n]);
    }
  }
}

}  // namespace

bool bf16_product_available() {
  static const bool available = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                                __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return available;
}

template <Left left, Into into>
QDELTA_AVX512_BF16 void bf16_product(std::int64_t rows, std::int64_t cols, std::int64_t inner, const float* a,
                                     std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                     float scale, std::byte* scratch) {
  constexpr std::int64_t kPanel = 2 * kLanes;
  auto* packed_a = reinterpret_cast<std::int32_t*>(scratch);
  auto* packed_b = packed_a + rows * inner / 2;
  const std::int64_t row_step = left == Left::row_major ? inner / 2 : 1;
  const std::int64_t pair_step = left == Left::row_major ? 1 : rows;
  if constexpr (left == Left::row_major) {
    pack_rows(a, lda, rows, inner, packed_a);
  } else {
    pack_block(a, lda, inner, rows, packed_a);
  }
  for (std::int64_t n = 0; n < cols; n += kPanel) {
    const std::int64_t width = cols - n < kPanel ? cols - n : kPanel;
    pack_block(b + n, ldb, inner, width, packed_b);
    for (std::int64_t m = 0; m < rows; m += kRows) {
      if (width == kPanel) {
        tile<into, 2>(packed_a + m * row_step, row_step, pair_step, packed_b, width, c + m * ldc + n, ldc, inner / 2,
                      scale);
      } else {
        tile<into, 1>(packed_a + m * row_step, row_step, pair_step, packed_b, width, c + m * ldc + n, ldc, inner / 2,
                      scale);
      }
    }
  }
}

}  // namespace qdelta::cpu

#else  // other processors have no such path

#include "core/error.h"

namespace qdelta::cpu {

bool bf16_product_available() { return false; }

template <Left left, Into into>
void bf16_product(std::int64_t /*rows*/, std::int64_t /*cols*/, std::int64_t /*inner*/, const float* /*a*/,
                  std::int64_t /*lda*/, const float* /*b*/, std::int64_t /*ldb*/, float* /*c*/, std::int64_t /*ldc*/,
                  float /*scale*/, std::byte* /*scratch*/) {
  fail(Status::internal, "bfloat16 products were asked for on a processor without them");
}

}  // namespace qdelta::cpu

#endif

namespace qdelta::cpu {

#define QDELTA_INSTANTIATE(left, into)                                                                         \
  template void bf16_product<left, into>(std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t, \
                                         const float*, std::int64_t, float*, std::int64_t, float, std::byte*);
QDELTA_INSTANTIATE(Left::row_major, Into::set)
QDELTA_INSTANTIATE(Left::row_major, Into::add)
QDELTA_INSTANTIATE(Left::column_major, Into::scale_add)
#undef QDELTA_INSTANTIATE

}  // namespace qdelta::cpu
