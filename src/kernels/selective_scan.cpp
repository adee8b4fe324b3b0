// The selective scan's entry points: check, then hand over to the CPU or to the GPU.
#include "kernels/selective_scan.h"

#include "kernels/cpu/selective_scan.h"
#include "kernels/work_times.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/selective_scan.h"
#endif

namespace qdelta {
namespace {

// Sizes of a call, from the tensors that have them.
struct Sizes {
  std::int64_t rows, channels, states;
  DType dtype;  // of the matrices
};

void check_matrix(const ConstTensorView& view, std::int64_t rows, std::int64_t columns, DType dtype, const char* name) {
  require(static_cast<bool>(view), "selective_scan: {} is missing", name);
  require(view.shape == Shape({rows, columns}), "selective_scan: {} has shape {}, expected [{}, {}]", name,
          view.shape.text(), rows, columns);
  require(view.dtype == dtype && (view.step(1) == 1 || columns <= 1),
          "selective_scan: {} must be a {} matrix with contiguous columns", name, name_of(dtype));
}

void check_floats(const ConstTensorView& view, const Shape& shape, const char* name) {
  require(static_cast<bool>(view), "selective_scan: {} is missing", name);
  require(view.shape == shape, "selective_scan: {} has shape {}, expected {}", name, view.shape.text(), shape.text());
  require(view.dtype == DType::f32 && view.contiguous(), "selective_scan: {} must be contiguous floats", name);
}

// What the forward, the backward and a step have in common.
template <class Inputs>
Sizes check_inputs(const Device& device, const Inputs& in) {
  require(static_cast<bool>(in.x) && in.x.shape.rank == 2, "selective_scan: x must be a matrix, not {}",
          in.x ? in.x.shape.text() : "missing");
  require(static_cast<bool>(in.A_log) && in.A_log.shape.rank == 2, "selective_scan: A_log must be [D, N], not {}",
          in.A_log ? in.A_log.shape.text() : "missing");
  const Sizes sizes{in.x.extent(0), in.x.extent(1), in.A_log.extent(1), in.x.dtype};
  require(sizes.dtype == DType::f32 || (device.gpu != nullptr && sizes.dtype == DType::bf16),
          "selective_scan: x is {}, expected {}", name_of(sizes.dtype), device.gpu != nullptr ? "F32 or BF16" : "F32");
  require(sizes.states >= 1 && sizes.states <= kMaxScanStates, "selective_scan: {} states, expected 1 to {}",
          sizes.states, kMaxScanStates);
  check_matrix(in.x, sizes.rows, sizes.channels, sizes.dtype, "x");
  check_matrix(in.dt, sizes.rows, sizes.channels, sizes.dtype, "dt");
  check_matrix(in.B, sizes.rows, sizes.states, sizes.dtype, "B");
  check_matrix(in.C, sizes.rows, sizes.states, sizes.dtype, "C");
  if (in.z) check_matrix(in.z, sizes.rows, sizes.channels, sizes.dtype, "z");
  check_floats(in.A_log, {sizes.channels, sizes.states}, "A_log");
  check_floats(in.skip, {sizes.channels}, "skip");
  check_floats(in.dt_bias, {sizes.channels}, "dt_bias");
  return sizes;
}

Shape state_shape(const SelectiveScanInputs& in, const Sizes& sizes) {
  return {static_cast<std::int64_t>(in.offsets.size()) - 1, sizes.states, sizes.channels};
}

Sizes check_sequences(const Device& device, const SelectiveScanInputs& in) {
  const Sizes sizes = check_inputs(device, in);
  require(!in.offsets.empty(), "selective_scan: there are no offsets");
  if (in.h0) check_floats(in.h0, state_shape(in, sizes), "h0");
  if (device.gpu != nullptr) return sizes;  // they are in device memory
  require(in.offsets.front() == 0 && in.offsets.back() == sizes.rows,
          "selective_scan: the offsets go from {} to {}, but x has {} rows", in.offsets.front(), in.offsets.back(),
          sizes.rows);
  for (std::size_t n = 1; n < in.offsets.size(); ++n) {
    require(in.offsets[n] >= in.offsets[n - 1], "selective_scan: the offsets decrease from {} to {}", in.offsets[n - 1],
            in.offsets[n]);
  }
  return sizes;
}

void check(const Device& device, const SelectiveScanForward& args) {
  const Sizes sizes = check_sequences(device, args.in);
  check_matrix(args.y, sizes.rows, sizes.channels, sizes.dtype, "y");
  if (args.ht) check_floats(args.ht, state_shape(args.in, sizes), "ht");
  const Shape chunks{scan_chunks(sizes.rows), sizes.states, sizes.channels};
  if (args.chunk_states) check_floats(args.chunk_states, chunks, "chunk_states");
}

void check(const Device& device, const SelectiveScanBackward& args) {
  const Sizes sizes = check_sequences(device, args.in);
  const Shape states = state_shape(args.in, sizes);
  check_matrix(args.dy, sizes.rows, sizes.channels, sizes.dtype, "dy");
  check_matrix(args.dx, sizes.rows, sizes.channels, sizes.dtype, "dx");
  check_matrix(args.ddt, sizes.rows, sizes.channels, sizes.dtype, "ddt");
  check_matrix(args.dB, sizes.rows, sizes.states, sizes.dtype, "dB");
  check_matrix(args.dC, sizes.rows, sizes.states, sizes.dtype, "dC");
  if (args.in.z) check_matrix(args.dz, sizes.rows, sizes.channels, sizes.dtype, "dz");
  check_floats(args.dA_log, {sizes.channels, sizes.states}, "dA_log");
  check_floats(args.dskip, {sizes.channels}, "dskip");
  check_floats(args.ddt_bias, {sizes.channels}, "ddt_bias");
  if (args.d_ht) check_floats(args.d_ht, states, "d_ht");
  if (args.dh0) check_floats(args.dh0, states, "dh0");
  require(!args.dh0 || args.dh0.data != args.d_ht.data || states.elements() == 0,
          "selective_scan: dh0 and d_ht are the same memory");
  if (sizes.rows == 0) return;  // then no chunk has a state
  check_floats(args.chunk_states, {scan_chunks(sizes.rows), sizes.states, sizes.channels}, "chunk_states");
}

void check(const Device& device, const SelectiveScanStep& args) {
  const Sizes sizes = check_inputs(device, args);
  check_matrix(args.y, sizes.rows, sizes.channels, sizes.dtype, "y");
  require(static_cast<bool>(args.states) && args.states.shape.rank == 3, "selective_scan: states must be [P, N, D]");
  const std::int64_t pool = args.states.extent(0);
  check_floats(args.states, {pool, sizes.states, sizes.channels}, "states");
  if (!args.index) {
    require(sizes.rows <= pool, "selective_scan: {} rows for a pool of {} states", sizes.rows, pool);
    return;
  }
  require(args.index.dtype == DType::i64 && args.index.shape == Shape({sizes.rows}) && args.index.contiguous(),
          "selective_scan: index must be [{}] I64, not {} {}", sizes.rows, args.index.shape.text(),
          name_of(args.index.dtype));
  if (device.gpu != nullptr) return;
  for (const std::int64_t slot : integers_of(args.index, "index")) {
    require(slot >= 0 && slot < pool, "selective_scan: there is no state {} in a pool of {}", slot, pool);
  }
}

std::size_t workspace_bytes(const Device& device, const SelectiveScanInputs& in, bool backward) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::selective_scan_workspace(in, backward);
#endif
  return backward ? cpu::selective_scan_backward_workspace(device, in) : 0;
}

}  // namespace

std::size_t selective_scan_workspace(const Device& device, const SelectiveScanInputs& in, bool backward) {
  check_sequences(device, in);
  return workspace_bytes(device, in, backward);
}

void selective_scan_forward(const Device& device, const SelectiveScanForward& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
  check(device, args);
  const std::span<std::byte> scratch = workspace.get(workspace_bytes(device, args.in, false));
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::selective_scan_forward(*device.gpu, args, scratch);
#endif
  (void)scratch;
  cpu::selective_scan_forward(device, args);
}

void selective_scan_backward(const Device& device, const SelectiveScanBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::recurrence);
  check(device, args);
  const std::span<std::byte> scratch = workspace.get(workspace_bytes(device, args.in, true));
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::selective_scan_backward(*device.gpu, args, scratch);
#endif
  cpu::selective_scan_backward(device, args, scratch);
}

void selective_scan_step(const Device& device, const SelectiveScanStep& args) {
  const TimedWork timed(Work::recurrence);
  check(device, args);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::selective_scan_step(*device.gpu, args);
#endif
  cpu::selective_scan_step(device, args);
}

}  // namespace qdelta
