// The recurrence's entry points: check, then hand over to the form that was asked for.
#include "kernels/recurrence.h"

#include "kernels/cpu/recurrence_blocked.h"
#include "kernels/cpu/recurrence_chunk.h"
#include "kernels/cpu/recurrence_step.h"
#include "kernels/recurrence_check.h"
#include "kernels/recurrence_layout.h"
#include "kernels/recurrence_reference.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/layers.h"
#include "kernels/cuda/recurrence_chunk.h"
#endif

namespace qdelta {
namespace {

// Where nothing is saved for a backward and no chunk length is asked for, the blocked recurrence is the fastest, unless
// bfloat16 products are to be had.
bool runs_blocked(const RecurrenceForward& args) {
  return args.run.form == Form::recurrent || (args.run.form == Form::chunk && args.run.chunk == 0 &&
                                              !args.chunk_states && !cpu::wants_bf16_products(args.in, args.run));
}

std::size_t cpu_workspace(const Device& device, const RecurrenceForward& args) {
  if (args.run.form == Form::oracle) return 0;
  return runs_blocked(args) ? cpu::recurrence_blocked_workspace(device, args)
                            : cpu::recurrence_chunk_workspace(device, args);
}

std::size_t cpu_workspace(const Device& device, const RecurrenceBackward& args) {
  return args.run.form == Form::chunk ? cpu::recurrence_chunk_workspace(device, args) : 0;
}

}  // namespace

std::int64_t recurrence_chunk_count(const RecurrenceInputs& in, const Execution& run) {
  check(in);
  check(run);
  return RecurrenceLayout(in, run.chunk > 0 ? run.chunk : kDefaultChunk).total_chunks;
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceForward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_workspace(args);
#endif
  check(device);
  check(args);
  return cpu_workspace(device, args);
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceBackward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_workspace(args);
#endif
  check(device);
  check(args);
  return cpu_workspace(device, args);
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceStep& args) {
  if (device.gpu != nullptr) return 0;
  check(device);
  check(args);
  return cpu::recurrence_step_workspace(device, args);
}

void recurrence_forward(const Device& device, const RecurrenceForward& args, Workspace& workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_forward(*device.gpu, args, workspace);
#endif
  check(device);
  check(args);
  const std::span<std::byte> scratch = workspace.get(cpu_workspace(device, args));
  if (args.run.form == Form::oracle) {
    reference_forward<double>(args);
  } else if (runs_blocked(args)) {
    cpu::recurrence_blocked(device, args, scratch);
  } else {
    cpu::recurrence_chunk_forward(device, args, scratch);
  }
}

void recurrence_backward(const Device& device, const RecurrenceBackward& args, Workspace& workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_backward(*device.gpu, args, workspace);
#endif
  check(device);
  check(args);
  const std::span<std::byte> scratch = workspace.get(cpu_workspace(device, args));
  switch (args.run.form) {
    case Form::oracle:
      return reference_backward<double>(args);
    case Form::recurrent:
      return reference_backward<float>(args);
    case Form::chunk:
      return cpu::recurrence_chunk_backward(device, args, scratch);
  }
}

void recurrence_step(const Device& device, const RecurrenceStep& args, Workspace& workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_step(*device.gpu, args);
#endif
  check(device);
  check(args);
  cpu::recurrence_step(device, args, workspace.get(cpu::recurrence_step_workspace(device, args)));
}

std::size_t recurrence_saved_bytes(const Device& device, Rule rule, std::int64_t chunks) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_saved_bytes(rule, chunks);
#else
  (void)device;
  (void)rule;
  (void)chunks;
#endif
  return 0;
}

}  // namespace qdelta
