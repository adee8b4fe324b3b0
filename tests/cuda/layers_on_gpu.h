// What the tests of layers.h on the GPU share: random tensors, where rows lie, and how close results must be.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "kernels/cuda/layers.h"
#include "kernels/layers.h"
#include "testing.h"

namespace qdelta::testing {

inline constexpr DType kF32 = DType::f32;
inline constexpr DType kBF16 = DType::bf16;
inline const Device kCpu{2};

// The largest error of every result, printed at the end.
inline std::map<std::string, double>& worst() {
  static std::map<std::string, double> errors;
  return errors;
}
class Report final : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [name, error] : worst()) std::printf("  %-34s %.2e\n", name.c_str(), error);
  }
};
inline const ::testing::Environment* const kReport = ::testing::AddGlobalTestEnvironment(new Report);

// `got` may be rounded to bfloat16; sums in another order differ by a few float32 roundings.
inline void expect_close(const std::string& name, const Tensor& got, const Tensor& expected, double tolerance = 0) {
  if (tolerance == 0) tolerance = got.dtype() == kBF16 ? 4e-3 : 5e-6;
  const double error = relative_error(got.view(), to_doubles(expected.view()));
  double& most = worst()[name + (got.dtype() == kBF16 ? " bf16" : " f32")];
  most = std::max(most, error);
  EXPECT_LE(error, tolerance) << name << " " << got.shape().text();
}

// A sum over many rows may nearly cancel: the error is measured against the size of the terms as well.
inline void expect_sum_close(const std::string& name, const Tensor& got, const Tensor& expected, std::int64_t rows) {
  double size = std::sqrt(static_cast<double>(rows * expected.elements()));
  double error = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(expected.elements()); ++i) {
    const double difference = double{got.as<float>()[i]} - double{expected.as<float>()[i]};
    error += difference * difference;
    size = std::hypot(size, double{expected.as<float>()[i]});
  }
  error = std::sqrt(error) / size;
  double& most = worst()[name + " f32"];
  most = std::max(most, error);
  EXPECT_LE(error, 2e-6) << name << " " << got.shape().text();
}

inline Tensor random_tensor(Random& random, DType dtype, const Shape& shape, float scale = 1.0F) {
  Tensor tensor(kF32, shape);
  for (float& value : tensor.as<float>()) value = scale * random.normal();
  return dtype == kF32 ? std::move(tensor) : converted(tensor.view(), dtype);
}
inline Tensor float_of(const Tensor& tensor) { return converted(tensor.view(), kF32); }

// Aligned and dense; aligned with room; neither.
inline const std::vector<Placement> kPlacements{{0, 0}, {8, 8}, {1, 3}};

inline std::string trace(DType dtype, const Placement& place, std::initializer_list<std::int64_t> numbers) {
  return fmt::format("{} offset {} padding {}: {}", name_of(dtype), place.offset, place.padding,
                     fmt::join(numbers, " "));
}

}  // namespace qdelta::testing
