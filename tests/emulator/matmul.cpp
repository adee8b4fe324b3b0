// Matrix products for the emulator, in place of cuBLASLt's: plain loops.
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/row_kernels.cuh"

namespace qdelta::cuda {
namespace {

float get(const void* data, DType type, std::int64_t at) {
  return type == DType::bf16 ? static_cast<float>(static_cast<const bf16*>(data)[at])
                             : static_cast<const float*>(data)[at];
}

}  // namespace

struct MatmulCache::Matmul {};
MatmulCache::MatmulCache() = default;
MatmulCache::~MatmulCache() = default;
std::size_t MatmulCache::Hash::operator()(const MatmulShape& /*shape*/) const { return 0; }
bool operator==(const MatmulShape& /*x*/, const MatmulShape& /*y*/) { return true; }

void MatmulCache::run(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add,
                      void* c) {
  QDELTA_CUDA(emulator::enqueue(context.stream(), [=] {
    const auto at = [](const MatmulShape::Operand& operand, std::int64_t i, std::int64_t j) {
      return operand.transposed ? j * operand.ld + i : i * operand.ld + j;
    };
    std::vector<float> rows(static_cast<std::size_t>(shape.rows * shape.cols));
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (std::int64_t j = 0; j < shape.cols; ++j) {
        double sum = add == nullptr ? 0 : double{get(add, shape.out, i * shape.ld_add + j)};
        for (std::int64_t k = 0; k < shape.inner; ++k) {
          sum += double{get(a, shape.in, at(shape.a, i, k))} * double{get(b, shape.in, at(shape.b, k, j))};
        }
        rows[static_cast<std::size_t>(i * shape.cols + j)] = static_cast<float>(sum);
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
