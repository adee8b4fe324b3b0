// Matrix products for the emulator, in place of cuBLASLt's: plain loops. Where rows must not depend on their number a
// sum is one chain of the emulated matrix instruction, so that products of short prompts take its place as on a card.
#include <algorithm>

#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/row_kernels.cuh"
#include "kernels/cuda/short_product.h"

namespace qdelta::cuda {
namespace {

float get(const void* data, DType type, std::int64_t at) {
  return type == DType::bf16 ? static_cast<float>(static_cast<const bf16*>(data)[at])
                             : static_cast<const float*>(data)[at];
}

// term(k) of all k, 16 at a time.
template <class Term>
float sum_in_one_chain(std::int64_t inner, const Term& term) {
  float sum = 0;
  for (std::int64_t first = 0; first < inner; first += 16) {
    double step = 0;
    for (std::int64_t k = first; k < std::min(first + 16, inner); ++k) step += term(k);
    sum = static_cast<float>(double{sum} + step);
  }
  return sum;
}

}  // namespace

struct MatmulCache::Matmul {};
MatmulCache::MatmulCache() = default;
MatmulCache::~MatmulCache() = default;
std::size_t MatmulCache::Hash::operator()(const MatmulShape& /*shape*/) const { return 0; }
bool operator==(const MatmulShape& /*x*/, const MatmulShape& /*y*/) { return true; }

bool MatmulCache::is_short_product(const Context& context, const MatmulShape& shape) {
  return shape.rows_alone && fits_short_product(context, shape);
}

void MatmulCache::run(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add,
                      void* c) {
  if (is_short_product(context, shape)) return short_product(context, shape, a, b, add, c);
  QDELTA_CUDA(emulator::enqueue(context.stream(), [=] {
    const auto at = [](const MatmulShape::Operand& operand, std::int64_t i, std::int64_t j) {
      return operand.transposed ? j * operand.ld + i : i * operand.ld + j;
    };
    std::vector<float> rows(static_cast<std::size_t>(shape.rows * shape.cols));
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (std::int64_t j = 0; j < shape.cols; ++j) {
        const float added = add == nullptr ? 0.0F : get(add, shape.out, i * shape.ld_add + j);
        const auto term = [&](std::int64_t k) {
          return double{get(a, shape.in, at(shape.a, i, k))} * double{get(b, shape.in, at(shape.b, k, j))};
        };
        float& out = rows[static_cast<std::size_t>(i * shape.cols + j)];
        if (shape.rows_alone && shape.in == DType::bf16) {
          out = sum_in_one_chain(shape.inner, term) + added;
        } else {
          double sum = double{added};
          for (std::int64_t k = 0; k < shape.inner; ++k) sum += term(k);
          out = static_cast<float>(sum);
        }
      }
    }
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (std::int64_t j = 0; j < shape.cols; ++j) {
        const float value = rows[static_cast<std::size_t>(i * shape.cols + j)];
        if (shape.out == DType::bf16) {
          static_cast<bf16*>(c)[i * shape.ldc + j] = bf16(value);
        } else {
          static_cast<float*>(c)[i * shape.ldc + j] = value;
        }
      }
    }
  }));
}

}  // namespace qdelta::cuda
