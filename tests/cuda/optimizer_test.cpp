// The rest of layers.h on the GPU, as in layers_test.cpp: the loss, sums, clipping and AdamW; graphs of ops, and what
// is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "cuda/layers_on_gpu.h"
#include "kernels/cuda/runtime.h"

namespace qdelta::testing {
namespace {

TEST(CudaLayers, CrossEntropy) {
  QDELTA_NEEDS_DEVICE();
  Random random(11);
  for (const std::int64_t vocabulary : {1, 5, 100, 1003, 4096, 40003}) {
    for (const DType dtype : {kF32, kBF16}) {
      for (const Placement& place : kPlacements) {
        for (const bool gradient : {false, true}) {
          const std::int64_t N = 9;
          SCOPED_TRACE(trace(dtype, place, {vocabulary, gradient}));
          const Tensor logits = random_tensor(random, dtype, {N, vocabulary}, 5.0F);
          std::vector<std::int32_t> targets;
          for (std::int64_t n = 0; n < N; ++n) {
            targets.push_back(n % 4 == 2 ? -1 : static_cast<std::int32_t>(random.integer(0, vocabulary - 1)));
          }
          Tensor expected = float_of(logits);
          Tensor loss(kF32, {N});
          std::vector<std::int32_t> best(static_cast<std::size_t>(N));
          cross_entropy(kCpu, {expected.view(), targets, loss.as<float>(), best, gradient, 0.25F});
          for (const bool with_best : {true, false}) {
            const DeviceTensor dev_logits(logits, place);
            const DeviceVector<std::int32_t> dev_targets(targets);
            const DeviceTensor dev_loss(kF32, {N});
            const DeviceVector<std::int32_t> dev_best(std::vector<std::int32_t>(best.size(), -7));
            cuda::cross_entropy(device_context(),
                                {dev_logits.view(), dev_targets.span(),
                                 std::span(reinterpret_cast<float*>(dev_loss.view().data), best.size()),
                                 with_best ? dev_best.span() : std::span<std::int32_t>(), gradient, 0.25F});
            if (vocabulary > 1) expect_close("cross_entropy loss", dev_loss.get(), loss);
            // A single class has the gradient zero, but for rounding.
            if (vocabulary > 1) expect_close("cross_entropy dlogits", dev_logits.get(), expected);
            if (with_best) {
              EXPECT_EQ(dev_best.values(), best);
            }
          }
        }
      }
    }
  }
}

// Logits of which some threads have only such as vanish beside the largest, and a row that does not count.
TEST(CudaLayers, CrossEntropySurvivesHugeLogits) {
  QDELTA_NEEDS_DEVICE();
  for (const std::int64_t vocabulary : {3, 100, 5003}) {
    for (const float low : {-100.0F, -1e4F, -INFINITY}) {
      for (const DType dtype : {kF32, kBF16}) {
        SCOPED_TRACE(fmt::format("{} logits, low {}, {}", vocabulary, low, name_of(dtype)));
        Tensor values(kF32, {3, vocabulary});
        std::fill(values.as<float>().begin(), values.as<float>().end(), low);
        for (const std::size_t row : {0, 1}) values.as<float>()[row * static_cast<std::size_t>(vocabulary)] = 1e4F;
        values.as<float>()[static_cast<std::size_t>(2 * vocabulary + 1)] = NAN;
        const Tensor logits = converted(values.view(), dtype);
        const std::vector<std::int32_t> targets{0, 1, -1};
        Tensor expected = float_of(logits);
        Tensor loss(kF32, {3});
        cross_entropy(kCpu, {expected.view(), targets, loss.as<float>(), {}, true, 0.5F});
        const DeviceTensor dev_logits(logits);
        const DeviceVector<std::int32_t> dev_targets(targets);
        const DeviceTensor dev_loss(kF32, {3});
        cuda::cross_entropy(device_context(), {dev_logits.view(),
                                               dev_targets.span(),
                                               std::span(reinterpret_cast<float*>(dev_loss.view().data), 3),
                                               {},
                                               true,
                                               0.5F});
        EXPECT_NEAR(dev_loss.get().as<float>()[0], 0.0F, 1e-6F);
        EXPECT_EQ(dev_loss.get().as<float>()[1], loss.as<float>()[1]);
        EXPECT_EQ(dev_loss.get().as<float>()[2], 0.0F);
        const std::vector<double> gradient = to_doubles(dev_logits.get().view());
        const std::vector<double> of_cpu = to_doubles(converted(expected.view(), dtype).view());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          ASSERT_NEAR(gradient[i], of_cpu[i], std::numeric_limits<float>::min())
              << "at " << i;  // the CPU's least is not 0
        }
      }
    }
  }
}

TEST(CudaLayers, SumsAndClipping) {
  QDELTA_NEEDS_DEVICE();
  Random random(12);
  for (const std::int64_t count : {1, 1000, 4099, 3000001}) {
    for (const std::int64_t offset : {0, 1}) {
      const Tensor values = random_tensor(random, kF32, {count});
      const DeviceTensor dev(values, {offset, 0});
      const std::span<const float> span(reinterpret_cast<const float*>(dev.view().data),
                                        static_cast<std::size_t>(count));
      const DeviceMemory space(cuda::sum_workspace());
      const DeviceVector<double> sums({-1.0, -1.0});
      cuda::sum_of_values(device_context(), span, sums.span().data(), space.bytes());
      cuda::sum_of_values(device_context(), span, sums.span().data() + 1, space.bytes());
      const std::vector<double> got = sums.values();
      double squares = 0;
      for (const float value : values.as<float>()) squares += double{value} * double{value};
      double plain = 0;
      for (const float value : values.as<float>()) plain += value;
      EXPECT_NEAR(got[0], plain, 1e-9 * static_cast<double>(count));
      EXPECT_EQ(got[0], got[1]);

      const DeviceVector<cuda::Clipping> clipping(std::vector<cuda::Clipping>(1));
      cuda::clip_gradients(device_context(), span, 0.5F, clipping.span().data(), space.bytes());
      cuda::Clipping found = clipping.values()[0];
      EXPECT_NEAR(found.sum_of_squares / squares, 1.0, 1e-12);
      EXPECT_EQ(found.finite, 1);
      EXPECT_NEAR(found.scale, std::min(1.0, 0.5 / (std::sqrt(squares) + 1e-6)), 1e-6);
      cuda::clip_gradients(device_context(), span, 0.0F, clipping.span().data(), space.bytes());
      EXPECT_EQ(clipping.values()[0].scale, 1.0F);
    }
  }
  Tensor bad = random_tensor(random, kF32, {100});
  for (const float value : {NAN, INFINITY}) {
    bad.as<float>()[70] = value;
    const DeviceTensor dev(bad);
    const DeviceVector<cuda::Clipping> clipping(std::vector<cuda::Clipping>(1));
    cuda::clip_gradients(device_context(), {reinterpret_cast<const float*>(dev.view().data), 100}, 1.0F,
                         clipping.span().data(), DeviceMemory(cuda::sum_workspace()).bytes());
    EXPECT_EQ(clipping.values()[0].finite, 0);
  }
}

TEST(CudaLayers, AdamW) {
  QDELTA_NEEDS_DEVICE();
  Random random(13);
  for (const std::int64_t count : {1, 5, 4096, 10007}) {
    for (const std::int64_t offset : {0, 1}) {
      for (const bool finite : {true, false}) {
        SCOPED_TRACE(count);
        Tensor p = random_tensor(random, kF32, {count});
        Tensor m = random_tensor(random, kF32, {count}, 0.1F);
        Tensor v = random_tensor(random, kF32, {count}, 0.1F);
        for (float& value : v.as<float>()) value *= value;
        const Tensor g = random_tensor(random, kF32, {count});
        const Placement place{offset, 0};
        const DeviceTensor dev_p(p, place);
        const DeviceTensor dev_m(m, place);
        const DeviceTensor dev_v(v, place);
        const DeviceTensor dev_g(g, place);
        const DeviceTensor rounded(kBF16, {count}, place);
        const Tensor before = float_of(p);
        AdamW args;
        args.parameters = p.as<float>();
        args.m = m.as<float>();
        args.v = v.as<float>();
        args.gradients = g.as<float>();
        args.step = 3;
        args.gradient_scale = 0.3F;
        if (finite) adamw(kCpu, args);
        const auto span_of = [&](const DeviceTensor& tensor) {
          return std::span(reinterpret_cast<float*>(tensor.view().data), static_cast<std::size_t>(count));
        };
        const DeviceVector<cuda::Clipping> clipping({{1.0, 0.6F, finite ? 1 : 0}});
        cuda::AdamWDevice dev{
            args, clipping.span().data(),
            std::span(reinterpret_cast<BFloat16*>(rounded.view().data), static_cast<std::size_t>(count))};
        dev.args.parameters = span_of(dev_p);
        dev.args.m = span_of(dev_m);
        dev.args.v = span_of(dev_v);
        dev.args.gradients = span_of(dev_g);
        dev.args.gradient_scale = 0.5F;
        cuda::adamw(device_context(), dev);
        if (!finite) {
          EXPECT_TRUE(same_bits(dev_p.get(), before));
          continue;
        }
        expect_close("adamw parameters", dev_p.get(), p);
        expect_close("adamw m", dev_m.get(), m);
        expect_close("adamw v", dev_v.get(), v);
        EXPECT_TRUE(same_bits(rounded.get(), converted(dev_p.get().view(), kBF16)));
      }
    }
  }
}

// A captured graph gives the same when it is replayed.
TEST(CudaLayers, CapturedGraphReplays) {
  QDELTA_NEEDS_DEVICE();
  Random random(14);
  const std::int64_t N = 96;
  const std::int64_t D = 64;
  const DeviceTensor x(random_tensor(random, kBF16, {N, D}));
  const DeviceTensor w(random_tensor(random, kBF16, {D, D}));
  const DeviceTensor y(kBF16, {N, D});
  const DeviceTensor dw(Tensor(kF32, {D, D}));
  const DeviceTensor dtable(Tensor(kF32, {50, D}));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(N));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.integer(0, 49));
  const DeviceVector<std::int32_t> dev_ids(ids);
  const EmbeddingBackward embedding{dev_ids.span(), y.view(), dtable.view()};
  const DeviceMemory space(cuda::embedding_backward_workspace(embedding));
  const auto work = [&] {
    cuda::linear_forward(device_context(), {x.view(), w.view(), y.view(), {}});
    cuda::linear_backward(device_context(), {x.view(), w.view(), y.view(), {}, dw.view(), false});
    cuda::embedding_backward(device_context(), embedding, space.bytes());
  };
  work();
  const Tensor once = dtable.get();
  const Tensor dw_once = dw.get();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  const cudaStream_t stream = device_context().stream();
  QDELTA_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  QDELTA_CUDA(cudaStreamEndCapture(stream, &graph));
  QDELTA_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  QDELTA_CUDA(cudaMemsetAsync(dtable.view().data, 0, once.bytes(), stream));
  QDELTA_CUDA(cudaMemsetAsync(dw.view().data, 0, dw_once.bytes(), stream));
  QDELTA_CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_TRUE(same_bits(dtable.get(), once));
  EXPECT_TRUE(same_bits(dw.get(), dw_once));
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(CudaLayers, FullMemorySaysHowMuchAndWhatToLower) {
  QDELTA_NEEDS_DEVICE();
  expect_error(Status::out_of_memory, {"no room for 1125899", "GB are free", "lower the batch"},
               [] { return cuda::allocate(std::size_t{1} << 50); });
  expect_error(Status::out_of_memory, {"cudaGraphInstantiate", "lower the batch"}, [] {
    cuda::check(cudaErrorMemoryAllocation, "cudaGraphInstantiate");
    return 0;
  });
  expect_error(Status::out_of_memory, {"cublasLtMatmul", "lower the batch"}, [] {
    cuda::check(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtMatmul");
    return 0;
  });
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // the next call is not blamed
}

TEST(CudaLayers, WrongArgumentsAreRefused) {
  QDELTA_NEEDS_DEVICE();
  const DeviceTensor a(kF32, {4, 8});
  const DeviceTensor b(kBF16, {4, 8});
  const DeviceTensor weight(kF32, {8});
  const auto& context = device_context();
  expect_error(Status::invalid_argument, {"do not fit"}, [&] {
    cuda::linear_forward(context, {a.view(), a.view(), a.view(), {}});
    return 0;
  });
  expect_error(Status::invalid_argument, {"F32", "BF16"}, [&] {
    cuda::swiglu_forward(context, {a.view(), b.view(), a.view()});
    return 0;
  });
  expect_error(Status::invalid_argument, {"workspace", "needed"}, [&] {
    cuda::gated_norm_backward(context, {a.view(), {}, weight.view(), a.view(), a.view(), {}, weight.view(), 1e-6F, {}},
                              {});
    return 0;
  });
  expect_error(Status::invalid_argument, {"weight", "missing"}, [&] {
    cuda::rms_norm_forward(context, {a.view(), {}, a.view(), {}, 1e-6F});
    return 0;
  });
}

}  // namespace
}  // namespace qdelta::testing
