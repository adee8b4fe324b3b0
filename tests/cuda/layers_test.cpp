// What layers.h does on a GPU beyond its values, which tests/ops compares: ids out of range, sums and clipping in
// device memory, captured graphs, memory that runs out, and what is refused.
#include "kernels/cuda/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cuda/device.h"
#include "kernels/cuda/runtime.h"
#include "kernels/layers.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

constexpr DType kF32 = DType::f32;
constexpr DType kBF16 = DType::bf16;

Tensor random_tensor(Random& random, DType dtype, const Shape& shape, float scale = 1.0F) {
  Tensor tensor(kF32, shape);
  for (float& value : tensor.as<float>()) value = scale * random.normal();
  return dtype == kF32 ? std::move(tensor) : converted(tensor.view(), dtype);
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
  Tensor expected = converted(table.view(), kF32);
  for (std::size_t i = 0; i < 4; ++i) {
    expected.as<float>()[i] += dy.as<float>()[i];
    expected.as<float>()[4 + i] += dy.as<float>()[8 + i];
  }
  EXPECT_LE(relative_error(dtable.get().view(), to_doubles(expected.view())), 5e-6);
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
