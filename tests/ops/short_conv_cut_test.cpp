// A sequence cut in two, the second part with the rows `before` it, is the sequence; and so are its gradients.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/layers.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

struct Conv {
  Tensor x, weight, bias, dy, y, dx, dweight, dbias;

  Conv(std::int64_t rows, std::int64_t taps, std::int64_t channels) {
    Random random(3);
    const auto made = [&](const Shape& shape) {
      Tensor tensor(DType::f32, shape);
      for (float& value : tensor.as<float>()) value = static_cast<float>(uniform(random, -1, 1));
      return tensor;
    };
    x = made({rows, channels});
    weight = made({channels, taps});
    bias = made({channels});
    dy = made({rows, channels});
    y = Tensor(DType::f32, {rows, channels});
    dx = Tensor(DType::f32, {rows, channels});
    dweight = Tensor(DType::f32, {channels, taps});
    dbias = Tensor(DType::f32, {channels});
  }
};

TensorView rows_of(const TensorView& matrix, std::int64_t begin, std::int64_t count) {
  TensorView view = matrix;
  view.data += begin * matrix.step(0) * static_cast<std::int64_t>(sizeof(float));
  view.shape.extent[0] = count;
  return view;
}

// Rows [begin, begin + count), a sequence that goes on after `before`.
void run_part(Conv& c, std::int64_t begin, std::int64_t count, const ConstTensorView& before,
              const TensorView& dbefore) {
  Workspace workspace(Device{});
  const std::vector<std::int64_t> offsets{0, count};
  short_conv_forward({.threads = 2},
                     {.x = rows_of(c.x.view(), begin, count),
                      .weight = c.weight.view(),
                      .y = rows_of(c.y.view(), begin, count),
                      .offsets = offsets,
                      .state = {},
                      .slots = {},
                      .bias = c.bias.view(),
                      .before = before},
                     workspace);
  short_conv_backward({.threads = 2},
                      {.x = rows_of(c.x.view(), begin, count),
                       .weight = c.weight.view(),
                       .dy = rows_of(c.dy.view(), begin, count),
                       .dx = rows_of(c.dx.view(), begin, count),
                       .dweight = c.dweight.view(),
                       .offsets = offsets,
                       .bias = c.bias.view(),
                       .dbias = c.dbias.view(),
                       .before = before,
                       .dbefore = dbefore},
                      workspace);
}

TEST(ShortConvBefore, IsThePartBefore) {
  constexpr std::int64_t kRows = 23;
  for (const std::int64_t taps : {1, 2, 4, 6}) {
    for (const std::int64_t channels : {5, 70}) {
      Conv whole(kRows, taps, channels);
      run_part(whole, 0, kRows, {}, {});
      for (const std::int64_t cut : {6, 11, 21, 22}) {
        if (cut < taps - 1) continue;
        SCOPED_TRACE(fmt::format("{} taps, {} channels, cut at {}", taps, channels, cut));
        Conv parts(kRows, taps, channels);
        const std::int64_t halo = taps - 1;
        Tensor dbefore(DType::f32, {halo, channels});
        for (float& value : dbefore.as<float>()) value = -7;  // is overwritten
        run_part(parts, 0, cut, {}, {});
        run_part(parts, cut, kRows - cut, rows_of(parts.x.view(), cut - halo, halo), dbefore.view());
        for (std::int64_t i = 0; i < halo * channels; ++i) {
          parts.dx.as<float>()[static_cast<std::size_t>((cut - halo) * channels + i)] +=
              dbefore.as<float>()[static_cast<std::size_t>(i)];
        }
        EXPECT_TRUE(same_bits(parts.y, whole.y));
        EXPECT_LE(relative_error(parts.dx.view(), to_doubles(whole.dx.view())), 1e-6);
        EXPECT_LE(relative_error(parts.dweight.view(), to_doubles(whole.dweight.view())), 1e-6);
        EXPECT_LE(relative_error(parts.dbias.view(), to_doubles(whole.dbias.view())), 1e-6);
      }
    }
  }
}

TEST(ShortConvBefore, IsOfTheFirstSequenceAlone) {
  Conv c(8, 4, 5);
  Workspace workspace(Device{});
  Tensor before(DType::f32, {3, 5});
  Tensor again(DType::f32, {8, 5});
  const std::vector<std::int64_t> offsets{0, 3, 8};
  ShortConvForward args{.x = c.x.view(),
                        .weight = c.weight.view(),
                        .y = c.y.view(),
                        .offsets = offsets,
                        .state = {},
                        .slots = {},
                        .bias = {}};
  short_conv_forward({}, args, workspace);
  for (float& value : before.as<float>()) value = 1;
  args.y = again.view();
  args.before = before.view();
  short_conv_forward({}, args, workspace);
  for (std::size_t i = 0; i < 8 * 5; ++i) {
    EXPECT_EQ(again.as<float>()[i] == c.y.as<float>()[i], i >= 3 * 5) << i;
  }
  Tensor narrow(DType::f32, {2, 5});
  args.before = narrow.view();
  EXPECT_THROW(short_conv_forward({}, args, workspace), Error);
}

}  // namespace
}  // namespace qdelta::testing
