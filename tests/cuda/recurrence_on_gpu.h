// Problems of tests/kernels/recurrence_case.h run on the GPU: tensors carried there and back, outputs full of NaN
// before the call, guarded memory around and between the elements and behind the workspace.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/cuda/context.h"
#include "kernels/cuda/recurrence_chunk.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {

// Device memory with guards at both ends.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes, unsigned char fill = kGuard) : size_(bytes) {
    QDELTA_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), bytes + 2 * kMargin));
    QDELTA_CUDA(cudaMemset(data_, kGuard, bytes + 2 * kMargin));
    QDELTA_CUDA(cudaMemset(data_ + kMargin, fill, bytes));
    wait();
  }
  ~DeviceMemory() {
    std::vector<std::byte> all(size_ + 2 * kMargin);
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost) != cudaSuccess) {
      ADD_FAILURE() << "the memory cannot be read back: " << cudaGetErrorString(cudaGetLastError());
      return;
    }
    for (std::size_t i = 0; i < kMargin; ++i) {
      if (all[i] != std::byte{kGuard} || all[kMargin + size_ + i] != std::byte{kGuard}) {
        ADD_FAILURE() << "memory outside of " << size_ << " bytes was written";
        break;
      }
    }
    cudaFree(data_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_ + kMargin; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), size_}; }
  static std::vector<std::byte> host_copy(const std::byte* from, std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    QDELTA_CUDA(cudaDeviceSynchronize());
    QDELTA_CUDA(cudaMemcpy(out.data(), from, bytes, cudaMemcpyDeviceToHost));
    return out;
  }

  // Fills and copies may return before they are done, and the context's stream does not wait for them.
  static void wait() { QDELTA_CUDA(cudaDeviceSynchronize()); }

  static constexpr unsigned char kGuard = 0xa5;

 private:
  static constexpr std::size_t kMargin = 1024;
  std::size_t size_;
  std::byte* data_ = nullptr;
};

// A tensor on the GPU: row-major, or with its outer axes the other way round and gaps between rows. `offset` elements
// before it make it start anywhere.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(const Tensor& content, bool strided, std::int64_t offset = 0) {
    if (content.data() == nullptr) return;
    view_ = TensorView(nullptr, content.dtype(), content.shape());
    const int rank = content.shape().rank;
    const auto size = static_cast<std::int64_t>(size_of(content.dtype()));
    std::int64_t elements = content.elements();
    if (strided && rank > 1) {
      const bool gates = rank == 3;
      std::int64_t step = gates ? 1 : content.shape()[rank - 1] + 3;
      view_.stride[static_cast<std::size_t>(rank - 1)] = 1;
      for (int axis = 0; axis < (gates ? rank : rank - 1); ++axis) {
        view_.stride[static_cast<std::size_t>(axis)] = step;
        step = step * content.shape()[axis] + 5;
      }
      elements = step;
    }
    memory_ = std::make_unique<DeviceMemory>(static_cast<std::size_t>((elements + offset) * size));
    view_.data = memory_->data() + offset * size;
    std::vector<std::byte> host(static_cast<std::size_t>((elements + offset) * size), std::byte{DeviceMemory::kGuard});
    for_each_run([&](std::int64_t at, std::int64_t index, std::int64_t length) {
      std::memcpy(host.data() + (offset + at) * size, content.data() + index * size,
                  static_cast<std::size_t>(length * size));
    });
    QDELTA_CUDA(cudaMemcpy(memory_->data(), host.data(), host.size(), cudaMemcpyHostToDevice));
    DeviceMemory::wait();
  }

  [[nodiscard]] TensorView view() const { return view_; }
  // Back on the host, row-major; the gaps must be as they were.
  [[nodiscard]] Tensor content() const {
    if (!view_) return {};
    Tensor out(view_.dtype, view_.shape);
    const auto size = static_cast<std::int64_t>(size_of(view_.dtype));
    const std::int64_t before = view_.data - memory_->data();
    std::vector<std::byte> host = DeviceMemory::host_copy(memory_->data(), memory_->bytes().size());
    for_each_run([&](std::int64_t at, std::int64_t index, std::int64_t length) {
      std::byte* run = host.data() + before + at * size;
      std::memcpy(out.data() + index * size, run, static_cast<std::size_t>(length * size));
      std::memset(run, DeviceMemory::kGuard, static_cast<std::size_t>(length * size));
    });
    for (const std::byte byte : host) {
      if (byte != std::byte{DeviceMemory::kGuard}) {
        ADD_FAILURE() << "memory between the elements was written";
        break;
      }
    }
    return out;
  }

 private:
  // Elements that follow each other there as they do here: all of them, those of the last axis, or single ones.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    const std::int64_t elements = view_.shape.elements();
    const int last = view_.shape.rank - 1;
    const std::int64_t run = view_.contiguous() ? elements : view_.step(last) == 1 ? view_.shape[last] : 1;
    for (std::int64_t index = 0; index < elements; index += run) {
      std::int64_t rest = index;
      std::int64_t at = 0;
      for (int axis = view_.shape.rank - 1; axis >= 0; --axis) {
        at += rest % view_.shape[axis] * view_.step(axis);
        rest /= view_.shape[axis];
      }
      visit(at, index, run);
    }
  }

  std::unique_ptr<DeviceMemory> memory_;
  TensorView view_;
};

// How a case is run.
struct GpuRun {
  bool strided = false;
  std::int64_t offset = 0;  // elements that tensors start beyond an aligned address
  // The states that the forward keeps for the backward; boolean: it keeps none.
  DType chunk_states = DType::boolean;
  bool keeps = false;              // and its matrices
  DType results = DType::boolean;  // of o, dq, dk, dv; boolean: as the inputs
  DType gate_results = DType::boolean;
  bool graph = false;  // both calls captured, and replayed twice
};

class GpuCase {
 public:
  GpuCase(const cuda::Context& context, const RecurrenceCase& problem, const GpuRun& how)
      : context_(context), problem_(problem), how_(how) {
    const auto carry = [&](const Tensor& tensor) { return DeviceTensor(tensor, how.strided, how.offset); };
    q_ = carry(problem.q), k_ = carry(problem.k), v_ = carry(problem.v), g_ = carry(problem.g);
    beta_ = carry(problem.beta), lambda_ = carry(problem.lambda), h0_ = carry(problem.h0);
    d_o_ = carry(problem.d_o), d_ht_ = carry(problem.d_ht);
    const CaseSpec& spec = problem.spec;
    const DType rows = how.results == DType::boolean ? spec.dtype : how.results;
    const DType gates = how.gate_results == DType::boolean ? spec.dtype : how.gate_results;
    o_ = carry(nan_tensor(rows, spec.values()));
    if (spec.ht) ht_ = carry(nan_tensor(DType::f32, spec.states()));
    dq_ = carry(nan_tensor(rows, spec.keys()));
    dk_ = carry(nan_tensor(rows, spec.keys()));
    dv_ = carry(nan_tensor(rows, spec.values()));
    dg_ = carry(nan_tensor(gates, spec.gates()));
    if (spec.dgates) dbeta_ = carry(nan_tensor(gates, spec.gates()));
    if (spec.dgates) dlambda_ = carry(nan_tensor(gates, spec.gates()));
    if (spec.dh0) dh0_ = carry(nan_tensor(DType::f32, spec.states()));
    if (how.chunk_states != DType::boolean) {
      const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), {Form::chunk, 64, 0, true});
      states_ = carry(nan_tensor(how.chunk_states, {chunks, spec.value_heads(), spec.key_dim, spec.value_dim}));
    }
    if (how.keeps) {
      const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), {Form::chunk, 64, 0, true});
      kept_ = std::make_unique<DeviceMemory>(cuda::recurrence_chunk_kept(spec.rule, chunks * spec.value_heads()), 0xff);
    }
  }

  [[nodiscard]] RecurrenceInputs inputs() const {
    RecurrenceInputs in = problem_.inputs();
    in.q = q_.view(), in.k = k_.view(), in.v = v_.view(), in.g = g_.view();
    in.beta = beta_.view(), in.lambda = lambda_.view(), in.h0 = h0_.view();
    return in;
  }
  [[nodiscard]] RecurrenceForward forward() const {
    RecurrenceForward args;
    args.in = inputs();
    args.o = o_.view();
    args.ht = ht_.view();
    args.chunk_states = states_.view();
    if (kept_) args.kept = kept_->bytes();
    return args;
  }
  [[nodiscard]] RecurrenceBackward backward() const {
    RecurrenceBackward args;
    args.in = inputs();
    args.d_o = d_o_.view(), args.d_ht = d_ht_.view(), args.chunk_states = states_.view();
    args.dq = dq_.view(), args.dk = dk_.view(), args.dv = dv_.view(), args.dg = dg_.view();
    args.dbeta = dbeta_.view(), args.dlambda = dlambda_.view(), args.dh0 = dh0_.view();
    if (kept_) args.kept = kept_->bytes();
    return args;
  }

  void run() const { run(forward(), backward()); }
  void run(const RecurrenceForward& forward, const RecurrenceBackward& backward) const {
    // NaN, whatever type it is read as.
    const DeviceMemory forward_space(cuda::recurrence_chunk_workspace(context_, forward), 0xff);
    const DeviceMemory backward_space(cuda::recurrence_chunk_workspace(context_, backward), 0xff);
    const auto both = [&] {
      cuda::recurrence_chunk_forward(context_, forward, forward_space.bytes());
      cuda::recurrence_chunk_backward(context_, backward, backward_space.bytes());
    };
    if (how_.graph) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t ready = nullptr;
      QDELTA_CUDA(cudaStreamBeginCapture(context_.stream(), cudaStreamCaptureModeGlobal));
      both();
      QDELTA_CUDA(cudaStreamEndCapture(context_.stream(), &graph));
      QDELTA_CUDA(cudaGraphInstantiate(&ready, graph, 0));
      QDELTA_CUDA(cudaGraphLaunch(ready, context_.stream()));
      QDELTA_CUDA(cudaGraphLaunch(ready, context_.stream()));
      context_.synchronize();
      QDELTA_CUDA(cudaGraphExecDestroy(ready));
      QDELTA_CUDA(cudaGraphDestroy(graph));
    } else {
      both();
    }
    context_.synchronize();
  }

  [[nodiscard]] Results<Tensor> results() const {
    return {o_.content(),  ht_.content(),    dq_.content(),      dk_.content(), dv_.content(),
            dg_.content(), dbeta_.content(), dlambda_.content(), dh0_.content()};
  }

 private:
  const cuda::Context& context_;
  const RecurrenceCase& problem_;
  GpuRun how_;
  DeviceTensor q_, k_, v_, g_, beta_, lambda_, h0_, d_o_, d_ht_;
  DeviceTensor o_, ht_, dq_, dk_, dv_, dg_, dbeta_, dlambda_, dh0_, states_;
  std::unique_ptr<DeviceMemory> kept_;
};

inline Results<Tensor> run_on_gpu(const cuda::Context& context, const RecurrenceCase& problem, const GpuRun& how = {}) {
  const GpuCase on_gpu(context, problem, how);
  on_gpu.run();
  return on_gpu.results();
}

// Tests of a GPU: one context for all, and a line that says why nothing was tested where there is none.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device: nothing was tested";
    if (!context_) context_ = std::make_unique<cuda::Context>(0);
  }
  static const cuda::Context& context() { return *context_; }

 private:
  static inline std::unique_ptr<cuda::Context> context_;
};

}  // namespace qdelta::testing
