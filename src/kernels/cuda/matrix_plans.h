// Matrix products through cuBLASLt. The library is asked once for the algorithm of a product (types, layouts, sizes,
// strides, alignment), and the answer is kept, with the descriptors that a call needs.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "core/dtype.h"

namespace qdelta::cuda {

class Context;

// c (rows x cols) = op(a) op(b), or with something added; all row-major, with a stride between rows. a and b share
// their type, and so do c and what is added.
struct MatrixProduct {
  struct Operand {
    std::int64_t ld = 0;
    bool transposed = false;  // stored so: op(a) is the transpose of what lies in memory
  };
  std::int64_t rows = 0, cols = 0, inner = 0;
  Operand a, b;
  std::int64_t ldc = 0, ld_add = 0;
  DType in = DType::f32, out = DType::f32;
  int alignment = 16;  // bytes, of all of them: pointers and rows

  friend bool operator==(const MatrixProduct& x, const MatrixProduct& y);
};

class MatrixPlans {
 public:
  MatrixPlans();
  ~MatrixPlans();
  // `add` may be c, or null.
  void run(const Context& context, const MatrixProduct& product, const void* a, const void* b, const void* add,
           void* c);

 private:
  struct Plan;
  struct Hash {
    std::size_t operator()(const MatrixProduct& product) const;
  };
  std::unordered_map<MatrixProduct, std::unique_ptr<Plan>, Hash> plans_;
};

}  // namespace qdelta::cuda
