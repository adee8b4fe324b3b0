// Products of short prompts: c = add + a b^T of a few hundred bfloat16 rows at most, on compute capability 9.0a.
//
// The matrix library's tiles for thousands of rows leave most SMs idle, and its algorithms for few rows often sum up in
// another order. Those without split sums add up the inner dimension in one chain, 16 elements at a time; so does this
// one. That the bits are the same is tried, not taken for granted (matmul_cache.cpp).
#pragma once

#include "kernels/cuda/matmul_cache.h"

namespace qdelta::cuda {

// Whether there is such a product for the shape, and the matrix library would take longer.
[[nodiscard]] bool fits_short_product(const Context& context, const MatmulShape& shape);
// `add` may be c, or null.
void short_product(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add,
                   void* c);
// y = silu(z) u, [z u] = a b^T rounded to bfloat16, which y is, too; ld: between its rows.
void short_swiglu_product(const Context& context, const MatmulShape& shape, const void* a, const void* b, void* y,
                          std::int64_t ld);

}  // namespace qdelta::cuda
