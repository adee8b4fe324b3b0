// Matrix products with operands rounded to bfloat16 and float32 sums, on processors with AVX512-BF16: twice the rate of
// float32. Operands and result are float32 in memory, padded as for matrix-inl.h; the rounding happens on the way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matrix.h"

namespace qdelta::cpu {

// Whether this processor and operating system can run them. Nothing below may be called where they cannot.
[[nodiscard]] bool bf16_product_available();

// Scratch space for packed operands of these sizes, in bytes.
[[nodiscard]] constexpr std::int64_t bf16_product_scratch(std::int64_t rows, std::int64_t cols, std::int64_t inner) {
  return (rows + cols) * inner * 2;
}

// rows and cols are multiples of 16, inner is even.
template <Left left, Into into>
void bf16_product(std::int64_t rows, std::int64_t cols, std::int64_t inner, const float* a, std::int64_t lda,
                  const float* b, std::int64_t ldb, float* c, std::int64_t ldc, float scale, std::byte* scratch);

}  // namespace qdelta::cpu
