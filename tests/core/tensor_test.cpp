#include "core/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "testing.h"

namespace qdelta::testing {
namespace {

Tensor counting(DType dtype, const Shape& shape) {
  Tensor numbers(DType::f32, shape);
  std::iota(numbers.as<float>().begin(), numbers.as<float>().end(), 0.0F);
  return converted(numbers.view(), dtype);
}

ConstTensorView transposed(ConstTensorView view) {
  std::swap(view.shape.extent[0], view.shape.extent[1]);
  std::swap(view.stride[0], view.stride[1]);
  return view;
}

TEST(Shape, KnowsItsExtents) {
  const Shape shape{2, 64, 4, 128};
  EXPECT_EQ(shape.rank, 4);
  EXPECT_EQ(shape[1], 64);
  EXPECT_EQ(shape.elements(), 2 * 64 * 4 * 128);
  EXPECT_EQ(shape.text(), "[2, 64, 4, 128]");
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{3, 0, 5}).elements(), 0);
  constexpr std::int64_t kMany = std::int64_t{1} << 24U;
  EXPECT_TRUE((Shape{kMany, 1, kMany}).countable());
  EXPECT_TRUE((Shape{kMany, 0, kMany}).countable());
  EXPECT_FALSE((Shape{kMany, 2, kMany}).countable());
  EXPECT_FALSE((Shape{kMany, 0, kMany, 2}).countable());
  EXPECT_FALSE((Shape{std::numeric_limits<std::int64_t>::max(), 0}).countable());
  EXPECT_FALSE((Shape{-1}).countable());
}

TEST(Shape, EqualityNeedsRankAndExtents) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{3, 2}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 0}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
}

TEST(Shape, MoreDimensionsThanThereAreAreRefused) {
  const std::vector<std::int64_t> extents(kMaxRank + 1, 1);
  expect_error(Status::invalid_argument, {"at most 6", "7"}, [&] { return Shape(extents); });
  EXPECT_EQ(Shape(std::span(extents).first(kMaxRank)).rank, kMaxRank);
}

TEST(View, StridesAreRowMajor) {
  Tensor tensor(DType::f32, {2, 3, 5});
  const TensorView view = tensor.view();
  EXPECT_EQ(view.step(0), 15);
  EXPECT_EQ(view.step(1), 5);
  EXPECT_EQ(view.step(2), 1);
  EXPECT_EQ(view.extent(1), 3);
  EXPECT_TRUE(view);
  EXPECT_FALSE(TensorView());
}

TEST(View, ConvertsToOneThatOnlyReads) {
  Tensor tensor(DType::bf16, {2, 3});
  const TensorView writes = tensor.view();
  const ConstTensorView reads = writes;
  EXPECT_EQ(reads.data, writes.data);
  EXPECT_EQ(reads.dtype, DType::bf16);
  EXPECT_EQ(reads.shape, writes.shape);
  EXPECT_EQ(reads.stride, writes.stride);
}

TEST(View, ContiguousIgnoresAxesOfOne) {
  const Tensor tensor(DType::f32, {4, 1, 3});
  ConstTensorView view = tensor.view();
  EXPECT_TRUE(view.contiguous());
  view.stride[1] = 77;
  EXPECT_TRUE(view.contiguous());
  view.stride[0] = 4;
  EXPECT_FALSE(view.contiguous());
  EXPECT_FALSE(transposed(Tensor(DType::f32, {2, 3}).view()).contiguous());
}

TEST(Tensor, StartsWithZerosAndChecksItsType) {
  Tensor tensor(DType::f32, {3, 2});
  EXPECT_EQ(tensor.bytes(), 24U);
  EXPECT_EQ(tensor.as<float>().size(), 6U);
  for (const float value : tensor.as<float>()) EXPECT_EQ(value, 0.0F);
  expect_error(Status::invalid_argument, {"F32", "BF16"}, [&] { return tensor.as<BFloat16>(); });
  const Tensor& constant = tensor;
  expect_error(Status::invalid_argument, {"F32", "I64"}, [&] { return constant.as<std::int64_t>(); });
}

TEST(Tensor, WithoutElementsIsStillGiven) {
  const Tensor tensor(DType::f32, {2, 0, 4});
  EXPECT_TRUE(tensor.view());
  EXPECT_EQ(tensor.bytes(), 0U);
  EXPECT_FALSE(Tensor().view());
}

TEST(Converted, ChangesTheElementType) {
  Tensor tensor(DType::f64, {3});
  tensor.as<double>()[0] = 1.0 + 0x1p-9;
  tensor.as<double>()[1] = -3.5;
  tensor.as<double>()[2] = 0.1;
  const Tensor narrow = converted(tensor.view(), DType::bf16);
  EXPECT_EQ(narrow.as<BFloat16>()[0].bits, BFloat16(1.0F).bits);
  EXPECT_EQ(static_cast<float>(narrow.as<BFloat16>()[1]), -3.5F);
  EXPECT_EQ(converted(tensor.view(), DType::f32).as<float>()[2], 0.1F);
  EXPECT_EQ(converted(narrow.view(), DType::f64).as<double>()[1], -3.5);
}

TEST(Converted, FollowsStrides) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor tensor = counting(dtype, {2, 3});
    for (const DType to : {DType::f32, DType::bf16, DType::f64}) {
      const Tensor flipped = converted(transposed(tensor.view()), to);
      EXPECT_EQ(flipped.shape(), (Shape{3, 2}));
      EXPECT_EQ(to_doubles(flipped.view()), (std::vector<double>{0, 3, 1, 4, 2, 5})) << name_of(dtype) << name_of(to);
    }
  }
}

TEST(Converted, FollowsNegativeAndZeroStrides) {
  const Tensor tensor = counting(DType::f32, {4});
  ConstTensorView backwards = tensor.view();
  backwards.data += 3 * sizeof(float);
  backwards.stride[0] = -1;
  EXPECT_EQ(to_doubles(converted(backwards, DType::f32).view()), (std::vector<double>{3, 2, 1, 0}));
  ConstTensorView repeated = tensor.view();
  repeated.stride[0] = 0;
  EXPECT_EQ(to_doubles(converted(repeated, DType::f32).view()), (std::vector<double>{0, 0, 0, 0}));
}

TEST(Converted, CopiesIntegersButDoesNotConvertThem) {
  Tensor tensor(DType::i64, {2});
  tensor.as<std::int64_t>()[0] = std::int64_t{1} << 60;
  tensor.as<std::int64_t>()[1] = -7;
  EXPECT_TRUE(std::ranges::equal(converted(tensor.view(), DType::i64).as<std::int64_t>(), tensor.as<std::int64_t>()));
  expect_error(Status::unsupported, {"I64"}, [&] { return converted(tensor.view(), DType::f32); });
  expect_error(Status::unsupported, {"F32", "I32"},
               [] { return converted(Tensor(DType::f32, {1}).view(), DType::i32); });
}

TEST(IntegersOf, ReadsBothWidthsAtAnyStride) {
  Tensor wide(DType::i64, {4});
  Tensor narrow(DType::i32, {4});
  for (int i = 0; i < 4; ++i) {
    wide.as<std::int64_t>()[i] = (std::int64_t{1} << 40) + i;
    narrow.as<std::int32_t>()[i] = -i;
  }
  ConstTensorView second = narrow.view();
  second.shape = {2};
  second.stride[0] = 2;
  EXPECT_EQ(integers_of(wide.view(), "w")[3], (std::int64_t{1} << 40) + 3);
  EXPECT_EQ(integers_of(second, "n"), (std::vector<std::int64_t>{0, -2}));
}

TEST(IntegersOf, NamesWhatItRefuses) {
  expect_error(Status::invalid_argument, {"offsets", "[2, 2]"}, [] {
    return integers_of(Tensor(DType::i64, {2, 2}).view(), "offsets");
  });
  expect_error(Status::invalid_argument, {"offsets", "F32"},
               [] { return integers_of(Tensor(DType::f32, {2}).view(), "offsets"); });
}

}  // namespace
}  // namespace qdelta::testing
