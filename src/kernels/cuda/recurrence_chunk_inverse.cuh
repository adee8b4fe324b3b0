// T = (I + A)^-1 for the strictly lower triangular A of a chunk, in blocks of 16 x 16: substitution in float32 for
// those on the diagonal, then twice
//
//   [I + A1,      0]^-1   [         T1,  0]
//   [   A21, I + A2]    = [-T2 A21 T1,  T2]
//
// in products of split operands with float32 sums. Warp w has row w of the blocks of A and T.
#pragma once

#include "kernels/cuda/recurrence_chunk_blocks.cuh"

namespace qdelta::cuda {

// The blocks of A on the diagonal, transposed: columns[b][i] is column i of block b, of which what is above the
// diagonal of A or on it is not read. In rows of so many floats that a warp's stores fall into different banks.
struct DiagonalBlocks {
  alignas(16) float columns[kBlocks][kBlock][kBlock + 4];

  __device__ void set(int block, const Accumulator* A, const Lane& lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) columns[block][lane.pair(j) + i % 2][lane.row(i / 2)] = A[j].x[i];
    }
  }
};

// 16 elements of a row, split, to a block of T.
__device__ inline void set_row(const BlockMatrix<bf16>& T, int row, int column, const float (&x)[kBlock]) {
#pragma unroll
  for (int vector = 0; vector < 2; ++vector) {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = x[8 * vector + 2 * i];
      const float second = x[8 * vector + 2 * i + 1];
      high[i] = pack_bf16x2(first, second);
      low[i] = pack_bf16x2(first - low_half(high[i]), second - high_half(high[i]));
    }
    *reinterpret_cast<uint4*>(T.part(0).at(row, column + 8 * vector)) = {high[0], high[1], high[2], high[3]};
    *reinterpret_cast<uint4*>(T.part(1).at(row, column + 8 * vector)) = {low[0], low[1], low[2], low[3]};
  }
}
__device__ inline void set_row(const BlockMatrix<float>& T, int row, int column, const float (&x)[kBlock]) {
#pragma unroll
  for (int i = 0; i < kBlock; i += 4)
    *reinterpret_cast<float4*>(T.part(0).at(row, column + i)) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
}

// The warp's block on the diagonal, a row for each lane of half a warp: T (I + A) = I, from the last column on.
template <class E>
__device__ inline void invert_diagonal_block(const DiagonalBlocks& A, const BlockMatrix<E>& T, int warp,
                                             const Lane& lane) {
  const int row = lane.index % kBlock;
  float x[kBlock];
#pragma unroll
  for (int c = kBlock - 1; c >= 0; --c) {
    float a[kBlock];
#pragma unroll
    for (int i = (c + 1) / 4 * 4; i < kBlock; i += 4) {
      const float4 of_column = *reinterpret_cast<const float4*>(&A.columns[warp][c][i]);
      a[i] = of_column.x, a[i + 1] = of_column.y, a[i + 2] = of_column.z, a[i + 3] = of_column.w;
    }
    x[c] = c == row ? 1.0F : 0.0F;
#pragma unroll
    for (int i = kBlock - 1; i > c; --i) x[c] -= x[i] * a[i];
  }
  if (lane.index < kBlock) set_row(T, kBlock * warp + row, kBlock * warp, x);
  __syncwarp();  // instructions of whole warps may follow
}

// T(m, n) = -sum over j < middle <= k of T(m, k) A(k, j) T(j, n): block (m, n) of -T2 A21 T1, where 2 begins with row
// `middle` of the blocks. By one warp.
template <class E>
__device__ inline void merge_block(const BlockMatrix<E>& A, const BlockMatrix<E>& T, int m, int n, int middle,
                                   const Lane& lane) {
  Accumulator product[2];
#pragma unroll 1
  for (int j = n; j < middle; ++j) {
    Accumulator sum[2];
#pragma unroll 1
    for (int k = middle; k <= m; ++k) mma_block(sum, T.get(m, k, lane), A, k, j, lane);
    mma_block(product, split_block<E>(sum[0], sum[1]), T, j, n, lane);
  }
#pragma unroll
  for (Accumulator& acc : product) {
#pragma unroll
    for (float& x : acc.x) x = -x;
  }
  T.set(m, n, split_block<E>(product[0], product[1]), lane);
}

// By the four warps of a block, each of which has written its rows of A: below the diagonal to `A`, on it to
// `diagonal`. All of T is written; barriers come before it is read by other warps.
template <class E>
__device__ inline void invert_unit_lower(const BlockMatrix<E>& A, const DiagonalBlocks& diagonal,
                                         const BlockMatrix<E>& T, int warp, const Lane& lane) {
  __syncwarp();
  invert_diagonal_block(diagonal, T, warp, lane);
  T.clear_upper(warp, lane);
  __syncthreads();
  if (warp % 2 == 1) merge_block(A, T, warp, warp - 1, warp, lane);
  __syncthreads();
  merge_block(A, T, 2 + warp / 2, warp % 2, 2, lane);
}

}  // namespace qdelta::cuda
