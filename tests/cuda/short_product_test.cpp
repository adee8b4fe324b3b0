// Products of short prompts on the GPU: a row has the same bits in all tiles, whose size the number of rows decides.
#include "kernels/cuda/short_product.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device.h"
#include "kernels/recurrence_case.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

struct ShortProductCase {
  Tensor x, w, add;  // [rows, inner], [outputs, inner], [rows, outputs]

  ShortProductCase(std::int64_t rows, std::int64_t inner, std::int64_t outputs) {
    Random random(98);
    x = random_tensor(random, DType::bf16, {rows, inner}, -1, 1);
    w = random_tensor(random, DType::bf16, {outputs, inner}, -1, 1);
    add = random_tensor(random, DType::f32, {rows, outputs}, -1, 1);
  }
  // Of the first `rows` rows.
  [[nodiscard]] cuda::MatmulShape shape(std::int64_t rows) const {
    const std::int64_t inner = x.shape()[1];
    const std::int64_t outputs = w.shape()[0];
    return {.rows = rows,
            .cols = outputs,
            .inner = inner,
            .a = {.ld = inner},
            .b = {.ld = inner, .transposed = true},
            .ldc = outputs,
            .ld_add = outputs,
            .in = DType::bf16,
            .out = DType::f32,
            .rows_alone = true};
  }
  [[nodiscard]] std::vector<double> product(std::int64_t rows) const {
    const DeviceTensor on_gpu[] = {DeviceTensor(x), DeviceTensor(w), DeviceTensor(add)};
    const DeviceTensor y(DType::f32, {rows, w.shape()[0]});
    cuda::short_product(device_context(), shape(rows), on_gpu[0].view().data, on_gpu[1].view().data,
                        on_gpu[2].view().data, y.view().data);
    return to_doubles(y.get().view());
  }
  // By plain loops.
  [[nodiscard]] std::vector<double> expected() const {
    const std::vector<double> of_x = to_doubles(x.view());
    const std::vector<double> of_w = to_doubles(w.view());
    std::vector<double> sums = to_doubles(add.view());
    const auto inner = static_cast<std::size_t>(x.shape()[1]);
    const auto outputs = static_cast<std::size_t>(w.shape()[0]);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (std::size_t k = 0; k < inner; ++k) sums[i] += of_x[i / outputs * inner + k] * of_w[i % outputs * inner + k];
    }
    return sums;
  }
};

TEST(ShortProductOnGpu, RowsHaveTheSameBitsInAllTiles) {
  QDELTA_NEEDS_DEVICE();
  // Few outputs and many; rows and outputs that do not fill the last tile.
  for (const auto& [outputs, most_rows] : {std::pair{200, 300}, {2100, 128}}) {
    const ShortProductCase problem(most_rows, 328, outputs);
    if (!cuda::fits_short_product(device_context(), problem.shape(most_rows))) GTEST_SKIP() << "this GPU has none";
    const std::vector<double> all = problem.product(most_rows);
    EXPECT_LT(relative_error(all, problem.expected()), 1e-6);
    for (const std::int64_t rows : {1, 20, 64, 84, 128}) {
      const std::vector<double> some = problem.product(rows);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows << " rows, " << outputs << " outputs";
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
