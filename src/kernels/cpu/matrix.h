// The vocabulary of the small matrix products  C =, += or scale * C +=  A B  (matrix-inl.h, bf16_product.cpp).
#pragma once

namespace qdelta::cpu {

enum class Left { row_major, column_major };  // how A is stored: element (m, k) at a[m * lda + k] or a[k * lda + m]
enum class Into { set, add, scale_add };

}  // namespace qdelta::cpu
