// Device code of the selective scan that its kernels share. Four threads have a channel between them, each S of its
// states (of 4 S >= N; those beyond N stay zero); a block of threads has kScanChannels channels and goes through a
// chunk of kScanChunk rows, whatever sequences these belong to: a state is loaded anew where one begins.
#pragma once

#include "kernels/cuda/rows.h"
#include "kernels/cuda/sequences.h"
#include "kernels/selective_scan.h"

namespace qdelta::cuda {

constexpr int kScanThreads = 128;
constexpr int kScanLanes = 4;  // threads of a channel
constexpr int kScanChannels = kScanThreads / kScanLanes;
constexpr int kScanWarps = kScanThreads / 32;
constexpr int kScanRows = static_cast<int>(kScanChunk);

template <class T>
struct Scan {
  Rows<T> x, dt, B, C, z;
  const float *A_log, *skip, *dt_bias;
  Sequences sequences;
  int rows, channels, states;

  [[nodiscard]] __device__ std::int64_t state_size() const { return std::int64_t{states} * channels; }
};

template <class T>
__device__ float element(const Rows<T>& matrix, int row, int column) {
  return matrix.template load<1>(row, column)[0];
}
template <class T>
__device__ void put_element(const Rows<T>& matrix, int row, int column, float value) {
  const float values[1] = {value};
  matrix.template store<1>(row, column, values);
}

// A value for each row of a chunk and channel of a block.
using WideTile = float[kScanRows][kScanChannels];

// What all channels of a chunk share.
template <int S>
struct NarrowTile {
  float B[kScanRows][kScanLanes * S], C[kScanRows][kScanLanes * S];
  int starts[kScanRows], ends[kScanRows];  // the sequence that begins, or ends, with the row; -1: none
};

// Where a thread is in a chunk of rows [begin, begin + count).
struct ScanPlace {
  int lane, column, channel, begin, count;
  bool inside;  // channels beyond the last one are worked on as zeros, and written nowhere

  __device__ ScanPlace(int chunk, int group, int rows, int channels)
      : lane(static_cast<int>(threadIdx.x) % kScanLanes),
        column(static_cast<int>(threadIdx.x) / kScanLanes),
        channel(group * kScanChannels + column),
        begin(chunk * kScanRows),
        count(min(kScanRows, rows - begin)),
        inside(channel < channels) {}
};

template <class T, int S>
__device__ void load_narrow(const Scan<T>& a, const ScanPlace& at, NarrowTile<S>& tile) {
  constexpr int kWidth = kScanLanes * S;
  for (int i = static_cast<int>(threadIdx.x); i < kScanRows * kWidth; i += kScanThreads) {
    const int t = i / kWidth;
    const int n = i % kWidth;
    const bool there = t < at.count && n < a.states;
    tile.B[t][n] = there ? element(a.B, at.begin + t, n) : 0.0F;
    tile.C[t][n] = there ? element(a.C, at.begin + t, n) : 0.0F;
  }
  const int t = static_cast<int>(threadIdx.x);
  if (t >= at.count) return;
  const int row = at.begin + t;
  const int n = a.sequences.of(row);
  tile.starts[t] = a.sequences.begin(n) == row ? n : -1;
  tile.ends[t] = a.sequences.end(n, a.rows) == row + 1 ? n : -1;
}

// body(t, column, channel) for every value of a WideTile whose row is there, neighbouring threads on neighbouring
// channels; `channel` may be beyond the last.
template <class Body>
__device__ void for_wide(const ScanPlace& at, const Body& body) {
  const int column = static_cast<int>(threadIdx.x) % kScanChannels;
  const int first = at.channel - at.column;
  for (int t = static_cast<int>(threadIdx.x) / kScanChannels; t < at.count; t += kScanThreads / kScanChannels) {
    body(t, column, first + column);
  }
}

// A of a thread's states in base 2: exp(delta A) = 2^(delta A log2 e).
template <int S>
struct Decays {
  float values[S];

  template <class T>
  __device__ Decays(const Scan<T>& a, const ScanPlace& at) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int n = at.lane * S + s;
      const bool there = at.inside && n < a.states;
      values[s] = there ? -kLog2e * expf(a.A_log[std::int64_t{at.channel} * a.states + n]) : 0.0F;
    }
  }
};

// A thread's part of a state [N][D]; null: zeros.
template <class T, int S>
__device__ void load_states(const Scan<T>& a, const ScanPlace& at, const float* state, float (&h)[S]) {
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int n = at.lane * S + s;
    const bool there = state != nullptr && at.inside && n < a.states;
    h[s] = there ? state[std::int64_t{n} * a.channels + at.channel] : 0.0F;
  }
}
template <class T, int S>
__device__ void store_states(const Scan<T>& a, const ScanPlace& at, const float (&h)[S], float* state) {
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int n = at.lane * S + s;
    if (at.inside && n < a.states) state[std::int64_t{n} * a.channels + at.channel] = h[s];
  }
}
// State n of a tensor of states.
template <class T, class Float>
__device__ Float* state_at(const Scan<T>& a, Float* states, std::int64_t n) {
  return states == nullptr ? nullptr : states + n * a.state_size();
}

// The sum over the threads of a channel, for all of them.
__device__ inline float channel_sum(float value) {
  value += __shfl_xor_sync(0xffffffffU, value, 1);
  return value + __shfl_xor_sync(0xffffffffU, value, 2);
}

}  // namespace qdelta::cuda
