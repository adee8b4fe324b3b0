// Cases of tests/kernels/recurrence_case.h on the GPU: tensors uploaded and downloaded, outputs and workspaces filled
// with NaN before the call.
#pragma once

#include <memory>

#include "cuda/device.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/recurrence_chunk.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {

// How a case is run.
struct GpuRun {
  Placement place{};
  // Chunk states that the forward saves for the backward; boolean: none.
  DType chunk_states = DType::boolean;
  bool saves_matrices = false;     // the forward also saves the chunk matrices
  DType results = DType::boolean;  // of o, dq, dk, dv; boolean: as the inputs
  DType gate_results = DType::boolean;
  int segments = 0;                 // as in Execution
  std::int64_t segment_tokens = 0;  // likewise, of the forward
  bool graph = false;               // both calls captured, and replayed twice
};

using DeviceProblem = CaseAt<DeviceTensor, Placement>;

class GpuCase {
 public:
  explicit GpuCase(const RecurrenceCase& problem, const GpuRun& how = {}) : how_(how), in_(problem, how.place) {
    const auto empty = [&](DType dtype, const Shape& shape) { return DeviceTensor(dtype, shape, how.place); };
    const CaseSpec& spec = problem.spec;
    const DType rows = how.results == DType::boolean ? spec.dtype : how.results;
    const DType gates = how.gate_results == DType::boolean ? spec.dtype : how.gate_results;
    out_.o = empty(rows, spec.values());
    if (spec.ht) out_.ht = empty(DType::f32, spec.states());
    out_.dq = empty(rows, spec.keys());
    out_.dk = empty(rows, spec.keys());
    out_.dv = empty(rows, spec.values());
    out_.dg = empty(gates, spec.gates());
    if (spec.dgates) out_.dbeta = empty(gates, spec.gates());
    if (spec.dgates) out_.dlambda = empty(gates, spec.gates());
    if (spec.dh0) out_.dh0 = empty(DType::f32, spec.states());
    const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), {.form = Form::chunk, .chunk = 64});
    if (how.chunk_states != DType::boolean)
      states_ = empty(how.chunk_states, {chunks, spec.value_heads(), spec.key_dim, spec.value_dim});
    if (how.saves_matrices)
      saved_ = DeviceMemory(cuda::recurrence_chunk_saved_bytes(spec.rule, chunks * spec.value_heads(), spec.value_dim));
  }

  [[nodiscard]] RecurrenceForward forward() const {
    RecurrenceForward args = forward_arguments(in_, out_, {});
    args.run.segments = how_.segments;
    args.run.segment_tokens = how_.segment_tokens;
    args.chunk_states = states_.view();
    args.saved = saved_.bytes();
    return args;
  }
  [[nodiscard]] RecurrenceBackward backward() const {
    RecurrenceBackward args = backward_arguments(in_, out_, {});
    args.run.segments = how_.segments;
    args.chunk_states = states_.view();
    args.saved = saved_.bytes();
    return args;
  }

  void run() const { run(forward(), backward()); }
  void run(const RecurrenceForward& forward, const RecurrenceBackward& backward) const {
    const cuda::Context& context = device_context();
    const DeviceMemory forward_memory(cuda::recurrence_chunk_workspace(context, forward));
    const DeviceMemory backward_memory(cuda::recurrence_chunk_workspace(context, backward));
    Workspace forward_space(forward_memory.bytes());
    Workspace backward_space(backward_memory.bytes());
    const auto both = [&] {
      cuda::recurrence_chunk_forward(context, forward, forward_space);
      cuda::recurrence_chunk_backward(context, backward, backward_space);
    };
    if (how_.graph) {
      const std::shared_ptr<cuda::Graph> graph = cuda::capture(context, both);
      for (int i = 0; i < 2; ++i) cuda::launch(context, *graph);
      context.synchronize();
    } else {
      both();
      context.synchronize();
    }
  }

  [[nodiscard]] Results<Tensor> results() const {
    return {out_.o.get(),  out_.ht.get(),    out_.dq.get(),      out_.dk.get(), out_.dv.get(),
            out_.dg.get(), out_.dbeta.get(), out_.dlambda.get(), out_.dh0.get()};
  }

 private:
  GpuRun how_;
  DeviceProblem in_;
  Results<DeviceTensor> out_;
  DeviceTensor states_;
  DeviceMemory saved_;
};

inline Results<Tensor> run_on_gpu(const RecurrenceCase& problem, const GpuRun& how = {}) {
  const GpuCase on_gpu(problem, how);
  on_gpu.run();
  return on_gpu.results();
}

}  // namespace qdelta::testing
