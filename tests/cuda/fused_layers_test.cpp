// Ops in one launch on the GPU: they have the bits that they have one after the other.
#include "kernels/cuda/fused_layers.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cuda/device.h"
#include "kernels/cuda/short_product.h"
#include "kernels/fused_layers.h"
#include "kernels/recurrence_case.h"
#include "kernels/row_blocks.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

Device gpu(DType activations) { return {.gpu = &device_context(), .activations = activations}; }

void expect_bits(const DeviceTensor& got, const DeviceTensor& expected, const char* name) {
  const Tensor one = got.get();
  const Tensor other = expected.get();
  EXPECT_EQ(std::memcmp(one.data(), other.data(), one.bytes()), 0) << name;
}

bool has_fused_products() {
  return cuda::fits_short_product(
      device_context(),
      {.rows = 1, .cols = 64, .inner = 64, .a = {.ld = 64}, .b = {.ld = 64, .transposed = true}, .in = DType::bf16});
}

TEST(FusedLayersOnGpu, LinearSwiglu) {
  QDELTA_NEEDS_DEVICE();
  const Device device = gpu(DType::bf16);
  const RowBlocks rows_alone;
  Random random(31);
  int fused = 0;
  for (const std::int64_t width : {96, 1048}) {  // few outputs and many; the last tile is not full
    for (const std::int64_t rows : {1, 20, 84, 128, 200}) {
      const std::int64_t inner = 136;
      const DeviceTensor x(random_tensor(random, DType::bf16, {rows, inner}, -1, 1));
      const DeviceTensor w(random_tensor(random, DType::bf16, {2 * width, inner}, -1, 1));
      const DeviceTensor gate_up(DType::bf16, {rows, 2 * width}), y(DType::bf16, {rows, width}),
          expected(DType::bf16, {rows, width}, {.padding = 8});
      const LinearForward linear{.x = x.view(), .w = w.view(), .y = gate_up.view(), .add = {}};
      const auto half = [&](std::int64_t first) {
        ConstTensorView view = gate_up.view();
        view.data += first * static_cast<std::int64_t>(size_of(DType::bf16));
        view.shape = {rows, width};
        return view;
      };
      const auto swiglu = [&](const DeviceTensor& out) { return SwigluForward{half(0), half(width), out.view()}; };
      linear_forward(device, linear);
      swiglu_forward(device, swiglu(expected));
      const LinearSwigluForward args{.linear = linear, .swiglu = swiglu(y)};
      if (cuda::fits_linear_swiglu(device_context(), args)) ++fused;
      linear_swiglu_forward(device, args);
      SCOPED_TRACE(fmt::format("{} rows, width {}", rows, width));
      expect_bits(y, expected, "y");
    }
  }
  if (!has_fused_products()) GTEST_SKIP() << "this GPU takes the ops one by one";
  EXPECT_EQ(fused, 9);  // 200 rows of 2,096 outputs are for the library
}

struct ConvGatesCase {
  std::int64_t channels, taps;
  std::vector<std::int64_t> offsets;
  DType type;
  bool with_state;
};

void check_conv_gates(const ConvGatesCase& c) {
  Random random(77);
  const std::int64_t rows = c.offsets.back();
  const auto sequences = static_cast<std::int64_t>(c.offsets.size()) - 1;
  constexpr std::int64_t kHeads = 6;
  const Device device = gpu(c.type);
  Workspace workspace(device);
  const auto filled = [&](DType type, const Shape& shape) { return random_tensor(random, type, shape, -2, 2); };
  const DeviceTensor x(filled(c.type, {rows, c.channels})), weight(filled(DType::f32, {c.channels, c.taps}));
  const DeviceTensor projected(filled(c.type, {rows, 3 * kHeads}));
  const DeviceTensor A_log(filled(DType::f32, {kHeads})), dt_bias(filled(DType::f32, {kHeads}));
  const DeviceVector<std::int64_t> offsets(c.offsets);
  std::vector<std::int64_t> slots_of(static_cast<std::size_t>(sequences));
  for (std::size_t n = 0; n < slots_of.size(); ++n) slots_of[n] = static_cast<std::int64_t>(n) + 1;
  const DeviceVector<std::int64_t> slots(slots_of);
  const Tensor state = filled(DType::f32, {sequences + 1, c.taps - 1, c.channels});
  struct Results {
    DeviceTensor y, state, g, beta, lambda;
  };
  const auto results = [&]() -> Results {
    const Shape gates{rows, kHeads};
    return {DeviceTensor(c.type, {rows, c.channels}), c.with_state ? DeviceTensor(state) : DeviceTensor(),
            DeviceTensor(DType::f32, gates), DeviceTensor(DType::f32, gates), DeviceTensor(DType::f32, gates)};
  };
  const auto args_of = [&](const Results& to) {
    const auto gate = [&](std::int64_t first) {
      ConstTensorView view = projected.view();
      view.data += first * kHeads * static_cast<std::int64_t>(size_of(c.type));
      view.shape = {rows, kHeads};
      return view;
    };
    return ConvGatesForward{.conv = {.x = x.view(),
                                     .weight = weight.view(),
                                     .y = to.y.view(),
                                     .offsets = offsets.span(),
                                     .state = c.with_state ? to.state.view() : TensorView(),
                                     .slots = c.with_state ? slots.span() : std::span<std::int64_t>(),
                                     .bias = {}},
                            .gates = {.a = gate(0),
                                      .b = gate(1),
                                      .l = gate(2),
                                      .A_log = A_log.view(),
                                      .dt_bias = dt_bias.view(),
                                      .lambda_bias = {},
                                      .constant_lambda_bias = -1.5F,
                                      .g = to.g.view(),
                                      .beta = to.beta.view(),
                                      .lambda = to.lambda.view()}};
  };
  const Results together = results();
  const Results apart = results();
  conv_gates_forward(device, args_of(together), workspace);
  short_conv_forward(device, args_of(apart).conv, workspace);
  gates_forward(device, args_of(apart).gates);
  expect_bits(together.y, apart.y, "y");
  if (c.with_state) expect_bits(together.state, apart.state, "state");
  expect_bits(together.g, apart.g, "g");
  expect_bits(together.beta, apart.beta, "beta");
  expect_bits(together.lambda, apart.lambda, "lambda");
}

TEST(FusedLayersOnGpu, ConvGates) {
  QDELTA_NEEDS_DEVICE();
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::vector<std::int64_t>& offsets :
         {std::vector<std::int64_t>{0, 3}, {0, 9}, {0, 84}, {0, 20, 21, 70}, {0, 0, 40}}) {
      for (const std::int64_t taps : {2, 4, 7}) {
        for (const bool with_state : {false, true}) {
          SCOPED_TRACE(fmt::format("{} rows of {} sequences, {} taps, {}{}", offsets.back(), offsets.size() - 1, taps,
                                   name_of(type), with_state ? ", states" : ""));
          check_conv_gates({1032, taps, offsets, type, with_state});
          check_conv_gates({37, taps, offsets, type, with_state});
        }
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
