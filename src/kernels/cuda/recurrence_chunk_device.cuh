// Device code that the kernels of the chunkwise recurrence share: token ranges of chunks, matrices in global memory,
// tiles copied from there to shared memory, and the warp tiles of value columns that the scans work on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matrix_tile.cuh"
#include "kernels/cuda/recurrence_chunk_args.h"

namespace qdelta::cuda {

// ---------------------------------------------------------------------------------------------------------------------
// Chunks.

struct ChunkRange {
  std::int64_t batch, first;  // the first token, in its row of the batch
  int tokens;
};

__device__ inline int sequence_of(const Chunks& chunks, int chunk) {
  return chunks.has_tables() ? chunks.sequence[chunk] : chunk / static_cast<int>(chunks.per_sequence);
}
// Where the sequence of the chunk is known, which saves a division.
__device__ inline ChunkRange chunk_range(const Chunks& chunks, std::int64_t chunk, std::int64_t sequence) {
  ChunkRange range;
  std::int64_t end;
  if (chunks.cu_seqlens == nullptr) {
    range.batch = sequence;
    range.first = (chunk - sequence * chunks.per_sequence) * kChunk;
    end = chunks.tokens;
  } else {
    range.batch = 0;
    range.first = chunk * kChunk;
    if (chunks.has_tables())
      range.first = chunks.cu_seqlens[sequence] + (chunk - chunks.first_chunk[sequence]) * kChunk;
    end = chunks.cu_seqlens[sequence + 1];
  }
  range.tokens = static_cast<int>(end - range.first < kChunk ? end - range.first : kChunk);
  return range;
}
__device__ inline ChunkRange chunk_range(const Chunks& chunks, int chunk) {
  return chunk_range(chunks, chunk, sequence_of(chunks, chunk));
}

// 32-bit numbers: a scan holds them in registers over all its chunks.
struct SegmentRange {
  int sequence;
  int begin, end;    // chunks
  bool first, last;  // of its sequence
};

__device__ inline SegmentRange segment_range(const Chunks& chunks, const Segments& segments, int segment) {
  SegmentRange range;
  if (!chunks.has_tables()) {
    const int per_sequence = static_cast<int>(segments.per_sequence);
    range.sequence = segment / per_sequence;
    const int place = segment - range.sequence * per_sequence;
    const int chunks_per_sequence = static_cast<int>(chunks.per_sequence);
    range.begin = range.sequence * chunks_per_sequence + place * static_cast<int>(segments.chunks);
    range.end = min(range.begin + static_cast<int>(segments.chunks), (range.sequence + 1) * chunks_per_sequence);
    range.first = place == 0;
    range.last = place + 1 == per_sequence;
  } else {
    range.sequence = segments.sequence[segment];
    range.begin = static_cast<int>(segments.first_chunk[segment]);
    range.end = static_cast<int>(segments.first_chunk[segment + 1]);
    range.first = segment == segments.first_segment[range.sequence];
    range.last = segment + 1 == segments.first_segment[range.sequence + 1];
  }
  return range;
}
// A segment of one chunk.
__device__ inline SegmentRange one_chunk_range(const Chunks& chunks, int chunk) {
  return {.sequence = sequence_of(chunks, chunk), .begin = chunk, .end = chunk + 1, .first = false, .last = false};
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrices in global memory.

template <class Byte>
struct GlobalMatrix {
  Byte* data;
  std::int64_t stride;  // between rows, in elements
  bool bf16, aligned16;

  __device__ Byte* at(std::int64_t row, std::int64_t column) const {
    return data + (row * stride + column) * (bf16 ? 2 : 4);
  }
  __device__ float get(std::int64_t row, std::int64_t column) const {
    return bf16 ? __bfloat162float(*reinterpret_cast<const ::__nv_bfloat16*>(at(row, column)))
                : *reinterpret_cast<const float*>(at(row, column));
  }
  // The rows from `row` on.
  __device__ GlobalMatrix from_row(int row) const { return {at(row, 0), stride, bf16, aligned16}; }
  __device__ void advance_rows(int rows) { data = at(rows, 0); }
  __device__ void advance_columns(int columns) { data = at(0, columns); }
  __device__ void set(std::int64_t row, std::int64_t column, float value) const {
    if (bf16) {
      *reinterpret_cast<::__nv_bfloat16*>(at(row, column)) = __float2bfloat16_rn(value);
    } else {
      *reinterpret_cast<float*>(at(row, column)) = value;
    }
  }
};
using MatrixIn = GlobalMatrix<const std::byte>;
using MatrixOut = GlobalMatrix<std::byte>;

// Predicated, for many elements at once (get and set above are for single values).
template <class E>
__device__ inline float load_element(const void* from, bool valid) {
  if constexpr (kIsBf16<E>) {
    return low_half(load_2_bytes(from, valid));
  } else {
    return load_float(from, valid);
  }
}
template <class E>
__device__ inline void store_element(void* to, float value, bool valid) {
  if constexpr (kIsBf16<E>) {
    store_2_bytes(to, static_cast<std::uint16_t>(pack_bf16x2(value, 0.0F)), valid);
  } else {
    store_float(to, value, valid);
  }
}

// The rows of a chunk, from column `column` on, which is a multiple of 16.
template <class Byte>
__device__ inline GlobalMatrix<Byte> chunk_rows(const TokenTensor<Byte>& tokens, const ChunkRange& range, int head,
                                                int column = 0) {
  const std::int64_t offset =
      range.batch * tokens.batch_stride + range.first * tokens.token_stride + head * tokens.head_stride + column;
  return {tokens.data + offset * (tokens.bf16 ? 2 : 4), tokens.token_stride, tokens.bf16, tokens.aligned16};
}
template <class Byte>
__device__ inline GlobalMatrix<Byte> state_matrix(const StateTensor<Byte>& states, std::int64_t index, int head,
                                                  int row, int column) {
  const std::int64_t offset =
      index * states.index_stride + head * states.head_stride + row * states.key_stride + column;
  return {states.data + offset * (states.bf16 ? 2 : 4), states.key_stride, states.bf16, states.aligned16};
}

// The gate of token `row` of a chunk; zero where the tensor is not given.
__device__ inline float load_gate(const TokensIn& gate, const ChunkRange& range, int head, int row) {
  return gate.data == nullptr ? 0.0F : chunk_rows(gate, range, head).get(row, 0);
}
__device__ inline void store_gate(const TokensOut& gate, const ChunkRange& range, int head, int row, float value) {
  if (gate.data != nullptr) chunk_rows(gate, range, head).set(row, 0, value);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles from global memory, by all kThreads of a block.

// The 16-byte vectors of a tile, partitioned over the threads: a thread has one vector of every kRowStep-th row.
template <int kThreads, class E, int kRows, int kWidth>
struct TilePartition {
  using T = Tile<E, kRows, kWidth>;
  static constexpr int kRowStep = kThreads / T::kVectorsPerRow;
  static constexpr int kCount = (kRows + kRowStep - 1) / kRowStep;
  static constexpr bool kEven = kRows % kRowStep == 0;  // every thread has kCount vectors
  static_assert(kThreads % T::kVectorsPerRow == 0);
  int row = static_cast<int>(threadIdx.x) / T::kVectorsPerRow;
  int column = static_cast<int>(threadIdx.x) % T::kVectorsPerRow * T::kVector;
};

// Rows [0, rows) and columns [0, columns) of a matrix, zeros beyond them. By cp.async where possible: commit and wait.
template <int kThreads, class E, int kRows, int kWidth>
__device__ inline void load_tile(const Tile<E, kRows, kWidth>& tile, const MatrixIn& from, int rows, int columns) {
  using Partition = TilePartition<kThreads, E, kRows, kWidth>;
  const Partition partition;
  if (from.aligned16 && from.bf16 == kIsBf16<E>) {
    const std::byte* at = from.at(partition.row, partition.column);
    const std::int64_t step = from.stride * static_cast<std::int64_t>(Partition::kRowStep * sizeof(E));
    const int valid = partition.column < columns ? rows - partition.row : 0;
#pragma unroll
    for (int i = 0; i < Partition::kCount; ++i) {
      const int row = partition.row + i * Partition::kRowStep;
      if (Partition::kEven || row < kRows)
        cp_async(tile.at(row, partition.column), at, i * Partition::kRowStep < valid);
      at += step;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < Partition::kCount; ++i) {
      const int row = partition.row + i * Partition::kRowStep;
      if (row >= kRows) break;
      E* to = tile.at(row, partition.column);
      for (int j = 0; j < Tile<E, kRows, kWidth>::kVector; ++j) {
        const bool valid = row < rows && partition.column + j < columns;
        to[j] = static_cast<E>(valid ? from.get(row, partition.column + j) : 0.0F);
      }
    }
  }
}

// A matrix of the workspace: no bounds, aligned, of the operand type.
template <int kThreads, class E, int kRows, int kWidth>
__device__ inline void load_workspace_tile(const Tile<E, kRows, kWidth>& tile, const E* from, std::int64_t stride) {
  using Partition = TilePartition<kThreads, E, kRows, kWidth>;
  const Partition partition;
  const E* at = from + partition.row * stride + partition.column;
#pragma unroll
  for (int i = 0; i < Partition::kCount; ++i) {
    const int row = partition.row + i * Partition::kRowStep;
    if (Partition::kEven || row < kRows) cp_async(tile.at(row, partition.column), at, true);
    at += Partition::kRowStep * stride;
  }
}

// Zeros in the rows from `from` on, by so many threads of a block.
template <class E, int kRows, int kWidth>
__device__ inline void clear_rows(const Tile<E, kRows, kWidth>& tile, int from, int first_thread, int threads) {
  using T = Tile<E, kRows, kWidth>;
  for (int i = from * T::kVectorsPerRow + static_cast<int>(threadIdx.x) - first_thread; i < kRows * T::kVectorsPerRow;
       i += threads)
    *reinterpret_cast<uint4*>(tile.at(i / T::kVectorsPerRow, i % T::kVectorsPerRow * T::kVector)) = uint4{};
}

// ---------------------------------------------------------------------------------------------------------------------
// Warp tiles. In the scans a warp owns 16 value columns. They are the rows (m16) of its accumulators, that is, the
// matrix is held transposed: tile[j].x[i] is in row (token, or key) warp_tile_row and column warp_tile_column. With
// this assignment of columns to lanes an 8 x 8 transposition leaves a lane with four adjacent elements of a row, 8
// bytes of bf16.

__device__ inline int warp_tile_row(const Lane& lane, int j, int i) { return lane.pair(j) + i % 2; }
__device__ inline int warp_tile_column(const Lane& lane, int i) {
  return 4 * (lane.group >> 1) + (lane.group & 1) + i / 2 * 2;
}

// A bf16 warp tile as it is in memory: packed[j] has four adjacent elements of lane.row(j), from this column on.
__device__ inline int packed_column(const Lane& lane) { return 4 * lane.quad; }

// Without a branch, so that all loads are issued before the first is used.
template <int kCount>
__device__ inline void load_packed_warp_tile(uint2 (&packed)[kCount], const MatrixIn& from, int rows, int columns,
                                             const Lane& lane) {
  const int column = packed_column(lane);
  const std::byte* at = from.at(lane.row(0), column);
  const std::int64_t step = from.stride * 16;
  const int valid = column < columns ? rows - lane.row(0) : 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    packed[j] = load_8_bytes(at, 8 * j < valid);
    at += step;
  }
}
__device__ inline Accumulator unpack_accumulator(uint2 packed) {
  const std::uint32_t left = transpose_8x8(packed.x);
  const std::uint32_t right = transpose_8x8(packed.y);
  return {{low_half(left), high_half(left), low_half(right), high_half(right)}};
}

// Accumulator j of the warp tile that starts at `column` of a shared-memory tile.
template <class E>
__device__ inline Accumulator load_accumulator(const Tile<E, kChunk, kBlockV>& tile, int j, int column,
                                               const Lane& lane) {
  if constexpr (kIsBf16<E>) {
    return unpack_accumulator(*reinterpret_cast<const uint2*>(tile.at(lane.row(j), column + packed_column(lane))));
  } else {
    Accumulator acc;
#pragma unroll
    for (int i = 0; i < 4; ++i) acc.x[i] = *tile.at(warp_tile_row(lane, j, i), column + warp_tile_column(lane, i));
    return acc;
  }
}

// From global memory, element by element.
template <class E, int kCount>
__device__ inline void load_warp_tile_scalar(Accumulator (&tile)[kCount], const MatrixIn& from, int rows, int columns,
                                             const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp_tile_row(lane, j, i);
      const int column = warp_tile_column(lane, i);
      tile[j].x[i] = load_element<E>(from.at(row, column), row < rows && column < columns);
    }
  }
}
template <int kCount>
__device__ inline void load_warp_tile_scalar(Accumulator (&tile)[kCount], const MatrixIn& from, int rows, int columns,
                                             const Lane& lane) {
  from.bf16 ? load_warp_tile_scalar<bf16>(tile, from, rows, columns, lane)
            : load_warp_tile_scalar<float>(tile, from, rows, columns, lane);
}
// From global memory, 8 bytes at a time where possible. Zeros beyond the rows and columns.
template <int kCount>
__device__ inline void load_warp_tile(Accumulator (&tile)[kCount], const MatrixIn& from, int rows, int columns,
                                      const Lane& lane) {
  if (!from.bf16 || !from.aligned16) return load_warp_tile_scalar(tile, from, rows, columns, lane);
  uint2 packed[kCount];
  load_packed_warp_tile(packed, from, rows, columns, lane);
#pragma unroll
  for (int j = 0; j < kCount; ++j) tile[j] = unpack_accumulator(packed[j]);
}

// To global memory, element by element.
template <class E, int kCount>
__device__ inline void store_warp_tile_scalar(const Accumulator (&tile)[kCount], const MatrixOut& to, int rows,
                                              int columns, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp_tile_row(lane, j, i);
      const int column = warp_tile_column(lane, i);
      store_element<E>(to.at(row, column), tile[j].x[i], row < rows && column < columns);
    }
  }
}

// To global memory, 8 bytes at a time where possible. Without a branch, a batch of transpositions in flight.
template <int kCount>
__device__ inline void store_warp_tile(const Accumulator (&tile)[kCount], const MatrixOut& to, int rows, int columns,
                                       const Lane& lane) {
  if (!to.bf16) return store_warp_tile_scalar<float>(tile, to, rows, columns, lane);
  if (!to.aligned16) return store_warp_tile_scalar<bf16>(tile, to, rows, columns, lane);
  const int column = packed_column(lane);
  std::byte* at = to.at(lane.row(0), column);
  const std::int64_t step = to.stride * 16;
  const int valid = column < columns ? rows - lane.row(0) : 0;
  constexpr int kBatch = 4;
  static_assert(kCount % kBatch == 0);
#pragma unroll
  for (int first = 0; first < kCount; first += kBatch) {
    uint2 packed[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float* x = tile[first + i].x;
      packed[i] = {transpose_8x8(pack_bf16x2(x[0], x[1])), transpose_8x8(pack_bf16x2(x[2], x[3]))};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      store_8_bytes(at, packed[i], 8 * (first + i) < valid);
      at += step;
    }
  }
}

// Multiplies every row (a token) of a warp tile by its factor.
template <int kCount>
__device__ inline void scale_tokens(Accumulator (&tile)[kCount], const float* factors, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + lane.pair(j));
    tile[j].x[0] *= factor.x, tile[j].x[1] *= factor.y;
    tile[j].x[2] *= factor.x, tile[j].x[3] *= factor.y;
  }
}

// Columns from `column` on of the identity.
template <int kAccumulators>
__device__ inline void identity_warp_tile(Accumulator (&tile)[kAccumulators], int column, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kAccumulators; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile[j].x[i] = warp_tile_row(lane, j, i) == column + warp_tile_column(lane, i) ? 1.0F : 0.0F;
    }
  }
}

}  // namespace qdelta::cuda
