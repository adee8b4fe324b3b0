// What the threads of recurrence_chunk_gradients.cu share, and who of them does what.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda::gradients {

// Three groups of four warps, each with one of the sums over all keys of the 64 tokens in registers, 16 tokens to a
// warp.
inline constexpr int kThreads = 384;
inline constexpr int kGroupThreads = 128;
enum Role : int { kOfQueries, kOfReads, kOfKeys };  // dQ and dO V'^T; dX and dR V'^T; dK
inline constexpr int kStride = kChunk + 1;          // of a float matrix, read by columns
inline constexpr int kTokenSums = kChunk / 8;

// Sums over the keys of a token.
enum RowSum : int {
  kOfToEnd,    // K . Gamma_C V' dS+^T
  kOfReadOut,  // Q . scale gamma dO S^T
  kOfRead,     // X . -gamma dR S^T, which goes to erase
  kOfCorrect,  // rowsum(read . dA), likewise
  kOfMix,      // dX . Q
  kRowSums
};

struct GradientSums {
  alignas(16) float factors[kFactors][kChunk];
  float rows[kRowSums][kChunk];
  float write[kChunk];      // dwrite
  float decay[kChunk];      // dg of the decays inside the chunk
  float key_extra[kChunk];  // what the rule adds to dK of K itself
  float state_sum;          // sum(S . dS+)
};

// The tiles of one block of value columns.
template <class E, int kKeys>
struct ColumnTiles {
  Tile<E, kKeys, kColumns> state, d_state;
  Tile<E, kChunk, kColumns> d_out, d_residual, fresh;
  Tile<E, kChunk, kColumns> d_residual_rest, fresh_rest;  // the second parts, of bf16
  static constexpr int kElements = (2 * kKeys + (1 + 2 * matrix_parts(kIsBf16<E>)) * kChunk) * kColumns;

  __device__ explicit ColumnTiles(unsigned char* memory) {
    state.data = reinterpret_cast<E*>(memory);
    d_state.data = state.data + state.kElements;
    d_out.data = d_state.data + d_state.kElements;
    d_residual.data = d_out.data + d_out.kElements;
    fresh.data = d_residual.data + d_residual.kElements;
    d_residual_rest.data = fresh.data + fresh.kElements;
    fresh_rest.data = d_residual_rest.data + d_residual_rest.kElements;
  }
};

// What follows the sums over columns. Before the matrices of the backward are made, those of the forward lie in their
// place. dX and `along` lie where the column tiles were, of which kStages are in flight.
template <class E, int kKeys, int kStages>
struct ChunkTiles {
  using Matrix = Tile<E, kChunk, kChunk>;
  float* dx;     // [kChunk][kKeys], by the threads of a group
  float* along;  // [kChunk][kStride]
  Tile<E, kChunk, kKeys> q, k;
  Matrix dq_from_keys;   // D1 / |k_i|; first the upper half of attend
  Matrix dk_from_dq;     // D1 / |q_r|; first the lower half of attend
  Matrix dx_from_keys;   // D2 / |k_i|; first the upper half of read
  Matrix dk_from_mixed;  // diag(mix) D2 / |q_r|; first the lower half of read
  Matrix dk_from_keys;   // D2 / |k_r|
  static constexpr int kElementSize = static_cast<int>(sizeof(E));
  static constexpr int kColumnBytes = kStages * ColumnTiles<E, kKeys>::kElements * kElementSize;
  static constexpr int kBytes = kColumnBytes + (2 * kChunk * kKeys + 5 * static_cast<int>(kMatrix)) * kElementSize;
  static_assert(4 * kChunk * (kKeys + kStride) <= kColumnBytes);

  __device__ explicit ChunkTiles(unsigned char* memory) {
    dx = reinterpret_cast<float*>(memory);
    along = dx + kChunk * kKeys;
    q.data = reinterpret_cast<E*>(memory + kColumnBytes);
    k.data = q.data + q.kElements;
    dq_from_keys.data = k.data + k.kElements;
    dk_from_dq.data = dq_from_keys.data + kMatrix;
    dx_from_keys.data = dk_from_dq.data + kMatrix;
    dk_from_mixed.data = dx_from_keys.data + kMatrix;
    dk_from_keys.data = dk_from_mixed.data + kMatrix;
  }
};

struct Block {
  Lane lane;
  int thread, role, rows;  // the thread of its group; the first of the warp's 16 tokens
  std::int64_t slot, chunk;
  int head, q_head;
  ChunkPlace place;

  __device__ explicit Block(const GradientsArgs& a)
      : thread(static_cast<int>(threadIdx.x) % kGroupThreads),
        role(static_cast<int>(threadIdx.x) / kGroupThreads),
        rows(thread / 32 * 16),
        slot(blockIdx.x),
        chunk(slot / a.dims.value_heads),
        head(static_cast<int>(slot % a.dims.value_heads)),
        q_head(head / a.dims.shared),
        place(place_of(a.chunks, chunk)) {}

  // The two tokens of which this lane has sums.
  [[nodiscard]] __device__ int row(int half) const { return rows + 8 * half + lane.group; }
  // The token of which a thread of the queries or keys has a part of dwrite.
  [[nodiscard]] __device__ int written_row() const { return (role == kOfKeys ? kChunk / 2 : 0) + thread / 4; }
};

}  // namespace qdelta::cuda::gradients
