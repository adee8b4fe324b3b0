// Matrix products by cuBLASLt. Its heuristic is asked once for the algorithm of a shape (types, layouts, sizes,
// strides, alignment); the result is cached together with the descriptors.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "core/dtype.h"

namespace qdelta::cuda {

class Context;

// c (rows x cols) = op(a) op(b) + add, all row-major. a and b have the type `in`, c and add the type `out`.
struct MatmulShape {
  struct Operand {
    std::int64_t ld = 0;
    bool transposed = false;  // op(a) is the transpose of the matrix in memory
  };
  std::int64_t rows = 0, cols = 0, inner = 0;
  Operand a, b;
  std::int64_t ldc = 0, ld_add = 0;
  DType in = DType::f32, out = DType::f32;
  int alignment = 16;  // bytes; of all pointers and rows
  // Each row of c is summed up in the same order whatever the number of rows (kernels/row_blocks.h).
  bool rows_alone = false;

  friend bool operator==(const MatmulShape& x, const MatmulShape& y);
};

class MatmulCache {
 public:
  MatmulCache();
  ~MatmulCache();
  // `add` may be c, or null.
  void run(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add, void* c);
  // Whether that is a product of short_product.h.
  [[nodiscard]] bool is_short_product(const Context& context, const MatmulShape& shape);

 private:
  struct Matmul;
  struct Hash {
    std::size_t operator()(const MatmulShape& shape) const;
  };
  // Whether the library gives this product the bits of short_product.h.
  [[nodiscard]] bool has_bits_of_short_product(const Context& context, const MatmulShape& shape);

  std::unordered_map<MatmulShape, std::unique_ptr<Matmul>, Hash> matmuls_;
  std::unordered_map<MatmulShape, bool, Hash> same_bits_;
};

}  // namespace qdelta::cuda
