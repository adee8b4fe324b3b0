// What the kernels of the chunkwise recurrence share: where chunks are, how their rows come into shared memory, and the
// strips of value columns that the scans work on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matrix_tile.cuh"
#include "kernels/cuda/recurrence_chunk_args.h"

namespace qdelta::cuda {

// ---------------------------------------------------------------------------------------------------------------------
// Chunks.

struct ChunkPlace {
  std::int64_t batch, first;  // the first token, in its row of the batch
  int rows;                   // tokens
};

__device__ inline std::int64_t first_chunk(const Chunks& chunks, std::int64_t sequence) {
  return chunks.offsets == nullptr ? sequence * chunks.per_sequence : chunks.first[sequence];
}
__device__ inline std::int64_t chunk_count(const Chunks& chunks, std::int64_t sequence) {
  return chunks.offsets == nullptr ? chunks.per_sequence : chunks.first[sequence + 1] - chunks.first[sequence];
}

__device__ inline std::int64_t sequence_of(const Chunks& chunks, std::int64_t chunk) {
  return chunks.offsets == nullptr ? chunk / chunks.per_sequence : chunks.owner[chunk];
}
// Of a chunk of a sequence that is known, which saves the division.
__device__ inline ChunkPlace place_of(const Chunks& chunks, std::int64_t chunk, std::int64_t sequence) {
  ChunkPlace place;
  std::int64_t end;
  if (chunks.offsets == nullptr) {
    place.batch = sequence;
    place.first = (chunk - sequence * chunks.per_sequence) * kChunk;
    end = chunks.tokens;
  } else {
    place.batch = 0;
    place.first = chunks.offsets[sequence] + (chunk - chunks.first[sequence]) * kChunk;
    end = chunks.offsets[sequence + 1];
  }
  place.rows = static_cast<int>(end - place.first < kChunk ? end - place.first : kChunk);
  return place;
}
__device__ inline ChunkPlace place_of(const Chunks& chunks, std::int64_t chunk) {
  return place_of(chunks, chunk, sequence_of(chunks, chunk));
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrices in device memory.

template <class Byte>
struct MatrixOf {
  Byte* data;
  std::int64_t stride;  // between rows, in elements
  bool bf16, vectors;

  __device__ Byte* at(std::int64_t row, std::int64_t column) const {
    return data + (row * stride + column) * (bf16 ? 2 : 4);
  }
  __device__ float get(std::int64_t row, std::int64_t column) const {
    return bf16 ? __bfloat162float(*reinterpret_cast<const ::__nv_bfloat16*>(at(row, column)))
                : *reinterpret_cast<const float*>(at(row, column));
  }
  // From a later row on.
  __device__ MatrixOf below(int row) const { return {at(row, 0), stride, bf16, vectors}; }
  // Goes on to a later row (or an earlier one), to a later column.
  __device__ void skip_rows(int rows) { data = at(rows, 0); }
  __device__ void skip_columns(int columns) { data = at(0, columns); }
  __device__ void set(std::int64_t row, std::int64_t column, float value) const {
    if (bf16) {
      *reinterpret_cast<::__nv_bfloat16*>(at(row, column)) = __float2bfloat16_rn(value);
    } else {
      *reinterpret_cast<float*>(at(row, column)) = value;
    }
  }
};
using MatrixIn = MatrixOf<const std::byte>;
using MatrixOut = MatrixOf<std::byte>;

// Without a branch, so that many may be under way; get and set are for single values. What is read nobody may write
// meanwhile; where it is not valid, zeros. An element, eight bytes, sixteen.
template <class E>
__device__ inline float load_element(const void* from, bool valid) {
  if constexpr (kIsBf16<E>) {
    std::uint16_t bits;
    asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; mov.b16 %0, 0; @valid ld.global.b16 %0, [%1]; }"
                 : "=&h"(bits)
                 : "l"(from), "r"(valid ? 1 : 0));
    return low_half(bits);
  } else {
    float value;
    asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; mov.b32 %0, 0; @valid ld.global.b32 %0, [%1]; }"
                 : "=&f"(value)
                 : "l"(from), "r"(valid ? 1 : 0));
    return value;
  }
}
template <class E>
__device__ inline void store_element(void* to, float value, bool valid) {
  if constexpr (kIsBf16<E>) {
    const auto bits = static_cast<std::uint16_t>(pack(value, 0.0F));
    asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; @valid st.global.b16 [%0], %1; }" ::"l"(to), "h"(bits),
                 "r"(valid ? 1 : 0)
                 : "memory");
  } else {
    asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; @valid st.global.b32 [%0], %1; }" ::"l"(to), "f"(value),
                 "r"(valid ? 1 : 0)
                 : "memory");
  }
}

__device__ inline uint2 load_pairs(const void* from, bool valid) {
  uint2 pairs;
  asm volatile(
      "{ .reg .pred valid; setp.ne.b32 valid, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
      "@valid ld.global.v2.b32 {%0, %1}, [%2]; }"
      : "=&r"(pairs.x), "=&r"(pairs.y)
      : "l"(from), "r"(valid ? 1 : 0));
  return pairs;
}

__device__ inline void store_pairs(void* to, uint2 pairs, bool valid) {
  asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %3, 0; @valid st.global.v2.b32 [%0], {%1, %2}; }" ::"l"(to),
               "r"(pairs.x), "r"(pairs.y), "r"(valid ? 1 : 0)
               : "memory");
}

__device__ inline uint4 load_unit(const void* from, bool valid) {
  uint4 unit;
  asm volatile(
      "{ .reg .pred valid; setp.ne.b32 valid, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
      "@valid ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(unit.x), "=&r"(unit.y), "=&r"(unit.z), "=&r"(unit.w)
      : "l"(from), "r"(valid ? 1 : 0));
  return unit;
}

// Into the cache that all processors share.
__device__ inline void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// The rows of a chunk, from a column that is a multiple of 16 on.
template <class Byte>
__device__ inline MatrixOf<Byte> rows_of(const TokensOf<Byte>& tokens, const ChunkPlace& place, int head,
                                         int column = 0) {
  const std::int64_t offset = place.batch * tokens.batch + place.first * tokens.token + head * tokens.head + column;
  return {tokens.data + offset * (tokens.bf16 ? 2 : 4), tokens.token, tokens.bf16, tokens.vectors};
}
template <class Byte>
__device__ inline MatrixOf<Byte> matrix_of(const StatesOf<Byte>& states, std::int64_t index, int head, int row,
                                           int column) {
  const std::int64_t offset = index * states.index + head * states.head + row * states.key + column;
  return {states.data + offset * (states.bf16 ? 2 : 4), states.key, states.bf16, states.vectors};
}

// A gate of token `row` of a chunk; zero where it is not given.
__device__ inline float gate_at(const TokensIn& gate, const ChunkPlace& place, int head, int row) {
  return gate.data == nullptr ? 0.0F : rows_of(gate, place, head).get(row, 0);
}
__device__ inline void set_gate(const TokensOut& gate, const ChunkPlace& place, int head, int row, float value) {
  if (gate.data != nullptr) rows_of(gate, place, head).set(row, 0, value);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles from device memory, by all kThreads of a block.

// The units of a tile, shared out: a thread has the same columns of every kStep-th row.
template <int kThreads, class E, int kRows, int kWidth>
struct TileShare {
  using T = Tile<E, kRows, kWidth>;
  static constexpr int kStep = kThreads / T::kUnits;
  static constexpr int kCount = (kRows + kStep - 1) / kStep;
  static constexpr bool kEven = kRows % kStep == 0;  // every thread has kCount units
  static_assert(kThreads % T::kUnits == 0);
  int row = static_cast<int>(threadIdx.x) / T::kUnits;
  int column = static_cast<int>(threadIdx.x) % T::kUnits * T::kUnit;
};

// Rows [0, rows) and columns [0, columns) of a matrix, and zeros beyond them. Copies may still be under way: commit and
// wait.
template <int kThreads, class E, int kRows, int kWidth>
__device__ inline void load_tile(const Tile<E, kRows, kWidth>& tile, const MatrixIn& from, int rows, int columns) {
  using Share = TileShare<kThreads, E, kRows, kWidth>;
  const Share share;
  if (from.vectors && from.bf16 == kIsBf16<E>) {
    const std::byte* at = from.at(share.row, share.column);
    const std::int64_t step = from.stride * static_cast<std::int64_t>(Share::kStep * sizeof(E));
    const int valid = share.column < columns ? rows - share.row : 0;
#pragma unroll
    for (int i = 0; i < Share::kCount; ++i) {
      const int row = share.row + i * Share::kStep;
      if (Share::kEven || row < kRows) copy_async(tile.at(row, share.column), at, i * Share::kStep < valid);
      at += step;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < Share::kCount; ++i) {
      const int row = share.row + i * Share::kStep;
      if (row >= kRows) break;
      E* to = tile.at(row, share.column);
      for (int j = 0; j < Tile<E, kRows, kWidth>::kUnit; ++j) {
        const bool valid = row < rows && share.column + j < columns;
        to[j] = static_cast<E>(valid ? from.get(row, share.column + j) : 0.0F);
      }
    }
  }
}

// A matrix of the workspace: whole, aligned, of the operand type. kLower: zeros beyond the 16 x 16 blocks on the
// diagonal.
template <int kThreads, bool kLower, class E, int kRows, int kWidth>
__device__ inline void load_own_tile(const Tile<E, kRows, kWidth>& tile, const E* from, std::int64_t stride) {
  using Share = TileShare<kThreads, E, kRows, kWidth>;
  const Share share;
  const E* at = from + share.row * stride + share.column;
#pragma unroll
  for (int i = 0; i < Share::kCount; ++i) {
    const int row = share.row + i * Share::kStep;
    if (Share::kEven || row < kRows)
      copy_async(tile.at(row, share.column), at, !kLower || share.column / 16 <= row / 16);
    at += Share::kStep * stride;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Strips. In the scans a warp owns 16 value columns and has them as the rows of its sums, that is transposed: row
// 8 j + 2 quad + {0, 1} (a token, or a key) of column strip_column(lane) in strip[j].x[{0, 1}], and of the column two
// further on in x[{2, 3}]. The columns are assigned such that after an 8 x 8 transposition a lane has four neighbours
// of a row.

inline constexpr int kStrip = 16;
__device__ inline int strip_column(const Lane& lane) { return 4 * (lane.group >> 1) + (lane.group & 1); }

// A strip of bfloat16 as it is in memory: four neighbours of row 8 j + group, columns 4 quad and on. Without a branch,
// so that all loads are under way before the first is waited for.
template <int kSums>
__device__ inline void fetch_strip(uint2 (&pairs)[kSums], const MatrixIn& from, int rows, int columns,
                                   const Lane& lane) {
  const int column = 4 * lane.quad;
  const std::byte* at = from.at(lane.group, column);
  const std::int64_t step = from.stride * 16;
  const int valid = column < columns ? rows - lane.group : 0;
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
    pairs[j] = load_pairs(at, 8 * j < valid);
    at += step;
  }
}
__device__ inline Sum strip_of(uint2 pairs) {
  const std::uint32_t left = transposed(pairs.x);
  const std::uint32_t right = transposed(pairs.y);
  return {{low_half(left), high_half(left), low_half(right), high_half(right)}};
}

// strip[j] of the 16 columns of a tile that start at `column`.
template <class E>
__device__ inline Sum strip_sum(const Tile<E, kChunk, kColumns>& tile, int j, int column, const Lane& lane) {
  if constexpr (kIsBf16<E>) {
    return strip_of(*reinterpret_cast<const uint2*>(tile.at(8 * j + lane.group, column + 4 * lane.quad)));
  } else {
    Sum sum;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum.x[i] = *tile.at(8 * j + 2 * lane.quad + i % 2, column + strip_column(lane) + i / 2 * 2);
    return sum;
  }
}

// From device memory, element by element.
template <class E, int kSums>
__device__ inline void gather_strip(Sum (&strip)[kSums], const MatrixIn& from, int rows, int columns,
                                    const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * j + 2 * lane.quad + i % 2;
      const int column = strip_column(lane) + i / 2 * 2;
      strip[j].x[i] = load_element<E>(from.at(row, column), row < rows && column < columns);
    }
  }
}
template <int kSums>
__device__ inline void gather_strip(Sum (&strip)[kSums], const MatrixIn& from, int rows, int columns,
                                    const Lane& lane) {
  from.bf16 ? gather_strip<bf16>(strip, from, rows, columns, lane)
            : gather_strip<float>(strip, from, rows, columns, lane);
}
// By fours where that is possible. Zeros beyond the rows and columns.
template <int kSums>
__device__ inline void load_strip(Sum (&strip)[kSums], const MatrixIn& from, int rows, int columns, const Lane& lane) {
  if (!from.bf16 || !from.vectors) return gather_strip(strip, from, rows, columns, lane);
  uint2 pairs[kSums];
  fetch_strip(pairs, from, rows, columns, lane);
#pragma unroll
  for (int j = 0; j < kSums; ++j) strip[j] = strip_of(pairs[j]);
}

// Into device memory, element by element.
template <class E, int kSums>
__device__ inline void scatter_strip(const Sum (&strip)[kSums], const MatrixOut& to, int rows, int columns,
                                     const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * j + 2 * lane.quad + i % 2;
      const int column = strip_column(lane) + i / 2 * 2;
      store_element<E>(to.at(row, column), strip[j].x[i], row < rows && column < columns);
    }
  }
}

// The same, by fours where that is possible: without a branch, some transpositions under way before the first is
// needed.
template <int kSums>
__device__ inline void store_strip(const Sum (&strip)[kSums], const MatrixOut& to, int rows, int columns,
                                   const Lane& lane) {
  if (!to.bf16) return scatter_strip<float>(strip, to, rows, columns, lane);
  if (!to.vectors) return scatter_strip<bf16>(strip, to, rows, columns, lane);
  const int column = 4 * lane.quad;
  std::byte* at = to.at(lane.group, column);
  const std::int64_t step = to.stride * 16;
  const int valid = column < columns ? rows - lane.group : 0;
  constexpr int kTogether = 4;
  static_assert(kSums % kTogether == 0);
#pragma unroll
  for (int first = 0; first < kSums; first += kTogether) {
    uint2 pairs[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float* x = strip[first + i].x;
      pairs[i] = {transposed(pack(x[0], x[1])), transposed(pack(x[2], x[3]))};
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      store_pairs(at, pairs[i], 8 * (first + i) < valid);
      at += step;
    }
  }
}

// Every row (a token) of a strip times its factor.
template <int kSums>
__device__ inline void scale_strip(Sum (&strip)[kSums], const float* factors, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * lane.quad);
    strip[j].x[0] *= factor.x, strip[j].x[1] *= factor.y;
    strip[j].x[2] *= factor.x, strip[j].x[3] *= factor.y;
  }
}

}  // namespace qdelta::cuda
