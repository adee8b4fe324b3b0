// The chunkwise kernels of the CPU, and the plan that divides their work among threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/memory.h"
#include "kernels/recurrence.h"
#include "kernels/recurrence_layout.h"

namespace qdelta::cpu {

void recurrence_chunk_forward(const Device& device, const RecurrenceForward& args, std::span<std::byte> workspace);
void recurrence_chunk_backward(const Device& device, const RecurrenceBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t recurrence_chunk_workspace(const Device& device, const RecurrenceForward& args);
[[nodiscard]] std::size_t recurrence_chunk_workspace(const Device& device, const RecurrenceBackward& args);

// Packed rows are padded by one vector beyond their width, so that rows a power of two wide do not all compete for the
// same few lines of the first-level cache.
inline constexpr std::int64_t kVectorPad = 16;
// Value columns are worked on in groups of this many. Sums over V are taken group by group in order, so they come out
// the same whether one thread does all the groups of a head or each group has a thread of its own.
inline constexpr std::int64_t kColumnGroup = 64;
inline constexpr std::int64_t kColumnGroupStride = kColumnGroup + kVectorPad;

// Whether the large products are to round their operands to bfloat16.
[[nodiscard]] bool wants_bf16_products(const RecurrenceInputs& in, const Execution& run);

struct ChunkPlan {
  RecurrenceLayout at;
  std::int64_t C;        // chunk length
  std::int64_t Kp, ldk;  // K padded, and the stride of rows of K
  std::int64_t ldc;      // the stride of rows of C
  std::int64_t groups;   // of value columns
  int threads;
  bool split;          // units are single groups, because there are too few heads to occupy the threads
  bool bf16_products;  // wants_bf16_products

  // With chunks of run.chunk tokens, which is not 0.
  ChunkPlan(const Device& device, const RecurrenceInputs& in, const Execution& run);
  // Bytes for the packed operands of the largest product.
  [[nodiscard]] std::int64_t packing_bytes() const;
  [[nodiscard]] std::int64_t units() const { return at.N * at.HV * (split ? groups : 1); }
  [[nodiscard]] std::int64_t width(std::int64_t group) const {
    return std::min(kColumnGroup, at.V - group * kColumnGroup);
  }
  [[nodiscard]] std::int64_t padded_width(std::int64_t group) const { return round_up(width(group), kVectorPad); }
};

// What one thread works on: all chunks of a head of a sequence, for some of its column groups.
struct ChunkUnit {
  std::int64_t sequence, head, group_begin, group_end;
};
[[nodiscard]] ChunkUnit unit_of(const ChunkPlan& plan, std::int64_t index);

// Everything about a chunk that does not involve v: made once per chunk, used by all column groups. Rows beyond the
// chunk's tokens are identity tokens (zero vectors, no decay), which change nothing.
struct PreparedChunk {
  std::int64_t rows = 0, padded = 0;  // tokens, and rounded up to kVectorPad
  float* q = nullptr;                 // [2C][ldk]: the rows of q, then from row `padded` on those of x = k + mix q
  float* k = nullptr;                 // [C][ldk]
  float* kt = nullptr;                // [Kp][ldc]: k transposed
  float* products = nullptr;          // [2C][ldc]: scratch for q k^T and x k^T
  float* gamma = nullptr;             // [C][ldc]: decay from token i to token r, lower triangle
  float* attend = nullptr;            // [C][ldc]: lower(scale Gamma . Q K^T)
  float* read = nullptr;              // [C][ldc]: strictLower(Gamma . X K^T)
  float* correct = nullptr;           // [C][ldc]: -diag(erase) read, which is -A of the formulas
  float* decay = nullptr;             // [C]: from the entry of the chunk to token r
  float *erase = nullptr, *mix = nullptr, *write = nullptr;  // [C]
  float *q_inverse_norm = nullptr, *k_inverse_norm = nullptr;
  RuleInputs<float>* rule_in = nullptr;

  PreparedChunk(const ChunkPlan& plan, BumpAllocator& memory);
  [[nodiscard]] float* x(std::int64_t ldk) const { return q + padded * ldk; }
};

struct ForwardScratch {
  PreparedChunk chunk;
  float* state;  // [groups][Kp][kColumnGroupStride]
  float* reads;  // [2C][kColumnGroupStride]: Q S, then X S
  float* v_new;  // [C][kColumnGroupStride]: V'
  std::byte* packing;

  ForwardScratch(const ChunkPlan& plan, BumpAllocator& memory);
};

// Sums over value columns that the gradients of q, k and the gates need.
struct ChunkSums {
  float* q_and_x;         // [2C][ldk]: dO S^T, then from row `padded` on dR S^T
  float* k;               // [C][ldk]:  V' dS^T
  float* attend;          // [2C][ldc]: lower dO V'^T, then from row `padded` on lower dR V'^T
  float* write;           // [C]:       rowsum(dR . V)
  float* state;           // [1]:       sum(S . dS)
  std::int64_t size = 0;  // floats in all, from q_and_x on

  ChunkSums(const ChunkPlan& plan, BumpAllocator& memory);
};

struct BackwardScratch {
  PreparedChunk chunk;
  ChunkSums sums;
  float* d_state;              // [groups][Kp][kColumnGroupStride]
  float* state;                // [Kp][kColumnGroupStride]
  float *state_t, *d_state_t;  // [kColumnGroup][ldk]
  float* values;               // [C][kColumnGroupStride]: V
  float* v_new;                // [C][kColumnGroupStride]: V'
  float* v_new_t;              // [kColumnGroup][ldc]
  float* d_out;                // [2C][kColumnGroupStride]: dO, then from row `padded` on dR
  float* column_sums;          // [C]
  std::byte* packing;          // for operands of bfloat16 products

  BackwardScratch(const ChunkPlan& plan, BumpAllocator& memory);
};

// Where the pieces of the backward's workspace lie.
struct BackwardMemory {
  TensorView chunk_states;  // [chunks, HV, K, V] where the caller gave none
  float* sums = nullptr;    // [chunks][HV][groups][ChunkSums] where split
  std::int64_t sums_size = 0;
  TensorView dq_heads, dk_heads;  // [B, T, HV, K] float where several value heads share a query/key head
  std::byte* scratch = nullptr;   // one BackwardScratch per thread
  std::size_t scratch_bytes = 0;
  std::size_t total = 0;

  BackwardMemory(const ChunkPlan& plan, const RecurrenceBackward& args, std::byte* base);
};

}  // namespace qdelta::cpu
