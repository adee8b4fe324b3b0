// Problems of tests/kernels/recurrence_case.h run on the GPU: tensors carried there and back, outputs and workspaces
// full of NaN before the call.
#pragma once

#include <cuda_runtime.h>

#include "cuda/device.h"
#include "kernels/cuda/recurrence_chunk.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {

// How a case is run.
struct GpuRun {
  Placement place{};
  // The states that the forward keeps for the backward; boolean: it keeps none.
  DType chunk_states = DType::boolean;
  bool keeps = false;              // and its matrices
  DType results = DType::boolean;  // of o, dq, dk, dv; boolean: as the inputs
  DType gate_results = DType::boolean;
  bool graph = false;  // both calls captured, and replayed twice
};

class GpuCase {
 public:
  explicit GpuCase(const RecurrenceCase& problem, const GpuRun& how = {}) : problem_(problem), how_(how) {
    const auto carry = [&](const Tensor& tensor) { return DeviceTensor(tensor, how.place); };
    const auto empty = [&](DType dtype, const Shape& shape) { return DeviceTensor(dtype, shape, how.place); };
    q_ = carry(problem.q), k_ = carry(problem.k), v_ = carry(problem.v), g_ = carry(problem.g);
    beta_ = carry(problem.beta), lambda_ = carry(problem.lambda), h0_ = carry(problem.h0);
    d_o_ = carry(problem.d_o), d_ht_ = carry(problem.d_ht);
    const CaseSpec& spec = problem.spec;
    const DType rows = how.results == DType::boolean ? spec.dtype : how.results;
    const DType gates = how.gate_results == DType::boolean ? spec.dtype : how.gate_results;
    o_ = empty(rows, spec.values());
    if (spec.ht) ht_ = empty(DType::f32, spec.states());
    dq_ = empty(rows, spec.keys());
    dk_ = empty(rows, spec.keys());
    dv_ = empty(rows, spec.values());
    dg_ = empty(gates, spec.gates());
    if (spec.dgates) dbeta_ = empty(gates, spec.gates());
    if (spec.dgates) dlambda_ = empty(gates, spec.gates());
    if (spec.dh0) dh0_ = empty(DType::f32, spec.states());
    if (how.chunk_states != DType::boolean) {
      const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), {Form::chunk, 64, 0, true});
      states_ = empty(how.chunk_states, {chunks, spec.value_heads(), spec.key_dim, spec.value_dim});
    }
    if (how.keeps) {
      const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), {Form::chunk, 64, 0, true});
      kept_ = DeviceMemory(cuda::recurrence_chunk_kept(spec.rule, chunks * spec.value_heads()));
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
    args.kept = kept_.bytes();
    return args;
  }
  [[nodiscard]] RecurrenceBackward backward() const {
    RecurrenceBackward args;
    args.in = inputs();
    args.d_o = d_o_.view(), args.d_ht = d_ht_.view(), args.chunk_states = states_.view();
    args.dq = dq_.view(), args.dk = dk_.view(), args.dv = dv_.view(), args.dg = dg_.view();
    args.dbeta = dbeta_.view(), args.dlambda = dlambda_.view(), args.dh0 = dh0_.view();
    args.kept = kept_.bytes();
    return args;
  }

  void run() const { run(forward(), backward()); }
  void run(const RecurrenceForward& forward, const RecurrenceBackward& backward) const {
    const cuda::Context& context = device_context();
    const DeviceMemory forward_space(cuda::recurrence_chunk_workspace(forward));
    const DeviceMemory backward_space(cuda::recurrence_chunk_workspace(backward));
    const auto both = [&] {
      cuda::recurrence_chunk_forward(context, forward, forward_space.bytes());
      cuda::recurrence_chunk_backward(context, backward, backward_space.bytes());
    };
    if (how_.graph) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t ready = nullptr;
      QDELTA_CUDA(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeGlobal));
      both();
      QDELTA_CUDA(cudaStreamEndCapture(context.stream(), &graph));
      QDELTA_CUDA(cudaGraphInstantiate(&ready, graph, 0));
      QDELTA_CUDA(cudaGraphLaunch(ready, context.stream()));
      QDELTA_CUDA(cudaGraphLaunch(ready, context.stream()));
      context.synchronize();
      QDELTA_CUDA(cudaGraphExecDestroy(ready));
      QDELTA_CUDA(cudaGraphDestroy(graph));
    } else {
      both();
    }
    context.synchronize();
  }

  [[nodiscard]] Results<Tensor> results() const {
    return {o_.get(), ht_.get(), dq_.get(), dk_.get(), dv_.get(), dg_.get(), dbeta_.get(), dlambda_.get(), dh0_.get()};
  }

 private:
  const RecurrenceCase& problem_;
  GpuRun how_;
  DeviceTensor q_, k_, v_, g_, beta_, lambda_, h0_, d_o_, d_ht_;
  DeviceTensor o_, ht_, dq_, dk_, dv_, dg_, dbeta_, dlambda_, dh0_, states_;
  DeviceMemory kept_;
};

inline Results<Tensor> run_on_gpu(const RecurrenceCase& problem, const GpuRun& how = {}) {
  const GpuCase on_gpu(problem, how);
  on_gpu.run();
  return on_gpu.results();
}

}  // namespace qdelta::testing
