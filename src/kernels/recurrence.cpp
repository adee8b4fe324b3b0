// The recurrence's entry points: check, then hand over to the form that was asked for.
#include "kernels/recurrence.h"

#include "kernels/cpu/recurrence_blocked.h"
#include "kernels/cpu/recurrence_chunk.h"
#include "kernels/cpu/recurrence_step.h"
#include "kernels/recurrence_check.h"
#include "kernels/recurrence_layout.h"
#include "kernels/recurrence_reference.h"
#include "kernels/workspace.h"
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

}  // namespace

std::int64_t recurrence_chunk_count(const RecurrenceInputs& in, const Execution& run) {
  check(in);
  check(run);
  return RecurrenceLayout(in, run.chunk > 0 ? run.chunk : kDefaultChunk).total_chunks;
}

std::size_t recurrence_workspace(const RecurrenceForward& args) {
  check(args);
  if (args.run.form == Form::oracle) return 0;
  return runs_blocked(args) ? cpu::recurrence_blocked_workspace(args) : cpu::recurrence_chunk_workspace(args);
}

std::size_t recurrence_workspace(const RecurrenceBackward& args) {
  check(args);
  return args.run.form == Form::chunk ? cpu::recurrence_chunk_workspace(args) : 0;
}

std::size_t recurrence_workspace(const RecurrenceStep& args) {
  check(args);
  return cpu::recurrence_step_workspace(args);
}

void recurrence_forward(const RecurrenceForward& args, std::span<std::byte> workspace) {
  check_workspace(workspace, recurrence_workspace(args));
  if (args.run.form == Form::oracle) {
    reference_forward<double>(args);
  } else if (runs_blocked(args)) {
    cpu::recurrence_blocked(args, workspace);
  } else {
    cpu::recurrence_chunk_forward(args, workspace);
  }
}

void recurrence_backward(const RecurrenceBackward& args, std::span<std::byte> workspace) {
  check_workspace(workspace, recurrence_workspace(args));
  switch (args.run.form) {
    case Form::oracle:
      return reference_backward<double>(args);
    case Form::recurrent:
      return reference_backward<float>(args);
    case Form::chunk:
      return cpu::recurrence_chunk_backward(args, workspace);
  }
}

void recurrence_step(const RecurrenceStep& args, std::span<std::byte> workspace) {
  check_workspace(workspace, recurrence_workspace(args));
  cpu::recurrence_step(args, workspace);
}

void recurrence_forward(const Device& device, const RecurrenceForward& args, std::span<std::byte> workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_forward(*device.gpu, args, workspace);
#else
  (void)device;
#endif
  recurrence_forward(args, workspace);
}

void recurrence_backward(const Device& device, const RecurrenceBackward& args, std::span<std::byte> workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_backward(*device.gpu, args, workspace);
#else
  (void)device;
#endif
  recurrence_backward(args, workspace);
}

void recurrence_step(const Device& device, const RecurrenceStep& args, std::span<std::byte> workspace) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_step(*device.gpu, args);
#else
  (void)device;
#endif
  recurrence_step(args, workspace);
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceForward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_workspace(args);
#else
  (void)device;
#endif
  return recurrence_workspace(args);
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceBackward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_workspace(args);
#else
  (void)device;
#endif
  return recurrence_workspace(args);
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

std::size_t recurrence_workspace(const Device& device, const RecurrenceStep& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return 0;
#else
  (void)device;
#endif
  return recurrence_workspace(args);
}

}  // namespace qdelta
