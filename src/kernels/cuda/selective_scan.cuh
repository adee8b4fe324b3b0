// Device code that the kernels of the selective scan share. Four threads share a channel, each with S of its states (of
// 4 S >= N; those beyond N stay zero). A block has kScanChannels channels and a chunk of kScanChunk rows, of whatever
// sequences: a state is loaded where one begins.
#pragma once

#include "kernels/cuda/row_kernels.cuh"
#include "kernels/cuda/sequences.h"
#include "kernels/selective_scan.h"

namespace qdelta::cuda {

constexpr int kScanThreads = 128;
constexpr int kScanLanes = 4;  // threads of a channel
constexpr int kScanChannels = kScanThreads / kScanLanes;
constexpr int kScanWarps = kScanThreads / 32;
constexpr int kScanRows = static_cast<int>(kScanChunk);

template <class T>
struct SelectiveScanArgs {
  Rows<T> x, dt, B, C, z;
  const float *A_log, *skip, *dt_bias;
  Sequences sequences;
  int rows, channels, states;

  [[nodiscard]] __device__ std::int64_t state_size() const { return std::int64_t{states} * channels; }
};

template <class T>
__device__ float load_scalar(const Rows<T>& matrix, int row, int column) {
  return matrix.template load<1>(row, column)[0];
}
template <class T>
__device__ void store_scalar(const Rows<T>& matrix, int row, int column, float value) {
  const float values[1] = {value};
  matrix.template store<1>(row, column, values);
}

// A value for each row of a chunk and channel of a block.
using ChannelTile = float[kScanRows][kScanChannels];

// B and C, which all channels of a chunk share.
template <int S>
struct StateTile {
  float B[kScanRows][kScanLanes * S], C[kScanRows][kScanLanes * S];
  int starts[kScanRows], ends[kScanRows];  // the sequence that begins, or ends, with the row; -1: none
};

// The channel and rows [begin, begin + count) of a thread.
struct ChunkCoord {
  int lane, column, channel, begin, count;
  bool in_range;  // channels beyond the last one are zeros, and not stored

  __device__ ChunkCoord(int chunk, int group, int rows, int channels)
      : lane(static_cast<int>(threadIdx.x) % kScanLanes),
        column(static_cast<int>(threadIdx.x) / kScanLanes),
        channel(group * kScanChannels + column),
        begin(chunk * kScanRows),
        count(min(kScanRows, rows - begin)),
        in_range(channel < channels) {}
};

template <class T, int S>
__device__ void load_state_tile(const SelectiveScanArgs<T>& a, const ChunkCoord& at, StateTile<S>& tile) {
  constexpr int kWidth = kScanLanes * S;
  for (int i = static_cast<int>(threadIdx.x); i < kScanRows * kWidth; i += kScanThreads) {
    const int t = i / kWidth;
    const int n = i % kWidth;
    const bool valid = t < at.count && n < a.states;
    tile.B[t][n] = valid ? load_scalar(a.B, at.begin + t, n) : 0.0F;
    tile.C[t][n] = valid ? load_scalar(a.C, at.begin + t, n) : 0.0F;
  }
  const int t = static_cast<int>(threadIdx.x);
  if (t >= at.count) return;
  const int row = at.begin + t;
  const int n = a.sequences.of(row);
  tile.starts[t] = a.sequences.begin(n) == row ? n : -1;
  tile.ends[t] = a.sequences.end(n, a.rows) == row + 1 ? n : -1;
}

// body(t, column, channel) for every element of a ChannelTile with a valid row, adjacent threads on adjacent channels;
// `channel` may be beyond the last.
template <class Body>
__device__ void for_each_channel(const ChunkCoord& at, const Body& body) {
  const int column = static_cast<int>(threadIdx.x) % kScanChannels;
  const int first = at.channel - at.column;
  for (int t = static_cast<int>(threadIdx.x) / kScanChannels; t < at.count; t += kScanThreads / kScanChannels) {
    body(t, column, first + column);
  }
}

// A of a thread's states in base 2: exp(delta A) = 2^(delta A log2 e).
template <int S>
struct LogDecays {
  float values[S];

  template <class T>
  __device__ LogDecays(const SelectiveScanArgs<T>& a, const ChunkCoord& at) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int n = at.lane * S + s;
      const bool valid = at.in_range && n < a.states;
      values[s] = valid ? -kLog2e * expf(a.A_log[std::int64_t{at.channel} * a.states + n]) : 0.0F;
    }
  }
};

// A thread's states of [N][D]; null: zeros.
template <class T, int S>
__device__ void load_states(const SelectiveScanArgs<T>& a, const ChunkCoord& at, const float* state, float (&h)[S]) {
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int n = at.lane * S + s;
    const bool valid = state != nullptr && at.in_range && n < a.states;
    h[s] = valid ? state[std::int64_t{n} * a.channels + at.channel] : 0.0F;
  }
}
template <class T, int S>
__device__ void store_states(const SelectiveScanArgs<T>& a, const ChunkCoord& at, const float (&h)[S], float* state) {
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int n = at.lane * S + s;
    if (at.in_range && n < a.states) state[std::int64_t{n} * a.channels + at.channel] = h[s];
  }
}
// State n of a tensor of states.
template <class T, class Float>
__device__ Float* state_at(const SelectiveScanArgs<T>& a, Float* states, std::int64_t n) {
  return states == nullptr ? nullptr : states + n * a.state_size();
}

// The sum over the threads of a channel, for all of them.
__device__ inline float channel_sum(float value) {
  value += __shfl_xor_sync(0xffffffffU, value, 1);
  return value + __shfl_xor_sync(0xffffffffU, value, 2);
}

}  // namespace qdelta::cuda
