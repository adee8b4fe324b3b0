// The map of a range of tokens. The recurrence is linear in its state, so whatever state S_in a range of tokens of a
// sequence and value head begins with, it ends with
//
//   S_out = M S_in + N          M [K][K]: the product over its tokens, the last one leftmost, of exp(g) (I - erase k
//   x^T)
//                               N [K][V]: what it leaves of S_in = 0;  x = k + mix q
//
// and the gradient goes back through it by
//
//   dS_in = M^T dS_out + dN     dN [K][V]: what the range's own outputs send to S_in, the sum over its tokens of
//                               scale exp(g_1 + ...) (the transposed map up to the token) q dO^T; no v, no state
//
// The size of none of them depends on the length of the range. Where a sequence is cut into parts, each part computes
// its map for itself, at the same time as the others; the states at the cuts are then a product away from each other,
// and the recurrence runs from the true ones (h0, ht and d_ht of recurrence.h).
//
// They are float32, and so is what they are computed with, but on a GPU, whose operands are those of its recurrence
// (kernels/cuda/recurrence_chunk.h). Arguments are those of recurrence.h; sequences may be packed. On a GPU m, n, dn
// and the views of a product are contiguous.
#pragma once

#include "kernels/recurrence.h"

namespace qdelta {

struct RecurrenceMap {
  RecurrenceInputs in;  // h0 is not read
  TensorView m;         // [N, HV, K, K]  f32; optional
  TensorView n;         // [N, HV, K, V]  f32; optional
};

struct RecurrenceEntryGradient {
  RecurrenceInputs in;  // neither v nor h0 is read, but the shape of v
  ConstTensorView d_o;  // [B, T, HV, V]
  TensorView dn;        // [N, HV, K, V]  f32
};

// out = M state + add, or with `transposed` M^T state + add.
struct RecurrenceMapProduct {
  ConstTensorView m;      // [N, HV, K, K]  f32, like all of them
  ConstTensorView state;  // [N, HV, K, V]
  ConstTensorView add;    // [N, HV, K, V]; missing: zeros
  TensorView out;         // [N, HV, K, V]; may be `add`, not `state`
  bool transposed = false;
};

// Check every argument and run.
void recurrence_map(const Device& device, const RecurrenceMap& args, Workspace& workspace);
void recurrence_entry_gradient(const Device& device, const RecurrenceEntryGradient& args, Workspace& workspace);
void recurrence_map_product(const Device& device, const RecurrenceMapProduct& args, Workspace& workspace);
// The bytes that they ask the workspace for.
[[nodiscard]] std::size_t recurrence_workspace(const Device& device, const RecurrenceMap& args);
[[nodiscard]] std::size_t recurrence_workspace(const Device& device, const RecurrenceEntryGradient& args);
[[nodiscard]] std::size_t recurrence_workspace(const Device& device, const RecurrenceMapProduct& args);

}  // namespace qdelta
