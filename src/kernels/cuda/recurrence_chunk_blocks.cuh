// Chunk matrices in blocks of 16 x 16, one for each warp's tokens and each k16 step, as operands of products: split
// into parts that add up to them (operand_parts).
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"
#include "kernels/cuda/tensor_copy.cuh"

namespace qdelta::cuda {

inline constexpr int kBlock = 16;
inline constexpr int kBlocks = kChunk / kBlock;  // in a row, or a column

// A block of sums as A operands.
template <class E>
struct SplitBlock {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  FragmentA<E> parts[kParts]{};
};
template <class E>
__device__ inline SplitBlock<E> split_block(const Accumulator& left, const Accumulator& right) {
  SplitBlock<E> block;
  block.parts[0] = to_fragment_a<E>(left, right);
  if constexpr (SplitBlock<E>::kParts == 2) {
    Accumulator low[2] = {left, right};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Accumulator rounded = to_accumulator(block.parts[0], half);
#pragma unroll
      for (int i = 0; i < 4; ++i) low[half].x[i] -= rounded.x[i];
    }
    block.parts[1] = to_fragment_a<E>(low[0], low[1]);
  }
  return block;
}

// A chunk matrix in shared memory, all parts of it, as it is in the workspace.
template <class E>
struct BlockMatrix {
  static constexpr int kParts = SplitBlock<E>::kParts;
  static constexpr int kBytes = kParts * static_cast<int>(kChunkMatrix * sizeof(E));
  using Part = Tile<E, kChunk, kChunk>;
  E* data;

  [[nodiscard]] __device__ Part part(int index) const { return {data + index * kChunkMatrix}; }
  [[nodiscard]] static __device__ E* in_workspace(void* matrices, int slot) {
    return static_cast<E*>(matrices) + std::int64_t{slot} * (kParts * kChunkMatrix);
  }
  // Block n of row m of blocks.
  __device__ void set(int m, int n, const SplitBlock<E>& block, const Lane& lane) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) store_a(part(i), kBlock * m, kBlock * n, block.parts[i], lane);
  }
  // Zeros in the blocks of row m behind the diagonal.
  __device__ void clear_upper(int m, const Lane& lane) const {
#pragma unroll
    for (int n = 1; n < kBlocks; ++n) {
      if (n > m) set(m, n, {}, lane);
    }
  }
  [[nodiscard]] __device__ SplitBlock<E> get(int m, int n, const Lane& lane) const {
    SplitBlock<E> block;
#pragma unroll
    for (int i = 0; i < kParts; ++i) block.parts[i] = load_a(part(i), kBlock * m, kBlock * n, lane);
    return block;
  }
};

// sum += a B(m, n) by one warp. Of split operands the product of the low parts is left out, here and below.
template <class E>
__device__ inline void mma_block(Accumulator (&sum)[2], const SplitBlock<E>& a, const BlockMatrix<E>& B, int m, int n,
                                 const Lane& lane) {
  const FragmentBPair<E> high = load_b_transposed(B.part(0), kBlock * m, kBlock * n, lane);
  if constexpr (SplitBlock<E>::kParts == 2) {
    mma(sum[0], sum[1], a.parts[1], high);
    mma(sum[0], sum[1], a.parts[0], load_b_transposed(B.part(1), kBlock * m, kBlock * n, lane));
  }
  mma(sum[0], sum[1], a.parts[0], high);
}
// sum += a B, a row of blocks of each warp: all of them together.
template <class E>
__device__ inline void mma_blocks(Accumulator (&sum)[kChunk / 8], const SplitBlock<E> (&a)[kBlocks],
                                  const BlockMatrix<E>& B, const Lane& lane) {
  mma_fence<E>(sum);
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    if constexpr (SplitBlock<E>::kParts == 2) {
      tile_mma<kChunk, true>(sum, a[k].parts[1], B.part(0), kBlock * k, 0, lane);
      tile_mma<kChunk, true>(sum, a[k].parts[0], B.part(1), kBlock * k, 0, lane);
    }
    tile_mma<kChunk, true>(sum, a[k].parts[0], B.part(0), kBlock * k, 0, lane);
  }
  mma_commit_and_wait<E>(sum);
}

// A warp's row of blocks to the workspace, which other threads of the warp may have written; before the memory is used
// for anything else, `wait_for_row` must be called by the warp.
template <class E>
__device__ inline void store_row(void* matrices, int slot, const BlockMatrix<E>& matrix, int warp, const Lane& lane) {
  // In both operand types a matrix is two panels of 128 bytes a row, in which the warp's rows lie together.
  constexpr int kPanel = BlockMatrix<E>::Part::kPanel;
  constexpr int kRowBytes = kBlock * 128;
  static_assert(BlockMatrix<E>::kParts * kChunk == 2 * kPanel);
  E* const to = BlockMatrix<E>::in_workspace(matrices, slot) + kBlock * warp * kPanel;
  const E* const from = matrix.data + kBlock * warp * kPanel;
  fence_async_proxy();
  __syncwarp();
  if constexpr (kHasWgmma) {
    if (lane.index < 2) store_bytes(to + lane.index * kChunk * kPanel, from + lane.index * kChunk * kPanel, kRowBytes);
    __syncwarp();  // instructions of whole warps may follow
  } else {
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
      const int first = panel * kChunk * kPanel;
      for (int i = lane.index; i < kRowBytes / 16; i += 32)
        store_vector(reinterpret_cast<uint4*>(to + first) + i, reinterpret_cast<const uint4*>(from + first)[i]);
    }
  }
}
__device__ inline void wait_for_row() {
  if constexpr (kHasWgmma) wait_for_stores();
  __syncwarp();
}

}  // namespace qdelta::cuda
