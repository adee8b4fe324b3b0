// Every op of layers.h on the GPU against the same op on the CPU, on the same numbers (rounded first where activations
// are bfloat16). Outputs start as NaN, rows have room between them, odd sizes take the slow paths. The loss and the
// optimizer are in optimizer_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "cuda/layers_on_gpu.h"
#include "poisoned_workspace.h"

namespace qdelta::testing {
namespace {

struct Sizes {
  std::int64_t rows, in, out;
};

TEST(CudaLayers, Linear) {
  QDELTA_NEEDS_DEVICE();
  Random random(1);
  for (const Sizes& n :
       {Sizes{1, 16, 24}, {2, 520, 33}, {3, 64, 40}, {4, 33, 7}, {33, 40, 72}, {130, 96, 256}, {300, 129, 65}}) {
    for (const DType dtype : {kF32, kBF16}) {
      for (const Placement& place : kPlacements) {
        for (const DType out : {kF32, kBF16}) {
          if (dtype == kF32 && out == kBF16) continue;
          SCOPED_TRACE(trace(dtype, place, {n.rows, n.in, n.out, out == kBF16}));
          const Tensor x = random_tensor(random, dtype, {n.rows, n.in});
          const Tensor w = random_tensor(random, dtype, {n.out, n.in}, 1.0F / std::sqrt(static_cast<float>(n.in)));
          const Tensor y0 = random_tensor(random, out, {n.rows, n.out});
          const Tensor dy = random_tensor(random, dtype, {n.rows, n.out});
          const Tensor dx0 = random_tensor(random, out, {n.rows, n.in});
          const Tensor dw0 = random_tensor(random, kF32, {n.out, n.in});
          const DeviceTensor dev_x(x, place);
          const DeviceTensor dev_w(w, place);
          const DeviceTensor dev_dy(dy, place);
          for (const bool add : {false, true}) {
            Tensor y = float_of(y0);
            linear_forward(kCpu, {float_of(x).view(), float_of(w).view(), y.view(),
                                  add ? ConstTensorView(y.view()) : ConstTensorView()});
            const DeviceTensor dev_y = add ? DeviceTensor(y0, place) : DeviceTensor(out, y0.shape(), place);
            cuda::linear_forward(device_context(), {dev_x.view(), dev_w.view(), dev_y.view(),
                                                    add ? ConstTensorView(dev_y.view()) : ConstTensorView()});
            expect_close("linear y", dev_y.get(), y);
            if (add) {  // something else, which stays as it is
              const DeviceTensor dev_add(y0, place);
              const DeviceTensor dev_sum(out, y0.shape(), place);
              cuda::linear_forward(device_context(), {dev_x.view(), dev_w.view(), dev_sum.view(), dev_add.view()});
              expect_close("linear y", dev_sum.get(), y);
              expect_close("linear add", dev_add.get(), float_of(y0));
            }

            Tensor dx = float_of(dx0);
            Tensor dw = float_of(dw0);
            linear_backward(kCpu,
                            {float_of(x).view(), float_of(w).view(), float_of(dy).view(), dx.view(), dw.view(), add});
            const DeviceTensor dev_dx = add ? DeviceTensor(dx0, place) : DeviceTensor(out, dx0.shape(), place);
            const DeviceTensor dev_dw(dw0, place);
            cuda::linear_backward(device_context(),
                                  {dev_x.view(), dev_w.view(), dev_dy.view(), dev_dx.view(), dev_dw.view(), add});
            expect_close("linear dx", dev_dx.get(), dx);
            expect_close("linear dw", dev_dw.get(), dw);
          }
        }
      }
    }
  }
}

// The accuracy of true float32 products, which tf32 does not have.
TEST(CudaLayers, LinearInFloat32IsNotRounded) {
  QDELTA_NEEDS_DEVICE();
  Random random(2);
  const Tensor x = random_tensor(random, kF32, {256, 512});
  const Tensor w = random_tensor(random, kF32, {384, 512});
  const DeviceTensor y(kF32, {256, 384});
  cuda::linear_forward(device_context(), {DeviceTensor(x).view(), DeviceTensor(w).view(), y.view(), {}});
  std::vector<double> exact(256 * 384, 0.0);
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t j = 0; j < 384; ++j) {
      for (std::size_t k = 0; k < 512; ++k)
        exact[i * 384 + j] += double{x.as<float>()[i * 512 + k]} * double{w.as<float>()[j * 512 + k]};
    }
  }
  const double error = relative_error(y.get().view(), exact);
  worst()["linear f32 against double"] = error;
  EXPECT_LE(error, 1e-6);
}

TEST(CudaLayers, Embedding) {
  QDELTA_NEEDS_DEVICE();
  Random random(3);
  for (const Sizes& n : {Sizes{1, 8, 5}, {700, 33, 50}, {3000, 64, 40}, {257, 1032, 1000}, {64, 16, 70000}}) {
    for (const DType dtype : {kF32, kBF16}) {
      for (const Placement& place : kPlacements) {
        SCOPED_TRACE(trace(dtype, place, {n.rows, n.in, n.out}));
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < n.rows; ++i) {
          ids.push_back(static_cast<std::int32_t>(chance(random, 0.4) ? 3 : random.integer(0, n.out - 1)));
        }
        const DeviceVector<std::int32_t> dev_ids(ids);
        const Tensor table = random_tensor(random, dtype, {n.out, n.in});
        const DeviceTensor dev_table(table, place);
        for (const DType out : {kF32, kBF16}) {
          Tensor y(kF32, {n.rows, n.in});
          embedding_forward(kCpu, {ids, float_of(table).view(), y.view()});
          const DeviceTensor dev_y(out, y.shape(), place);
          cuda::embedding_forward(device_context(), {dev_ids.span(), dev_table.view(), dev_y.view()});
          expect_close("embedding y", dev_y.get(), y);
        }
        const Tensor dy = random_tensor(random, dtype, {n.rows, n.in});
        const Tensor dtable0 = random_tensor(random, kF32, {n.out, n.in});
        Tensor dtable = float_of(dtable0);
        embedding_backward(kCpu, {ids, float_of(dy).view(), dtable.view()}, poisoned_workspace());
        const DeviceTensor dev_dy(dy, place);
        Tensor first;
        for (int run = 0; run < 2; ++run) {
          const DeviceTensor dev_dtable(dtable0, place);
          const EmbeddingBackward args{dev_ids.span(), dev_dy.view(), dev_dtable.view()};
          const DeviceMemory space(cuda::embedding_backward_workspace(args));
          cuda::embedding_backward(device_context(), args, space.bytes());
          Tensor got = dev_dtable.get();
          if (run == 0) {
            expect_close("embedding dtable", got, dtable);
            first = std::move(got);
          } else {
            EXPECT_TRUE(same_bits(first, got));
          }
        }
      }
    }
  }
}

TEST(CudaLayers, EmbeddingOfIdsThatAreNotThere) {
  QDELTA_NEEDS_DEVICE();
  const DeviceVector<std::int32_t> ids({0, -1, 1, 2});
  Random random(4);
  const Tensor table = random_tensor(random, kF32, {2, 4});
  const DeviceTensor y(kF32, {4, 4});
  cuda::embedding_forward(device_context(), {ids.span(), DeviceTensor(table).view(), y.view()});
  const Tensor got = y.get();
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(got.as<float>()[i]), i / 4 == 1 || i / 4 == 3) << i;
  const DeviceTensor dtable(table);
  const Tensor dy = random_tensor(random, kF32, {4, 4});
  const DeviceTensor dev_dy(dy);
  const EmbeddingBackward args{ids.span(), dev_dy.view(), dtable.view()};
  cuda::embedding_backward(device_context(), args, DeviceMemory(cuda::embedding_backward_workspace(args)).bytes());
  Tensor expected = float_of(table);
  for (std::size_t i = 0; i < 4; ++i) {
    expected.as<float>()[i] += dy.as<float>()[i];
    expected.as<float>()[4 + i] += dy.as<float>()[8 + i];
  }
  expect_close("embedding dtable", dtable.get(), expected);
}

TEST(CudaLayers, CopyRowsConverts) {
  QDELTA_NEEDS_DEVICE();
  Random random(5);
  for (const Placement& place : kPlacements) {
    for (const DType from : {kF32, kBF16}) {
      for (const DType to : {kF32, kBF16}) {
        const Tensor values = random_tensor(random, from, {37, 72});
        const DeviceTensor source(values, place);
        const DeviceTensor target(to, values.shape(), place);
        cuda::copy_rows(device_context(), {source.view(), target.view()});
        EXPECT_TRUE(same_bits(target.get(), converted(float_of(values).view(), to)));
      }
    }
  }
  // The same row everywhere.
  const Tensor row = random_tensor(random, kF32, {1, 6});
  const DeviceTensor source(row);
  TensorView repeated = source.view();
  repeated.shape = {5, 6};
  repeated.stride[0] = 0;
  const DeviceTensor target(kF32, {5, 6});
  cuda::copy_rows(device_context(), {repeated, target.view()});
  const Tensor got = target.get();
  for (std::size_t i = 0; i < 30; ++i) EXPECT_EQ(got.as<float>()[i], row.as<float>()[i % 6]);
}

TEST(CudaLayers, RmsNorm) {
  QDELTA_NEEDS_DEVICE();
  Random random(6);
  for (const std::int64_t D : {1, 7, 64, 256, 264, 1000, 1024, 1032, 2048, 8192}) {
    for (const std::int64_t N : {1, 37, 700}) {
      if (N == 700 && D > 256) continue;
      for (const Placement& place : kPlacements) {
        for (int types = 0; types < 8; ++types) {
          const DType x_type = (types & 1) != 0 ? kBF16 : kF32;
          const DType y_type = (types & 2) != 0 ? kBF16 : kF32;
          const DType dx_type = (types & 4) != 0 ? kBF16 : kF32;
          SCOPED_TRACE(trace(x_type, place, {N, D, types}));
          const Tensor x = random_tensor(random, x_type, {N, D}, 2.0F);
          const Tensor weight = random_tensor(random, kF32, {D});
          Tensor y(kF32, {N, D});
          Tensor inverse(kF32, {N});
          rms_norm_forward(kCpu, {float_of(x).view(), weight.view(), y.view(), inverse.view(), 1e-5F});
          const DeviceTensor dev_x(x, place);
          const DeviceTensor dev_weight(weight);
          const DeviceTensor dev_y(y_type, {N, D}, place);
          const DeviceTensor dev_inverse(kF32, {N});
          cuda::rms_norm_forward(device_context(),
                                 {dev_x.view(), dev_weight.view(), dev_y.view(), dev_inverse.view(), 1e-5F});
          expect_close("rms_norm y", dev_y.get(), y);
          expect_close("rms_norm inverse_rms", dev_inverse.get(), inverse);

          const Tensor dy = random_tensor(random, y_type, {N, D});
          const Tensor dx0 = random_tensor(random, dx_type, {N, D});
          const Tensor dweight0 = random_tensor(random, kF32, {D});
          Tensor dx = float_of(dx0);
          Tensor dweight = float_of(dweight0);
          rms_norm_backward(
              kCpu,
              {float_of(x).view(), weight.view(), inverse.view(), float_of(dy).view(), dx.view(), dweight.view(), {}},
              poisoned_workspace());
          Tensor first;
          for (int run = 0; run < 2; ++run) {
            const DeviceTensor dev_dy(dy, place);
            const DeviceTensor dev_dx(dx0, place);
            const DeviceTensor dev_dweight(dweight0);
            const DeviceTensor dev_rounded(kBF16, {N, D}, place);
            const RmsNormBackward args{dev_x.view(),
                                       dev_weight.view(),
                                       dev_inverse.view(),
                                       dev_dy.view(),
                                       dev_dx.view(),
                                       dev_dweight.view(),
                                       run == 0 ? dev_rounded.view() : TensorView()};
            const DeviceMemory space(cuda::rms_norm_backward_workspace(args));
            cuda::rms_norm_backward(device_context(), args, space.bytes());
            expect_close("rms_norm dx", dev_dx.get(), dx);
            if (run == 0) expect_close("rms_norm rounded dx", dev_rounded.get(), dx);
            Tensor got = dev_dweight.get();
            expect_sum_close("rms_norm dweight", got, dweight, N);
            if (run == 0) {
              first = std::move(got);
            } else {
              EXPECT_TRUE(same_bits(first, got));
            }
          }
        }
      }
    }
  }
}

TEST(CudaLayers, GatedNorm) {
  QDELTA_NEEDS_DEVICE();
  Random random(7);
  for (const std::int64_t V : {16, 18, 128, 256, 300, 1100}) {
    for (const std::int64_t heads : {1, 3}) {
      for (const DType dtype : {kF32, kBF16}) {
        for (const Placement& place : kPlacements) {
          for (const bool gated : {true, false}) {
            const std::int64_t N = 45;
            SCOPED_TRACE(trace(dtype, place, {N, heads, V, gated}));
            const Shape shape{N, heads * V};
            const Tensor x = random_tensor(random, dtype, shape);
            const Tensor gate = random_tensor(random, dtype, shape, 2.0F);
            const Tensor dy = random_tensor(random, dtype, shape);
            const Tensor weight = random_tensor(random, kF32, {V});
            const Tensor dweight0 = random_tensor(random, kF32, {V});
            const Tensor fx = float_of(x);
            const Tensor fgate = float_of(gate);
            const Tensor fdy = float_of(dy);
            Tensor y(kF32, shape);
            Tensor dx(kF32, shape);
            Tensor dgate(kF32, shape);
            Tensor dweight = float_of(dweight0);
            const ConstTensorView no_gate;
            gated_norm_forward(kCpu, {fx.view(), gated ? fgate.view() : no_gate, weight.view(), y.view(), 1e-6F});
            gated_norm_backward(kCpu,
                                {fx.view(),
                                 gated ? fgate.view() : no_gate,
                                 weight.view(),
                                 fdy.view(),
                                 dx.view(),
                                 gated ? dgate.view() : TensorView(),
                                 dweight.view(),
                                 1e-6F,
                                 {}},
                                poisoned_workspace());
            const DeviceTensor dev_x(x, place);
            const DeviceTensor dev_gate(gate, place);
            const DeviceTensor dev_dy(dy, place);
            const DeviceTensor dev_weight(weight);
            const DeviceTensor dev_y(dtype, shape, place);
            const DeviceTensor dev_dx(dtype, shape, place);
            const DeviceTensor dev_dgate(dtype, shape, place);
            const DeviceTensor dev_dweight(dweight0);
            cuda::gated_norm_forward(device_context(), {dev_x.view(), gated ? dev_gate.view() : TensorView(),
                                                        dev_weight.view(), dev_y.view(), 1e-6F});
            const GatedNormBackward args{dev_x.view(),
                                         gated ? dev_gate.view() : TensorView(),
                                         dev_weight.view(),
                                         dev_dy.view(),
                                         dev_dx.view(),
                                         gated ? dev_dgate.view() : TensorView(),
                                         dev_dweight.view(),
                                         1e-6F,
                                         heads > 1 ? dev_dy.view() : TensorView()};
            const DeviceMemory space(cuda::gated_norm_backward_workspace(args));
            cuda::gated_norm_backward(device_context(), args, space.bytes());
            expect_close("gated_norm y", dev_y.get(), y);
            if (heads > 1) expect_close("gated_norm y again", dev_dy.get(), y);
            expect_close("gated_norm dx", dev_dx.get(), dx);
            if (gated) expect_close("gated_norm dgate", dev_dgate.get(), dgate);
            expect_sum_close("gated_norm dweight", dev_dweight.get(), dweight, N);
          }
        }
      }
    }
  }
}

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

TEST(CudaLayers, ShortConv) {
  QDELTA_NEEDS_DEVICE();
  Random random(8);
  const std::vector<std::vector<std::int64_t>> cases{
      {1}, {5}, {100}, {1, 1, 1, 1, 1}, {3, 0, 1, 40, 2, 33, 1, 1, 70, 0}, {32, 32, 64}, {2, 2, 0, 3}};
  for (const std::vector<std::int64_t>& lengths : cases) {
    const std::vector<std::int64_t> offsets = offsets_of(lengths);
    const DeviceVector<std::int64_t> dev_offsets(offsets);
    const std::int64_t N = offsets.back();
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    for (const std::int64_t W : {1, 2, 3, 4, 6}) {
      for (const std::int64_t channels : {8, 37, 1040}) {
        if (channels == 1040 && W == 3) continue;
        for (const DType dtype : {kF32, kBF16}) {
          for (const Placement& place : kPlacements) {
            SCOPED_TRACE(trace(dtype, place, {N, sequences, W, channels}));
            const Shape shape{N, channels};
            const Tensor x = random_tensor(random, dtype, shape);
            const Tensor weight = random_tensor(random, kF32, {channels, W});
            const Tensor fx = float_of(x);
            const DeviceTensor dev_x(x, place);
            const DeviceTensor dev_weight(weight);
            const bool with_bias = chance(random, 0.5);
            const Tensor bias = random_tensor(random, kF32, {channels});
            const DeviceTensor dev_bias(bias);
            const ConstTensorView bias_view = with_bias ? bias.view() : ConstTensorView();
            const ConstTensorView dev_bias_view = with_bias ? ConstTensorView(dev_bias.view()) : ConstTensorView();
            for (const bool with_state : {false, true}) {
              if (with_state && W == 1) continue;
              // The states lie in a larger pool, in another order.
              std::vector<std::int64_t> slots(static_cast<std::size_t>(sequences));
              for (std::int64_t n = 0; n < sequences; ++n) slots[static_cast<std::size_t>(n)] = sequences - n;
              const Tensor state0 = random_tensor(random, kF32, {sequences + 2, W - 1, channels});
              Tensor state = float_of(state0);
              Tensor y(kF32, shape);
              short_conv_forward(kCpu,
                                 {fx.view(), weight.view(), y.view(), offsets, with_state ? state.view() : TensorView(),
                                  slots, bias_view},
                                 poisoned_workspace());
              const DeviceTensor dev_y(dtype, shape, place);
              const DeviceTensor dev_state(state0);
              const DeviceVector<std::int64_t> dev_slots(slots);
              cuda::short_conv_forward(device_context(),
                                       {dev_x.view(), dev_weight.view(), dev_y.view(), dev_offsets.span(),
                                        with_state ? dev_state.view() : TensorView(), dev_slots.span(), dev_bias_view});
              expect_close("short_conv y", dev_y.get(), y);
              if (with_state) {
                EXPECT_TRUE(same_bits(dev_state.get(), state));
              }
            }
            const Tensor dy = random_tensor(random, dtype, shape);
            const Tensor dweight0 = random_tensor(random, kF32, {channels, W});
            Tensor dx(kF32, shape);
            Tensor dweight = float_of(dweight0);
            const Tensor dbias0 = random_tensor(random, kF32, {channels});
            Tensor dbias = float_of(dbias0);
            const DeviceTensor dev_dbias(dbias0);
            short_conv_backward(kCpu,
                                {fx.view(), weight.view(), float_of(dy).view(), dx.view(), dweight.view(), offsets,
                                 bias_view, dbias.view()},
                                poisoned_workspace());
            const DeviceTensor dev_dy(dy, place);
            const DeviceTensor dev_dx(dtype, shape, place);
            const DeviceTensor dev_dweight(dweight0);
            const ShortConvBackward args{dev_x.view(),       dev_weight.view(),  dev_dy.view(), dev_dx.view(),
                                         dev_dweight.view(), dev_offsets.span(), dev_bias_view, dev_dbias.view()};
            const DeviceMemory space(cuda::short_conv_backward_workspace(args));
            cuda::short_conv_backward(device_context(), args, space.bytes());
            expect_close("short_conv dx", dev_dx.get(), dx);
            expect_sum_close("short_conv dweight", dev_dweight.get(), dweight, N);
            expect_sum_close("short_conv dbias", dev_dbias.get(), dbias, N);
          }
        }
      }
    }
  }
}

TEST(CudaLayers, Gates) {
  QDELTA_NEEDS_DEVICE();
  Random random(9);
  struct Which {
    bool a, b, l, bias, step_is_beta;
  };
  for (const std::int64_t HV : {1, 6, 33, 300}) {
    for (const std::int64_t N : {1, 300}) {
      for (const Which& which : {Which{true, true, true, true, false},
                                 {true, true, false, false, false},
                                 {true, false, false, false, true},
                                 {false, true, true, false, false}}) {
        for (const DType dtype : {kF32, kBF16}) {
          const Placement place{1, 5};
          SCOPED_TRACE(trace(dtype, place, {N, HV, which.a, which.b, which.l, which.bias}));
          const Shape shape{N, HV};
          const Tensor a = random_tensor(random, dtype, shape, 3.0F);
          const Tensor b = random_tensor(random, dtype, shape, 3.0F);
          const Tensor l = random_tensor(random, dtype, shape, 3.0F);
          const Tensor A_log = random_tensor(random, kF32, {HV});
          const Tensor dt_bias = random_tensor(random, kF32, {HV});
          const Tensor bias = random_tensor(random, kF32, {1});
          const Tensor fa = float_of(a);
          const Tensor fb = float_of(b);
          const Tensor fl = float_of(l);
          Tensor g(kF32, shape);
          Tensor beta(kF32, shape);
          Tensor lambda(kF32, shape);
          GatesForward in;
          if (which.a) in.a = fa.view();
          if (which.b) in.b = fb.view();
          if (which.l) in.l = fl.view();
          in.A_log = A_log.view();
          in.dt_bias = dt_bias.view();
          if (which.bias) in.lambda_bias = bias.view();
          in.constant_lambda_bias = -0.8F;
          in.g = g.view();
          in.beta = beta.view();
          in.lambda = lambda.view();
          in.step_is_beta = which.step_is_beta;
          in.factor = 2.0F;
          gates_forward(kCpu, in);

          const DeviceTensor dev_a(a, place);
          const DeviceTensor dev_b(b, place);
          const DeviceTensor dev_l(l, place);
          const DeviceTensor dev_A_log(A_log);
          const DeviceTensor dev_dt_bias(dt_bias);
          const DeviceTensor dev_bias(bias);
          const DeviceTensor dev_g(kF32, shape, place);
          const DeviceTensor dev_beta(kF32, shape, place);
          const DeviceTensor dev_lambda(kF32, shape, place);
          GatesForward dev = in;
          if (which.a) dev.a = dev_a.view();
          if (which.b) dev.b = dev_b.view();
          if (which.l) dev.l = dev_l.view();
          dev.A_log = dev_A_log.view();
          dev.dt_bias = dev_dt_bias.view();
          if (which.bias) dev.lambda_bias = dev_bias.view();
          dev.g = dev_g.view();
          dev.beta = dev_beta.view();
          dev.lambda = dev_lambda.view();
          cuda::gates_forward(device_context(), dev);
          if (which.a) expect_close("gates g", dev_g.get(), g);
          if (which.b || which.step_is_beta) expect_close("gates beta", dev_beta.get(), beta);
          if (which.l) expect_close("gates lambda", dev_lambda.get(), lambda);

          const Tensor dg = random_tensor(random, kF32, shape);
          const Tensor dbeta = random_tensor(random, kF32, shape);
          const Tensor dlambda = random_tensor(random, kF32, shape);
          const Tensor sums0 = random_tensor(random, kF32, {HV});
          const Tensor bias0 = random_tensor(random, kF32, {1});
          Tensor da(kF32, shape);
          Tensor db(kF32, shape);
          Tensor dl(kF32, shape);
          Tensor dA_log = float_of(sums0);
          Tensor ddt_bias = float_of(sums0);
          Tensor dbias = float_of(bias0);
          gates_backward(kCpu,
                         {in, dg.view(), dbeta.view(), dlambda.view(), da.view(), db.view(), dl.view(), dA_log.view(),
                          ddt_bias.view(), which.bias ? dbias.view() : TensorView()},
                         poisoned_workspace());
          const DeviceTensor dev_dg(dg, place);
          const DeviceTensor dev_dbeta(dbeta, place);
          const DeviceTensor dev_dlambda(dlambda, place);
          const DeviceTensor dev_da(dtype, shape, place);
          const DeviceTensor dev_db(dtype, shape, place);
          const DeviceTensor dev_dl(dtype, shape, place);
          const DeviceTensor dev_dA_log(sums0);
          const DeviceTensor dev_ddt_bias(sums0);
          const DeviceTensor dev_dbias(bias0);
          const GatesBackward args{dev,
                                   dev_dg.view(),
                                   dev_dbeta.view(),
                                   dev_dlambda.view(),
                                   dev_da.view(),
                                   dev_db.view(),
                                   dev_dl.view(),
                                   dev_dA_log.view(),
                                   dev_ddt_bias.view(),
                                   which.bias ? dev_dbias.view() : TensorView()};
          const DeviceMemory space(cuda::gates_backward_workspace(args));
          cuda::gates_backward(device_context(), args, space.bytes());
          if (which.a) {
            expect_close("gates da", dev_da.get(), da);
            expect_sum_close("gates dA_log", dev_dA_log.get(), dA_log, N);
            expect_sum_close("gates ddt_bias", dev_ddt_bias.get(), ddt_bias, N);
          }
          // With a factor of 2 the slope at the ends is a difference of nearly equal numbers.
          if (which.b) expect_close("gates db", dev_db.get(), db, dtype == kF32 ? 2e-5 : 0);
          if (which.l) expect_close("gates dl", dev_dl.get(), dl, dtype == kF32 ? 2e-5 : 0);
          if (which.bias) expect_sum_close("gates dlambda_bias", dev_dbias.get(), dbias, N * HV);
        }
      }
    }
  }
}

TEST(CudaLayers, Swiglu) {
  QDELTA_NEEDS_DEVICE();
  Random random(10);
  for (const std::int64_t F : {1, 8, 37, 264, 1000}) {
    for (const DType dtype : {kF32, kBF16}) {
      for (const Placement& place : kPlacements) {
        const Shape shape{51, F};
        SCOPED_TRACE(trace(dtype, place, {F}));
        const Tensor gate = random_tensor(random, dtype, shape, 4.0F);
        const Tensor up = random_tensor(random, dtype, shape);
        const Tensor dy = random_tensor(random, dtype, shape);
        Tensor y(kF32, shape);
        Tensor dgate(kF32, shape);
        Tensor dup(kF32, shape);
        swiglu_forward(kCpu, {float_of(gate).view(), float_of(up).view(), y.view()});
        swiglu_backward(
            kCpu, {float_of(gate).view(), float_of(up).view(), float_of(dy).view(), dgate.view(), dup.view(), {}});
        const DeviceTensor dev_gate(gate, place);
        const DeviceTensor dev_up(up, place);
        const DeviceTensor dev_dy(dy, place);
        const DeviceTensor dev_y(dtype, shape, place);
        const DeviceTensor dev_dgate(dtype, shape, place);
        const DeviceTensor dev_dup(dtype, shape, place);
        cuda::swiglu_forward(device_context(), {dev_gate.view(), dev_up.view(), dev_y.view()});
        cuda::swiglu_backward(device_context(), {dev_gate.view(), dev_up.view(), dev_dy.view(), dev_dgate.view(),
                                                 dev_dup.view(), F > 8 ? dev_dy.view() : TensorView()});
        expect_close("swiglu y", dev_y.get(), y);
        if (F > 8) expect_close("swiglu y again", dev_dy.get(), y);
        expect_close("swiglu dgate", dev_dgate.get(), dgate);
        expect_close("swiglu dup", dev_dup.get(), dup);
      }
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
