// The contract of Mamba's selective scan: a diagonal state of N numbers for each channel, decayed and written by how
// long a step each token takes. As in recurrence.h: one arguments struct per op, forward and backward side by side. Per
// token, channel d and state n:
//
//   delta = softplus(dt + dt_bias),   A = -exp(A_log)
//   h[n] <- exp(delta A[n]) h[n] + delta B[n] x
//   y    <- (sum_n C[n] h[n] + skip x) silu(z)                                      without z: no gate
//
// Symbols: T tokens of all sequences, one after the other, S sequences, D channels, N states of a channel. Matrices
// have contiguous columns; rows may be apart. On the CPU all are float32. On a GPU matrices are float32 or bfloat16,
// all of one type, and offsets and indices are in device memory (a row of a step whose index lies outside the pool gets
// zeros and changes no state). States and parameters are float32 everywhere.
//
// The same input gives the same bits, on the CPU for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/memory.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/workspace.h"

namespace qdelta {

inline constexpr std::int64_t kMaxScanStates = 64;
// Of how many tokens the forward keeps one state for the backward, which goes through the tokens between again.
inline constexpr std::int64_t kScanChunk = 32;

struct SelectiveScanInputs {
  ConstTensorView x;                      // [T, D]
  ConstTensorView dt;                     // [T, D]
  ConstTensorView B, C;                   // [T, N]
  ConstTensorView z;                      // [T, D]; optional
  ConstTensorView A_log;                  // [D, N]
  ConstTensorView skip, dt_bias;          // [D]
  ConstTensorView h0;                     // [S, N, D]; missing: zeros
  std::span<const std::int64_t> offsets;  // sequence n is rows [offsets[n], offsets[n + 1])
};

struct SelectiveScanForward {
  SelectiveScanInputs in;
  TensorView y;   // [T, D]
  TensorView ht;  // [S, N, D]; optional; may be h0
  // [scan_chunks(T), N, D]: the state before row c kScanChunk, for the backward; whatever where a sequence begins
  // there. Optional.
  TensorView chunk_states;
};

// Of parameters += , all others are written.
struct SelectiveScanBackward {
  SelectiveScanInputs in;
  ConstTensorView dy;            // [T, D]
  ConstTensorView d_ht;          // [S, N, D]; missing: zeros
  ConstTensorView chunk_states;  // as the forward left them
  TensorView dx, ddt, dB, dC;    // shaped like x, dt, B, C
  TensorView dz;                 // where there is a gate
  TensorView dA_log;             // [D, N]
  TensorView dskip, ddt_bias;    // [D]
  TensorView dh0;                // [S, N, D]; optional; may not be d_ht
};

// One token for each of R rows, in place on a pool of P states.
struct SelectiveScanStep {
  ConstTensorView x, dt;          // [R, D]
  ConstTensorView B, C;           // [R, N]
  ConstTensorView z;              // [R, D]; optional
  ConstTensorView A_log;          // [D, N]
  ConstTensorView skip, dt_bias;  // [D]
  TensorView states;              // [P, N, D]
  ConstTensorView index;          // [R] i64: the state of each row, all different; missing: row r has state r
  TensorView y;                   // [R, D]
};

[[nodiscard]] constexpr std::int64_t scan_chunks(std::int64_t tokens) { return ceil_div(tokens, kScanChunk); }

// Check every argument and run. A step needs no scratch memory.
void selective_scan_forward(const Device& device, const SelectiveScanForward& args, Workspace& workspace);
void selective_scan_backward(const Device& device, const SelectiveScanBackward& args, Workspace& workspace);
void selective_scan_step(const Device& device, const SelectiveScanStep& args);
// The bytes that the forward asks the workspace for, or with `backward` the two of them.
[[nodiscard]] std::size_t selective_scan_workspace(const Device& device, const SelectiveScanInputs& in, bool backward);

// Floating-point operations per token and channel (multiply and add count as two, exp as one).
[[nodiscard]] constexpr double scan_forward_flop(double N) { return 7 * N + 8; }
[[nodiscard]] constexpr double scan_backward_flop(double N) { return 22 * N + 20; }

}  // namespace qdelta
