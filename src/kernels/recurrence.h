// The contract of the recurrence: one arguments struct per op, forward and backward side by side. A kernel takes views
// and writes views; it allocates nothing (scratch memory comes from a Workspace), knows no model and reads no
// environment. How many threads it takes, the Device says.
//
// Symbols: B batch, T tokens, H query/key heads, HV value heads (a multiple of H: value head h reads query/key head
// h / (HV / H)), K key width, V value width, N sequences (B, or the number of packed ones).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/memory.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/workspace.h"
#include "rule/rule.h"

namespace qdelta {

// How a sequence is computed. All give the same numbers, to rounding.
enum class Form : int {
  chunk,      // matrix products over chunks of tokens
  recurrent,  // the blocked recurrence: a few tokens at a time in float32. Its backward goes token by token.
  oracle,     // token by token in float64, scalar, to check the others; it allocates
  automatic,  // what is fastest: see resolve()
};

inline constexpr int kDefaultChunk = 64;
inline constexpr int kRecurrenceBlock = 4;  // tokens of the blocked recurrence's blocks

struct Execution {
  Form form = Form::automatic;
  // Tokens of a chunk: 16, 32, 64 or 128; 0: kDefaultChunk. With Form::automatic a length asks for the chunk form.
  int chunk = 0;
  // Where q, k and v are bfloat16 and the processor has instructions for it, the large products of the chunk form round
  // their operands to bfloat16 too (states and sums stay float32). False: float32 throughout.
  bool bf16_products = true;
  // On a GPU: into how many segments a sequence is split, which are then scanned in parallel; 0: as many as fill the
  // GPU. Another number gives the same result to rounding.
  int segments = 0;
  // On a GPU, of a forward: every sequence is split into segments of exactly so many tokens, a multiple of its chunks'
  // 64, and what is left; 0: as `segments` says. The state at the end of a whole segment is always the one that its map
  // gives, ht too where a sequence ends there, so that it has the same bits in whichever call it is computed, among
  // however many segments.
  std::int64_t segment_tokens = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// recurrence: a rule over whole sequences.

struct RecurrenceInputs {
  Rule rule = Rule::q_delta;
  float scale = 1.0F;                        // of the output; commonly K^-1/2
  bool qk_l2norm = false;                    // q and k are divided by sqrt(sum of squares + 1e-6) first
  ConstTensorView q, k;                      // [B, T, H, K]     f32 or bf16, as are all but the states
  ConstTensorView v;                         // [B, T, HV, V]
  ConstTensorView g;                         // [B, T, HV]       log decay, always applied
  ConstTensorView beta;                      // [B, T, HV]       may be missing where the rule does not read it
  ConstTensorView lambda;                    // [B, T, HV]       likewise
  ConstTensorView h0;                        // [N, HV, K, V]    f32; missing: zeros
  std::span<const std::int64_t> cu_seqlens;  // N + 1 offsets into T of packed sequences (then B = 1); empty: N = B
};

struct RecurrenceForward {
  RecurrenceInputs in;
  TensorView o;   // [B, T, HV, V]
  TensorView ht;  // [N, HV, K, V]   f32; optional
  // f32 [chunks, HV, K, V]: the state on entry to every chunk, for the backward; optional. chunks = sum over sequences
  // of ceil(length / chunk). The chunk form only.
  TensorView chunk_states;
  // recurrence_saved_bytes() bytes, saved for the backward, which would otherwise compute them again; optional.
  std::span<std::byte> saved;
  Execution run;
};

// Gradients of a loss whose gradient in o is d_o, and in ht d_ht. Outputs are overwritten.
struct RecurrenceBackward {
  RecurrenceInputs in;
  ConstTensorView d_o;               // [B, T, HV, V]
  ConstTensorView d_ht;              // [N, HV, K, V]  f32; missing: zeros
  ConstTensorView chunk_states;      // as the forward left them; missing: computed again
  std::span<const std::byte> saved;  // likewise
  TensorView dq, dk, dv;             // shaped like q, k, v; f32 or bf16
  TensorView dg;                     // [B, T, HV]
  TensorView dbeta, dlambda;         // optional
  TensorView dh0;                    // [N, HV, K, V]  f32; optional
  Execution run;
};

// What steps on a GPU may keep beside a state, so as to read it every time but write it every kRecentTokens times only:
// the last tokens, which can also be taken back until they are written. With S the state in the pool, r_j and k_j of
// token j and w_j the product of the decays of the tokens behind it (w of all of them), the state is
//
//   w S + sum over j of w_j k_j r_j^T        r = write v - erase a x^T S as of then: what the token adds to the state
//
// For each value head rings of kRecentRows: r [kRecentRows, V], k [kRecentRows, K] and the decays [kRecentRows]; then
// the row of the oldest token and the number of tokens, once for each column [V] each, because blocks that have columns
// of their own cannot wait for each other. Nor may one overwrite what another still reads: hence a row more than
// tokens, for the token of the step that moves the others into the state. All zeros: none.
inline constexpr int kRecentTokens = 16;
inline constexpr int kRecentRows = kRecentTokens + 1;
[[nodiscard]] constexpr std::int64_t recent_elements(std::int64_t K, std::int64_t V) {
  return kRecentRows * (V + K + 1) + 2 * V;
}

// One token for each of R rows, in place on a pool of P states.
struct RecurrenceStep {
  Rule rule = Rule::q_delta;
  float scale = 1.0F;
  bool qk_l2norm = false;
  ConstTensorView q, k;             // [R, H, K]
  ConstTensorView v;                // [R, HV, V]
  ConstTensorView g, beta, lambda;  // [R, HV]
  TensorView states;                // [P, HV, K, V]  f32, rows of V contiguous
  TensorView recent;                // [P, HV, recent_elements(K, V)]  f32; on a GPU, optional
  ConstTensorView index;            // [R] i32 or i64: the state of each row, all different; missing: row r has state r
  TensorView o;                     // [R, HV, V]
};

// Brings the tokens that steps have kept beside R states into them; then there are none beside them.
struct RecurrenceSettle {
  TensorView states;  // [R, HV, K, V]  f32, rows of V contiguous
  TensorView recent;  // [R, HV, recent_elements(K, V)]  f32
};

// Takes the last tokens that are kept beside R states back, as if their steps had not been: at most as many as there
// are, which the caller knows.
struct RecurrenceUndo {
  TensorView recent;  // [R, HV, recent_elements(K, V)]  f32
  std::int64_t K = 0, V = 0;
  std::int64_t tokens = 0;
};

// What will run.
struct ResolvedForm {
  Form form = Form::chunk;  // never automatic
  int tokens = 0;           // of a chunk or a block; 1: token by token
};
// Measured: long chunks save few states for the backward and fill the matrix products; a forward that saves nothing and
// computes in float32 is fastest on the CPU as the blocked recurrence, which has the least arithmetic. So automatic is
// chunks of 64, but the blocked recurrence for a forward on the CPU for which neither a chunk length, chunk_states nor
// bfloat16 products are asked for. A GPU has chunks of 64.
[[nodiscard]] ResolvedForm resolve(const Device& device, const RecurrenceForward& args);
[[nodiscard]] ResolvedForm resolve(const Device& device, const RecurrenceBackward& args);

// Check every argument and run.
void recurrence_forward(const Device& device, const RecurrenceForward& args, Workspace& workspace);
void recurrence_backward(const Device& device, const RecurrenceBackward& args, Workspace& workspace);
void recurrence_step(const Device& device, const RecurrenceStep& args, Workspace& workspace);
void recurrence_settle(const Device& device, const RecurrenceSettle& args);
void recurrence_undo(const Device& device, const RecurrenceUndo& args);
// The bytes that they ask the workspace for.
[[nodiscard]] std::size_t recurrence_workspace(const Device& device, const RecurrenceForward& args);
[[nodiscard]] std::size_t recurrence_workspace(const Device& device, const RecurrenceBackward& args);
[[nodiscard]] std::size_t recurrence_workspace(const Device& device, const RecurrenceStep& args);

// The number of chunks of all sequences together: the first extent of chunk_states.
[[nodiscard]] std::int64_t recurrence_chunk_count(const RecurrenceInputs& in, const Execution& run);
// What a forward can save for its backward beside the states, for so many chunks of all value heads together, each V
// wide. Nothing on the CPU.
[[nodiscard]] std::size_t recurrence_saved_bytes(const Device& device, Rule rule, std::int64_t chunks, std::int64_t V);

// Floating-point operations per token and head of the chunk form (multiply and add count as two).
[[nodiscard]] constexpr double chunk_forward_flop(double K, double V, double C) { return 6 * K * V + 4 * C * (K + V); }
[[nodiscard]] constexpr double chunk_backward_flop(double K, double V, double C) {
  return 14 * K * V + 10 * C * V + 12 * C * K;
}

}  // namespace qdelta
