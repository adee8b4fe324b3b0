// The chunkwise recurrence on the GPU, for every rule. The contracts are those of recurrence.h, with these differences:
//
// - All views and the workspace are device memory; cu_seqlens stays on the host. Everything is queued on the context's
//   stream and nothing waits: a call can be captured in a graph, which carries cu_seqlens with it.
// - The last axis of q, k, v, o, d_o, of the states and of their gradients is contiguous. Other strides are free.
// - Chunks have 64 tokens: run.chunk is 0 or 64.
// - chunk_states may be bf16.
// - K is at most 256.
// - What is saved for the backward are the matrices and factors of the chunks (recurrence_chunk_prepare.cu). Where q, k
//   and v are bf16 and d_o is not, the backward has no use for it.
//
// Few long sequences are split into segments that are scanned in parallel (recurrence_chunk_segments.cu), exactly: what
// a segment does to a state is linear. The number of segments depends on the shape and the GPU alone.
//
// Where q, k, v (and d_o) are all bf16 and the rows are normalised, the operands of matrix products are bf16 and
// everything else is float32; otherwise products are those of float32. Sums have a fixed order: equal inputs give equal
// bits.
#pragma once

#include <cstddef>
#include <vector>

#include "core/memory.h"
#include "kernels/cuda/context.h"
#include "kernels/recurrence_map.h"

namespace qdelta::cuda {

// Each checks its arguments once and lays out the memory it asks the workspace for once.
void recurrence_chunk_forward(const Context& context, const RecurrenceForward& args, Workspace& workspace);
void recurrence_chunk_backward(const Context& context, const RecurrenceBackward& args, Workspace& workspace);

// The bytes that they ask the workspace for; checks the arguments as well.
[[nodiscard]] std::size_t recurrence_chunk_workspace(const Context& context, const RecurrenceForward& args);
[[nodiscard]] std::size_t recurrence_chunk_workspace(const Context& context, const RecurrenceBackward& args);
[[nodiscard]] std::size_t recurrence_chunk_saved_bytes(Rule rule, std::int64_t chunks, std::int64_t V);

// For recurrence_map.cpp: what every segment does to a state, S_out = M S_in + N and dS_in = M^T dS_out + dN.
struct MapsOfSegments {
  std::vector<std::int64_t> first;  // sequence n has the segments [first[n], first[n + 1])
  float* M = nullptr;               // [segments][HV][K][K]; only what the maps of whole sequences are made of
  float* N = nullptr;               // [segments][HV][K][V]; or dN
};
// In memory from `memory`; where that only counts, nothing runs.
[[nodiscard]] MapsOfSegments recurrence_chunk_maps(const Context& context, const RecurrenceMap& args,
                                                   BumpAllocator& memory);
[[nodiscard]] MapsOfSegments recurrence_chunk_maps(const Context& context, const RecurrenceEntryGradient& args,
                                                   BumpAllocator& memory);

}  // namespace qdelta::cuda
