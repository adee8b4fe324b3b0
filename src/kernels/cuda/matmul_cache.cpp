// The heuristic gives several algorithms for a shape. The first is used, or where products are tuned the fastest of
// those that give the same bits. Where rows must not depend on their number the heuristic is asked for kRowsAsked rows
// instead, and for algorithms that do not split sums; a row of a tile is then summed up in the same order whatever the
// tiles beside it. Tiles for so many rows leave most SMs idle where there are few: then short_product.h takes over, if
// it gives the same bits on a trial.
//
// cuBLASLt is column-major: to it a row-major matrix is its transpose, with the same leading dimension. So
// c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T: b comes first, and transposition flags stay as they are.
#include "kernels/cuda/matmul_cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cuda/context.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/matmul_tuning.h"
#include "kernels/cuda/short_product.h"
#include "kernels/product_tuning.h"

namespace qdelta::cuda {
namespace {

cudaDataType_t cuda_type(DType type) { return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

template <class T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t name, const T& value) {
  QDELTA_CUDA(cublasLtMatmulDescSetAttribute(descriptor, name, &value, sizeof(value)));
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  QDELTA_CUDA(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)));
}

}  // namespace

bool operator==(const MatmulShape& x, const MatmulShape& y) {
  return x.rows == y.rows && x.cols == y.cols && x.inner == y.inner && x.a.ld == y.a.ld &&
         x.a.transposed == y.a.transposed && x.b.ld == y.b.ld && x.b.transposed == y.b.transposed && x.ldc == y.ldc &&
         x.ld_add == y.ld_add && x.in == y.in && x.out == y.out && x.alignment == y.alignment &&
         x.rows_alone == y.rows_alone;
}

std::size_t MatmulCache::Hash::operator()(const MatmulShape& p) const {
  std::uint64_t hash = 0;
  for (const std::int64_t value :
       {p.rows, p.cols, p.inner, p.a.ld, p.b.ld, p.ldc, p.ld_add, std::int64_t{p.a.transposed},
        std::int64_t{p.b.transposed}, static_cast<std::int64_t>(p.in), static_cast<std::int64_t>(p.out),
        std::int64_t{p.alignment}, std::int64_t{p.rows_alone}}) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29U;
  }
  return static_cast<std::size_t>(hash);
}

// What cuBLASLt calls A is our b, and its B is our a.
struct MatmulCache::Matmul {
  static constexpr int kCandidates = 8;
  static constexpr std::int64_t kRowsAsked = 2048;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, add = nullptr, c = nullptr;
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int found = 0;
  int chosen = 0;
  bool tuned = false;

  Matmul(const Context& context, const MatmulShape& p) {
    QDELTA_CUDA(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    layout(&a, p.in, p.inner, p.cols, p.b);
    if (p.rows_alone) {
      lay_out_rows(p, kRowsAsked);
      find(context, p);
      for (cublasLtMatrixLayout_t* each : {&b, &add, &c}) cublasLtMatrixLayoutDestroy(std::exchange(*each, nullptr));
      lay_out_rows(p, p.rows);
      choose_one_that_can(context, p);
    } else {
      lay_out_rows(p, p.rows);
      find(context, p);
    }
  }
  // What serves the rows asked for serves others too; this makes sure of it.
  void choose_one_that_can(const Context& context, const MatmulShape& p) {
    cublasLtMatmulHeuristicResult_t result{};
    const auto can = [&](int algorithm) {
      return cublasLtMatmulAlgoCheck(context.matrix(), operation, a, b, add, c,
                                     &candidates[static_cast<std::size_t>(algorithm)].algo,
                                     &result) == CUBLAS_STATUS_SUCCESS &&
             result.workspaceSize <= context.matrix_workspace().size();
    };
    while (chosen < found && !can(chosen)) ++chosen;
    require(chosen < found, "the matrix library has no algorithm of {} rows for {}", kRowsAsked, p.rows);
  }
  void lay_out_rows(const MatmulShape& p, std::int64_t rows) {
    layout(&b, p.in, rows, p.inner, p.a);
    layout(&add, p.out, rows, p.cols, {p.ld_add, false});
    layout(&c, p.out, rows, p.cols, {p.ldc, false});
  }
  void find(const Context& context, const MatmulShape& p) {
    cublasLtMatmulPreference_t preference = nullptr;
    QDELTA_CUDA(cublasLtMatmulPreferenceCreate(&preference));
    const std::uint64_t workspace = context.matrix_workspace().size();
    const auto alignment = static_cast<std::uint32_t>(p.alignment);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    if (p.rows_alone) {
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    }
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context.matrix(), operation, a, b, add, c, preference,
                                                                 kCandidates, candidates.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    QDELTA_CUDA(status);
    require(found > 0, "the matrix library has no product of {} x {} x {} for these types and strides", p.rows, p.cols,
            p.inner);
  }
  [[nodiscard]] cublasStatus_t run(const Context& context, int algorithm, const void* left, const void* right,
                                   const void* added, void* out) const {
    const float one = 1.0F;
    const float beta = added != nullptr ? 1.0F : 0.0F;
    return cublasLtMatmul(context.matrix(), operation, &one, right, a, left, b, &beta, added != nullptr ? added : out,
                          add, out, c, &candidates[static_cast<std::size_t>(algorithm)].algo,
                          context.matrix_workspace().data(), context.matrix_workspace().size(), context.stream());
  }
  ~Matmul() {
    for (cublasLtMatrixLayout_t each : {a, b, add, c}) {
      if (each != nullptr) cublasLtMatrixLayoutDestroy(each);
    }
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

 private:
  // For an operand whose op() is rows x cols.
  static void layout(cublasLtMatrixLayout_t* out, DType type, std::int64_t rows, std::int64_t cols,
                     const MatmulShape::Operand& operand) {
    if (operand.transposed) std::swap(rows, cols);
    QDELTA_CUDA(cublasLtMatrixLayoutCreate(out, cuda_type(type), static_cast<std::uint64_t>(cols),
                                           static_cast<std::uint64_t>(rows), operand.ld));
  }
};

MatmulCache::MatmulCache() = default;
MatmulCache::~MatmulCache() = default;

// Asked for once for all numbers of rows.
bool MatmulCache::has_bits_of_short_product(const Context& context, const MatmulShape& shape) {
  constexpr std::int64_t kTrialRows = 128;
  MatmulShape tried = shape;
  tried.rows = kTrialRows;
  const auto known = same_bits_.find(tried);
  if (known != same_bits_.end()) return known->second;
  if (is_capturing(context)) return false;
  const Matmul library(context, tried);
  const bool same = has_same_bits(
      context, tried,
      [&](const Trial& trial) {
        QDELTA_CUDA(library.run(context, library.chosen, trial.a, trial.b, trial.add, trial.c));
      },
      [&](const Trial& trial) { short_product(context, tried, trial.a, trial.b, trial.add, trial.c); });
  same_bits_.emplace(tried, same);
  return same;
}

bool MatmulCache::is_short_product(const Context& context, const MatmulShape& shape) {
  return shape.rows_alone && fits_short_product(context, shape) && has_bits_of_short_product(context, shape);
}

void MatmulCache::run(const Context& context, const MatmulShape& shape, const void* a, const void* b, const void* add,
                      void* c) {
  if (is_short_product(context, shape)) return short_product(context, shape, a, b, add, c);
  std::unique_ptr<Matmul>& matmul = matmuls_[shape];
  if (matmul == nullptr) matmul = std::make_unique<Matmul>(context, shape);
  const double flop =
      2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.cols) * static_cast<double>(shape.inner);
  if (ProductTuning::tunes() && !shape.rows_alone && !matmul->tuned && flop >= kLeastTunedFlop &&
      !is_capturing(context)) {
    const std::size_t bytes = static_cast<std::size_t>(shape.rows * shape.ldc) * size_of(shape.out);
    matmul->chosen = fastest_with_same_bits(context, matmul->found, bytes, [&](int algorithm, void* out) {
      return matmul->run(context, algorithm, a, b, add, out) == CUBLAS_STATUS_SUCCESS;
    });
    matmul->tuned = true;
  }
  QDELTA_CUDA(matmul->run(context, matmul->chosen, a, b, add, c));
}

}  // namespace qdelta::cuda
