// The recurrence's entry points: check, resolve the form, then hand over to it.
#include "kernels/recurrence.h"

#include "kernels/cpu/recurrence_blocked.h"
#include "kernels/cpu/recurrence_chunk.h"
#include "kernels/cpu/recurrence_step.h"
#include "kernels/recurrence_check.h"
#include "kernels/recurrence_layout.h"
#include "kernels/recurrence_reference.h"
#include "kernels/work_times.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/layers.h"
#include "kernels/cuda/recurrence_chunk.h"
#endif

namespace qdelta {
namespace {

// The arguments with what will run in the place of what was asked for.
template <class Args>
Args resolved(const Device& device, const Args& args) {
  Args out = args;
  const ResolvedForm what = resolve(device, args);
  out.run.form = what.form;
  if (what.form == Form::chunk) out.run.chunk = what.tokens;
  return out;
}

std::size_t cpu_workspace(const Device& device, const RecurrenceForward& args) {
  switch (args.run.form) {
    case Form::chunk:
      return cpu::recurrence_chunk_workspace(device, args);
    case Form::recurrent:
      return cpu::recurrence_blocked_workspace(device, args);
    default:
      return 0;
  }
}

std::size_t cpu_workspace(const Device& device, const RecurrenceBackward& args) {
  return args.run.form == Form::chunk ? cpu::recurrence_chunk_workspace(device, args) : 0;
}

}  // namespace

ResolvedForm resolve(const Device& device, const RecurrenceForward& args) {
  const ResolvedForm chunks{.form = Form::chunk, .tokens = chunk_length(args.run)};
  const ResolvedForm blocks{.form = Form::recurrent, .tokens = kRecurrenceBlock};
  switch (args.run.form) {
    case Form::chunk:
      return chunks;
    case Form::recurrent:
      return blocks;
    case Form::oracle:
      return {.form = Form::oracle, .tokens = 1};
    case Form::automatic:
      break;
  }
  const bool asks_for_chunks = args.run.chunk > 0 || args.chunk_states || cpu::wants_bf16_products(args.in, args.run);
  return device.gpu != nullptr || asks_for_chunks ? chunks : blocks;
}

ResolvedForm resolve(const Device& /*device*/, const RecurrenceBackward& args) {
  if (args.run.form == Form::recurrent || args.run.form == Form::oracle) return {.form = args.run.form, .tokens = 1};
  return {.form = Form::chunk, .tokens = chunk_length(args.run)};
}

std::int64_t recurrence_chunk_count(const RecurrenceInputs& in, const Execution& run) {
  check(in);
  check(run);
  return RecurrenceLayout(in, chunk_length(run)).total_chunks;
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceForward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_workspace(*device.gpu, args);
#endif
  check(device);
  check(args);
  return cpu_workspace(device, resolved(device, args));
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceBackward& args) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_workspace(*device.gpu, args);
#endif
  check(device);
  check(args);
  return cpu_workspace(device, resolved(device, args));
}

std::size_t recurrence_workspace(const Device& device, const RecurrenceStep& args) {
  if (device.gpu != nullptr) return 0;
  check(device);
  check(args);
  return cpu::recurrence_step_workspace(device, args);
}

void recurrence_forward(const Device& device, const RecurrenceForward& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_forward(*device.gpu, args, workspace);
#endif
  check(device);
  check(args);
  const RecurrenceForward call = resolved(device, args);
  const std::span<std::byte> scratch = workspace.get(cpu_workspace(device, call));
  switch (call.run.form) {
    case Form::oracle:
      return reference_forward<double>(call);
    case Form::recurrent:
      return cpu::recurrence_blocked(device, call, scratch);
    case Form::chunk:
    case Form::automatic:  // which resolve() never gives
      return cpu::recurrence_chunk_forward(device, call, scratch);
  }
}

void recurrence_backward(const Device& device, const RecurrenceBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_backward(*device.gpu, args, workspace);
#endif
  check(device);
  check(args);
  const RecurrenceBackward call = resolved(device, args);
  const std::span<std::byte> scratch = workspace.get(cpu_workspace(device, call));
  switch (call.run.form) {
    case Form::oracle:
      return reference_backward<double>(call);
    case Form::recurrent:
      return reference_backward<float>(call);
    case Form::chunk:
    case Form::automatic:  // which resolve() never gives
      return cpu::recurrence_chunk_backward(device, call, scratch);
  }
}

void recurrence_step(const Device& device, const RecurrenceStep& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_step(*device.gpu, args);
#endif
  check(device);
  check(args);
  cpu::recurrence_step(device, args, workspace.get(cpu::recurrence_step_workspace(device, args)));
}

void recurrence_settle(const Device& device, const RecurrenceSettle& args) {
  const TimedWork timed(Work::recurrence);
  check(args);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_settle(*device.gpu, args);
#else
  (void)device;
#endif
  fail(Status::invalid_argument, "recent tokens are kept beside states on a GPU only");
}

void recurrence_undo(const Device& device, const RecurrenceUndo& args) {
  const TimedWork timed(Work::recurrence);
  check(args);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_undo(*device.gpu, args);
#else
  (void)device;
#endif
  fail(Status::invalid_argument, "recent tokens are kept beside states on a GPU only");
}

std::size_t recurrence_saved_bytes(const Device& device, Rule rule, std::int64_t chunks, std::int64_t V) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::recurrence_chunk_saved_bytes(rule, chunks, V);
#else
  (void)device;
  (void)rule;
  (void)chunks;
  (void)V;
#endif
  return 0;
}

}  // namespace qdelta
