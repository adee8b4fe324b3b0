// T = (I + A)^-1 for the strictly lower triangular A of a chunk, in float32: forward substitution for the 16 x 16
// blocks on the diagonal, then twice
//
//   [I + A1,      0]^-1   [         T1,  0]
//   [   A21, I + A2]    = [-T2 A21 T1,  T2]
#pragma once

#include "kernels/cuda/matrix_tile.cuh"
#include "kernels/cuda/recurrence_chunk_args.h"

namespace qdelta::cuda {

// Row stride of a float matrix: eight rows fall into different banks.
inline constexpr int kStride = kChunk + 4;

// The inverses of the four blocks on the diagonal, a column for each of the first 64 threads.
__device__ inline void invert_diagonal_blocks(const float* A, float* T) {
  const int block = static_cast<int>(threadIdx.x) / 16 * 16;
  const int column = static_cast<int>(threadIdx.x) % 16;
  float x[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const float* row = A + (block + r) * kStride + block;
    float value = r == column ? 1.0F : 0.0F;
#pragma unroll
    for (int i = 0; i < r; i += 4) {
      const float4 a = *reinterpret_cast<const float4*>(row + i);
      value -= a.x * x[i];
      if (i + 1 < r) value -= a.y * x[i + 1];
      if (i + 2 < r) value -= a.z * x[i + 2];
      if (i + 3 < r) value -= a.w * x[i + 3];
    }
    x[r] = value;
    T[(block + r) * kStride + block + column] = value;
  }
}

// A view of a float matrix of row stride kStride, as operands of products.
struct SquareTile {
  float* data;
  [[nodiscard]] __device__ float* at(int row, int column) const { return data + row * kStride + column; }
  [[nodiscard]] __device__ SquareTile block(int row, int column) const { return {at(row, column)}; }
};

// A[m][k] of 16 x 16 elements.
__device__ inline FragmentA<float> load_a(const SquareTile& from, const Lane& lane) {
  FragmentA<float> a;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const float2 upper = *reinterpret_cast<const float2*>(from.at(lane.row(0), lane.pair(s)));
    const float2 lower = *reinterpret_cast<const float2*>(from.at(lane.row(1), lane.pair(s)));
    a.x[s][0] = upper.x, a.x[s][1] = lower.x, a.x[s][2] = upper.y, a.x[s][3] = lower.y;
  }
  return a;
}
// B[k][n] of 16 x 8 elements.
__device__ inline FragmentB<float> load_b(const SquareTile& from, const Lane& lane) {
  FragmentB<float> b;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < 2; ++i) b.x[s][i] = *from.at(lane.pair(s) + i, lane.row(0));
  }
  return b;
}
__device__ inline void store(const SquareTile& to, const Accumulator& acc, float sign, const Lane& lane) {
  *reinterpret_cast<float2*>(to.at(lane.row(0), lane.pair(0))) = {sign * acc.x[0], sign * acc.x[1]};
  *reinterpret_cast<float2*>(to.at(lane.row(1), lane.pair(0))) = {sign * acc.x[2], sign * acc.x[3]};
}

// Eight columns of out = sign left right by one warp, for matrices of kBlocks x kBlocks blocks of 16 x 16. Blocks of
// `right` above row block `first` are zero, and those of a lower triangular `left` above its diagonal; neither is read.
template <int kBlocks, bool kLeftIsLower>
__device__ inline void matmul_columns(float sign, const SquareTile& left, const SquareTile& right, int first,
                                      const SquareTile& out, const Lane& lane) {
  FragmentB<float> b[kBlocks]{};
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    if (k >= first) b[k] = load_b(right.block(16 * k, 0), lane);
  }
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    Accumulator acc;
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      if (k >= first && (!kLeftIsLower || k <= m)) mma(acc, load_a(left.block(16 * m, 16 * k), lane), b[k]);
    }
    store(out.block(16 * m, 0), acc, sign, lane);
  }
}

// T21 = -T2 A21 T1, the lower left of the inverse of [I + A1, 0; A21, I + A2], in squares of 16 kBlocks. A warp has
// eight columns of it, for which it needs nothing from other warps; the first product goes through `scratch`.
template <int kBlocks>
__device__ inline void merge_inverses(const SquareTile& A, const SquareTile& T, const SquareTile& scratch, int at,
                                      int column, const Lane& lane) {
  constexpr int kSize = 16 * kBlocks;
  const SquareTile here = scratch.block(at, at + kSize + column);
  matmul_columns<kBlocks, false>(1.0F, A.block(at + kSize, at), T.block(at, at + column), column / 16, here, lane);
  __syncwarp();
  matmul_columns<kBlocks, true>(-1.0F, T.block(at + kSize, at + kSize), here, 0, T.block(at + kSize, at + column),
                                lane);
}

// By the 128 threads of a block. Products are of three tf32 products each. Of A what is on the diagonal and above it is
// not read; the blocks above the diagonal are scratch.
__device__ inline void invert_unit_lower(float* A, float* T, int warp, const Lane& lane) {
  if (threadIdx.x < kChunk) invert_diagonal_blocks(A, T);
  __syncthreads();
  merge_inverses<1>({A}, {T}, {A}, warp / 2 * 32, warp % 2 * 8, lane);
  __syncthreads();
  merge_inverses<2>({A}, {T}, {A}, 0, 8 * warp, lane);
  __syncthreads();
}

}  // namespace qdelta::cuda
