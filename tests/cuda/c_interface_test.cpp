// The C interface on tensors of the GPU: DLPack tensors, memory and stream are the caller's. Results are those of the
// CPU.
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "capi/capi_testing.h"
#include "cuda/device.h"

namespace qdelta::testing {
namespace {

// A stream that no other waits for, as a caller may have one.
class Stream {
 public:
  Stream() { QDELTA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void synchronize() const { QDELTA_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A DLTensor in the memory of the GPU.
class GpuTensor {
 public:
  explicit GpuTensor(DeviceTensor memory) : memory_(std::move(memory)) {
    const TensorView view = memory_.view();
    for (int axis = 0; axis < view.shape.rank; ++axis) {
      extents_.push_back(view.shape[axis]);
      strides_.push_back(view.step(axis));
    }
    tensor_.data = view.data;
    tensor_.device = {kDLCUDA, 0};
    tensor_.ndim = view.shape.rank;
    tensor_.dtype = dl_type(view.dtype);
    tensor_.shape = extents_.data();
    tensor_.strides = strides_.data();
  }
  GpuTensor(const GpuTensor&) = delete;
  GpuTensor& operator=(const GpuTensor&) = delete;

  [[nodiscard]] DLTensor* get() { return &tensor_; }
  [[nodiscard]] Tensor values() const { return memory_.get(); }

 private:
  DeviceTensor memory_;
  std::vector<std::int64_t> extents_, strides_;
  DLTensor tensor_{};
};

struct GpuCall {
  std::map<std::string, GpuTensor> tensors;
  std::optional<DlTensor> offsets;  // always in the memory of the CPU
  DeviceMemory workspace, saved;
  Stream stream;
  qdelta_options options;
  qdelta_inputs in{};
  qdelta_outputs out{};
  qdelta_output_gradients d_out{};
  qdelta_input_gradients d_in{};

  explicit GpuCall(const Problem& from, const Placement& place = {}) : options(from.options) {
    options.device = {kDLCUDA, 0};
    options.stream = stream.get();
    const auto add = [&](const std::string& name, DType dtype, const Shape& shape) {
      tensors.try_emplace(name, DeviceTensor(dtype, shape, place));
    };
    for (const auto& [name, values] : from.tensors) tensors.try_emplace(name, DeviceTensor(values, place));
    add("o", from.dtype, from.tensors.at("v").shape());
    add("ht", DType::f32, from.states());
    for (const char* name : {"dq", "dk", "dv"}) add(name, from.dtype, from.shape_like(name));
    for (const char* name : {"dg", "dbeta", "dlambda", "dh0"}) add(name, DType::f32, from.shape_like(name));
    if (!from.offsets.empty()) {
      Tensor values(DType::i64, {std::ssize(from.offsets)});
      std::copy(from.offsets.begin(), from.offsets.end(), values.as<std::int64_t>().begin());
      in.cu_seqlens = offsets.emplace(values).get();
    }
    in = {get("q"), get("k"), get("v"), get("g"), get("beta"), get("lambda"), get("h0"), in.cu_seqlens};
    out = {get("o"), get("ht"), nullptr};
    d_out = {get("d_o"), get("d_ht"), nullptr};
    d_in = {get("dq"), get("dk"), get("dv"), get("dg"), get("dbeta"), get("dlambda"), get("dh0")};
  }

  [[nodiscard]] DLTensor* get(const std::string& name) { return tensors.at(name).get(); }

  // What a forward keeps for its backward: memory that both are given.
  void keep_states(const Problem& from) {
    const std::int64_t chunks = qdelta_chunk_count(&options, &in);
    ASSERT_GT(chunks, 0) << qdelta_last_error();
    const Shape states = from.states();
    tensors.try_emplace("chunk_states", DeviceTensor(DType::f32, {chunks, states[1], states[2], states[3]}));
    out.chunk_states = get("chunk_states");
    d_out.chunk_states = get("chunk_states");
    ASSERT_TRUE(ok(qdelta_saved_size(&options, &in, &options.saved_size)));
    saved = DeviceMemory(options.saved_size);
    options.saved = saved.data();
  }
  qdelta_status forward() {
    return with_workspace([&](uint64_t* bytes) { return qdelta_forward_workspace(&options, &in, &out, bytes); },
                          [&] { return qdelta_forward(&options, &in, &out); });
  }
  qdelta_status backward() {
    return with_workspace(
        [&](uint64_t* bytes) { return qdelta_backward_workspace(&options, &in, &d_out, &d_in, bytes); },
        [&] { return qdelta_backward(&options, &in, &d_out, &d_in); });
  }
  // Neither more nor fewer bytes than the library asks for; DeviceMemory looks at what is around them.
  template <class Query, class Call>
  qdelta_status with_workspace(const Query& query, const Call& call) {
    if (const qdelta_status status = query(&options.workspace_size); status != QDELTA_OK) return status;
    workspace = DeviceMemory(options.workspace_size);
    options.workspace = workspace.data();
    const qdelta_status status = call();
    stream.synchronize();
    return status;
  }

  void expect_close(const std::map<std::string, Tensor>& expected, double tolerance) {
    for (const auto& [name, values] : expected) {
      const Tensor got = tensors.at(name).values();
      EXPECT_LT(relative_error(got.view(), to_doubles(values.view())), tolerance) << name;
    }
  }
};

class CInterfaceOnGpu : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(All, CInterfaceOnGpu, ::testing::ValuesIn(all_rules()), rule_test_name);

TEST_P(CInterfaceOnGpu, GivesWhatTheCpuGives) {
  QDELTA_NEEDS_DEVICE();
  const Problem problem(GetParam(), DType::f32, {.T = 90});
  for (const bool keeps : {false, true}) {
    GpuCall call(problem);
    if (keeps) call.keep_states(problem);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_TRUE(ok(call.forward()));
    ASSERT_TRUE(ok(call.backward()));
    call.expect_close(problem.expected(), 5e-4);
  }
}

TEST_P(CInterfaceOnGpu, ReadsPackedSequencesWithGapsBetweenRows) {
  QDELTA_NEEDS_DEVICE();
  const Problem problem(GetParam(), DType::f32, {1, 100, 2, 2, 16, 20}, {0, 3, 3, 70, 100});
  GpuCall call(problem, {.offset = 4, .padding = 4, .reversed = true});
  ASSERT_TRUE(ok(call.forward()));
  ASSERT_TRUE(ok(call.backward()));
  call.expect_close(problem.expected(), 5e-4);
}

TEST_P(CInterfaceOnGpu, AStepIsAForwardOfOneToken) {
  QDELTA_NEEDS_DEVICE();
  const Problem problem(GetParam(), DType::f32, {.B = 3, .T = 1});
  GpuCall call(problem);
  const auto row = [&](const char* name) {  // [B, 1, ...] as [R, ...]
    DLTensor tensor = *call.get(name);
    for (int axis = 1; axis + 1 < tensor.ndim; ++axis) {
      tensor.shape[axis] = tensor.shape[axis + 1];
      tensor.strides[axis] = tensor.strides[axis + 1];
    }
    --tensor.ndim;
    return tensor;
  };
  const DLTensor q = row("q"), k = row("k"), v = row("v"), g = row("g"), beta = row("beta"), lambda = row("lambda");
  DLTensor o = row("o");
  // Row r has state 2 - r of the pool: the CPU's rows come the other way round.
  Tensor order(DType::i32, {3});
  for (std::size_t r = 0; r < 3; ++r) order.as<std::int32_t>()[r] = static_cast<std::int32_t>(2 - r);
  GpuTensor index{DeviceTensor(order)};
  Tensor pool(DType::f32, problem.states());
  const std::span<const float> states = problem.tensors.at("h0").as<float>();
  const std::size_t size = states.size() / 3;
  const auto reversed = [&](std::span<const float> from, std::span<float> to) {
    for (std::size_t r = 0; r < 3; ++r)
      std::copy_n(from.begin() + std::ptrdiff_t((2 - r) * size), size, to.begin() + std::ptrdiff_t(r * size));
  };
  reversed(states, pool.as<float>());
  GpuTensor on_gpu{DeviceTensor(pool)};
  const qdelta_step_arguments arguments{&q, &k, &v, &g, &beta, &lambda, on_gpu.get(), index.get(), &o};
  ASSERT_TRUE(ok(qdelta_step(&call.options, &arguments)));
  call.stream.synchronize();
  const std::map<std::string, Tensor> expected = problem.expected();
  EXPECT_LT(relative_error(call.tensors.at("o").values().view(), to_doubles(expected.at("o").view())), 1e-5);
  const Tensor after = on_gpu.values();
  reversed(after.as<float>(), pool.as<float>());
  EXPECT_LT(relative_error(std::as_const(pool).view(), to_doubles(expected.at("ht").view())), 1e-5);
}

// As that in which autograd goes backward: no context of the driver is bound to it yet.
TEST(CInterfaceOnGpuThreads, ABackwardMayBeTheFirstCallOfAThread) {
  QDELTA_NEEDS_DEVICE();
  const Problem problem(Rule::q_delta, DType::bf16, {1, 90, 2, 2, 64, 64});
  GpuCall call(problem);
  call.keep_states(problem);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_TRUE(ok(call.forward()));
  ASSERT_TRUE(
      ok(qdelta_backward_workspace(&call.options, &call.in, &call.d_out, &call.d_in, &call.options.workspace_size)));
  call.workspace = DeviceMemory(call.options.workspace_size);
  call.options.workspace = call.workspace.data();
  qdelta_status status = QDELTA_INTERNAL;
  std::string error;
  std::thread([&] {
    status = qdelta_backward(&call.options, &call.in, &call.d_out, &call.d_in);
    error = qdelta_last_error();
  }).join();
  ASSERT_EQ(status, QDELTA_OK) << error;
  call.stream.synchronize();
  const Tensor dq = call.tensors.at("dq").values();
  ASSERT_TRUE(ok(call.backward()));
  EXPECT_TRUE(same_bits(dq, call.tensors.at("dq").values()));
}

TEST(CInterfaceOnGpuErrors, WhatLiesElsewhereOrIsMissingIsNamed) {
  QDELTA_NEEDS_DEVICE();
  const Problem problem(Rule::q_delta);
  GpuCall call(problem);
  CProblem here(problem);
  call.in.k = here.get("k");
  EXPECT_TRUE(refused(call.forward(), QDELTA_UNSUPPORTED, {"k is on", "CPU", "CUDA device 0"}));
  call.in.k = call.get("k");
  here.in.k = call.get("k");
  EXPECT_TRUE(refused(here.forward(), QDELTA_UNSUPPORTED, {"k is on CUDA device 0", "CPU"}));
  ASSERT_TRUE(ok(call.forward()));  // as a whole it is right
  ASSERT_GT(call.options.workspace_size, 0U);
  --call.options.workspace_size;
  EXPECT_TRUE(refused(qdelta_forward(&call.options, &call.in, &call.out), QDELTA_INVALID_ARGUMENT, {"workspace"}));
  call.options.workspace = nullptr;
  EXPECT_TRUE(refused(qdelta_forward(&call.options, &call.in, &call.out), QDELTA_INVALID_ARGUMENT, {"workspace"}));
  call.options.device.device_id = 99;
  EXPECT_NE(qdelta_forward(&call.options, &call.in, &call.out), QDELTA_OK);
  EXPECT_NE(std::string_view(qdelta_last_error()).find("99"), std::string_view::npos) << qdelta_last_error();
  call.stream.synchronize();
}

}  // namespace
}  // namespace qdelta::testing
