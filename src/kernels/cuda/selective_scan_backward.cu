// From the last token to the first, G the gradient of h, h' the state before the token, p = sum_n C[n] h[n] + skip x:
//   dp = dy silu(z)            dz = dy p silu'(z)         G[n] += C[n] dp              dC[n] = sum_d dp h[n]
//   dB[n] = sum_d G[n] delta x       dx = skip dp + delta sum_n G[n] B[n]              E[n] = G[n] exp(delta A[n])
//   ddelta = sum_n E[n] h'[n] A[n] + x sum_n G[n] B[n]    dA_log[n] += E[n] h'[n] delta A[n]          G <- E
//
// Time is gone through as in the forward, the other way round: the carries of all chunks at once, joined in order, then
// all chunks with their outputs. There a block of threads takes a range of chunks and a share of the channels. In a
// chunk it goes, tile of rows by tile from the last, through the states once more from the chunk's entry and then back;
// dB and dC of the chunk are summed in shared memory over the block's channels, warp by warp, and dA_log, dskip and
// ddt_bias over its chunks in memory of its own. All of them are added up at the end, in order.
#include "kernels/cuda/selective_scan_parts.h"

namespace qdelta::cuda {
namespace {

template <class T>
struct ScanGradients {
  Rows<T> dy, dx, ddt, dz;
  const float *h0, *d_ht, *chunk_states;
  float* dh0;
  float* entries;                    // [chunks][N][D]: gradients of the states after the chunks
  float *dA_log, *dskip, *ddt_bias;  // [ranges][D][N], [ranges][D] twice
  float* narrow;                     // [shares][rows][2 N]: dB, then dC
  int chunks, chunks_per_range, groups, groups_per_share, shares;
};

// The gradient of p, by way of shared memory; with it what else a token's steps need.
template <class T>
__device__ float output_gradient(const Scan<T>& a, const Rows<T>& dy, int row, int channel) {
  const float d = element(dy, row, channel);
  if (a.z.data == nullptr) return d;
  const float z = element(a.z, row, channel);
  return d * z * sigmoid(z);
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void scan_backward_carry(Scan<T> a, ScanGradients<T> g, float* sums) {
  __shared__ NarrowTile<S> narrow;
  __shared__ WideTile dps;
  __shared__ WideTile deltas;
  const int chunk = static_cast<int>(blockIdx.x) / g.groups;
  const ScanPlace at(chunk, static_cast<int>(blockIdx.x) % g.groups, a.rows, a.channels);
  load_narrow(a, at, narrow);
  for_wide(at, [&](int t, int column, int channel) {
    const bool there = channel < a.channels;
    const int row = at.begin + t;
    dps[t][column] = there ? output_gradient(a, g.dy, row, channel) : 0.0F;
    deltas[t][column] = there ? softplus(element(a.dt, row, channel) + a.dt_bias[channel]) : 0.0F;
  });
  __syncthreads();
  const Decays<S> A(a, at);
  float G[S] = {};
  float sum = 0;
  for (int t = at.count - 1; t >= 0; --t) {
    if (narrow.ends[t] >= 0) {
      load_states(a, at, state_at(a, g.d_ht, narrow.ends[t]), G);
      sum = kCut;
    }
    const float delta = deltas[t][at.column];
    const float dp = dps[t][at.column];
    if (sum >= 0) sum += delta;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      G[s] = fast_exp2(delta * A.values[s]) * fmaf(narrow.C[t][at.lane * S + s], dp, G[s]);
    }
  }
  store_states(a, at, G, state_at(a, g.entries, chunk));
  if (at.inside && at.lane == 0) sums[std::int64_t{chunk} * a.channels + at.channel] = sum;
}

// Sums over the 8 channels of a warp, whose threads are Bit apart and more: while a thread has several values, each of
// a pair takes half of them from the other. What is left are the first of `values`.
template <int Count, int Bit, int Size>
__device__ void fold(float (&values)[Size], int lane) {
  if constexpr (Bit < 32) {
    const bool upper = (lane & Bit) != 0;
    constexpr int kHalf = Count / 2;
    if constexpr (Count > 1) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float sent = upper ? values[i] : values[kHalf + i];
        const float kept = upper ? values[kHalf + i] : values[i];
        values[i] = kept + __shfl_xor_sync(0xffffffffU, sent, Bit);
      }
      fold<kHalf, Bit * 2>(values, lane);
    } else {
      values[0] += __shfl_xor_sync(0xffffffffU, values[0], Bit);
      fold<1, Bit * 2>(values, lane);
    }
  }
}

template <int S>
struct BackwardShared {
  static constexpr int kSums = 2 * S;                       // of a thread: its dB and dC
  static constexpr int kSaved = S >= 2 ? 64 : 32;           // floats of states that a thread can keep
  static constexpr int kTile = kSaved / S;                  // rows of a tile
  static constexpr int kLeft = kSums >= 8 ? kSums / 8 : 1;  // sums that a thread has after folding

  NarrowTile<S> narrow;
  WideTile x, deltas, dps, slopes;
  float before[kSaved][kScanThreads];
  float sums[kScanWarps][kScanRows][kScanLanes][kSums];

  // The first of a thread's sums after folding, and whether another thread has the same.
  __device__ static int first_sum(int lane) {
    int first = 0;
    int count = kSums;
    for (int bit = kScanLanes; bit < 32 && count > 1; bit *= 2) {
      count /= 2;
      if ((lane & bit) != 0) first += count;
    }
    return first;
  }
  __device__ static bool has_twin(int lane) {
    int count = kSums;
    for (int bit = kScanLanes; bit < 32; bit *= 2) {
      if (count == 1 && (lane & bit) != 0) return true;
      count = count > 1 ? count / 2 : 1;
    }
    return false;
  }
};

// One chunk for one group of channels: outputs but dB and dC, which are added to shared.sums.
template <class T, int S>
__device__ void chunk_backward(const Scan<T>& a, const ScanGradients<T>& g, int chunk, int group, bool first_of_range,
                               std::int64_t range, BackwardShared<S>& shared) {
  using Shared = BackwardShared<S>;
  const ScanPlace at(chunk, group, a.rows, a.channels);
  for_wide(at, [&](int t, int column, int channel) {
    const bool there = channel < a.channels;
    const int row = at.begin + t;
    const float shifted = there ? element(a.dt, row, channel) + a.dt_bias[channel] : 0.0F;
    shared.x[t][column] = there ? element(a.x, row, channel) : 0.0F;
    shared.deltas[t][column] = there ? softplus(shifted) : 0.0F;
    shared.slopes[t][column] = sigmoid(shifted);
    shared.dps[t][column] = there ? output_gradient(a, g.dy, row, channel) : 0.0F;
  });
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_sum = Shared::first_sum(lane);
  const bool has_twin = Shared::has_twin(lane);
  const Decays<S> A(a, at);
  const float skip = at.inside ? a.skip[at.channel] : 0.0F;
  float G[S];
  load_states(a, at, state_at(a, g.entries, chunk), G);
  float dA[S] = {};
  float dskip = 0;
  float ddt_bias = 0;
  for (int tile = (at.count - 1) / Shared::kTile * Shared::kTile; tile >= 0; tile -= Shared::kTile) {
    const int end = min(at.count, tile + Shared::kTile);
    float h[S];
    load_states(a, at, state_at(a, g.chunk_states, chunk), h);
    for (int t = 0; t < end; ++t) {
      if (shared.narrow.starts[t] >= 0) load_states(a, at, state_at(a, g.h0, shared.narrow.starts[t]), h);
      const float delta = shared.deltas[t][at.column];
      const float written = delta * shared.x[t][at.column];
#pragma unroll
      for (int s = 0; s < S; ++s) {
        if (t >= tile) shared.before[(t - tile) * S + s][threadIdx.x] = h[s];
        h[s] = fmaf(fast_exp2(delta * A.values[s]), h[s], written * shared.narrow.B[t][at.lane * S + s]);
      }
    }
    for (int t = end - 1; t >= tile; --t) {
      if (shared.narrow.ends[t] >= 0) load_states(a, at, state_at(a, g.d_ht, shared.narrow.ends[t]), G);
      const float delta = shared.deltas[t][at.column];
      const float x = shared.x[t][at.column];
      const float dp = shared.dps[t][at.column];
      const float written = delta * x;
      float p = 0;
      float ddelta = 0;
      float through_input = 0;  // sum_n G[n] B[n]
      float sums[Shared::kSums];
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const float B = shared.narrow.B[t][at.lane * S + s];
        const float C = shared.narrow.C[t][at.lane * S + s];
        const float decay = fast_exp2(delta * A.values[s]);
        const float old = shared.before[(t - tile) * S + s][threadIdx.x];
        const float state = fmaf(decay, old, written * B);
        p = fmaf(C, state, p);
        sums[S + s] = dp * state;
        G[s] = fmaf(C, dp, G[s]);
        sums[s] = G[s] * written;
        through_input = fmaf(G[s], B, through_input);
        G[s] *= decay;
        const float of_exponent = G[s] * old * A.values[s];
        ddelta += of_exponent;
        dA[s] = fmaf(of_exponent, delta, dA[s]);
      }
      p = fmaf(skip, x, channel_sum(p));
      ddelta = channel_sum(ddelta) * (1.0F / kLog2e);
      through_input = channel_sum(through_input);
      const float ddt = fmaf(x, through_input, ddelta) * shared.slopes[t][at.column];
      dskip = fmaf(dp, x, dskip);
      ddt_bias += ddt;
      __syncwarp();
      if (at.lane == 0) {  // the four threads of the channel have read what is replaced
        shared.x[t][at.column] = fmaf(delta, through_input, skip * dp);
        shared.slopes[t][at.column] = ddt;
        shared.dps[t][at.column] = p;
      }
      fold<Shared::kSums, kScanLanes>(sums, lane);
      if (!has_twin) {
#pragma unroll
        for (int i = 0; i < Shared::kLeft; ++i) shared.sums[warp][t][at.lane][first_sum + i] += sums[i];
      }
      if (g.dh0 != nullptr && shared.narrow.starts[t] >= 0) {
        store_states(a, at, G, state_at(a, g.dh0, shared.narrow.starts[t]));
      }
    }
  }
  // Only this block adds to these.
  const auto add = [&](float* to, float value) { *to = first_of_range ? value : *to + value; };
  if (at.inside) {
    const std::int64_t of_range = range * a.channels + at.channel;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int n = at.lane * S + s;
      if (n < a.states) add(g.dA_log + of_range * a.states + n, dA[s] * (1.0F / kLog2e));
    }
    if (at.lane == 0) {
      add(g.dskip + of_range, dskip);
      add(g.ddt_bias + of_range, ddt_bias);
    }
  }
  __syncthreads();
  for_wide(at, [&](int t, int column, int channel) {
    if (channel >= a.channels) return;
    const int row = at.begin + t;
    put_element(g.dx, row, channel, shared.x[t][column]);
    put_element(g.ddt, row, channel, shared.slopes[t][column]);
    if (a.z.data != nullptr) {
      const float z = element(a.z, row, channel);
      put_element(g.dz, row, channel, element(g.dy, row, channel) * shared.dps[t][column] * silu_slope(z, sigmoid(z)));
    }
  });
  __syncthreads();
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void scan_backward(Scan<T> a, ScanGradients<T> g) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardShared<S>*>(memory);
  const int range = static_cast<int>(blockIdx.x) / g.shares;
  const int share = static_cast<int>(blockIdx.x) % g.shares;
  const int first = range * g.chunks_per_range;
  const int first_group = share * g.groups_per_share;
  for (int chunk = first; chunk < min(g.chunks, first + g.chunks_per_range); ++chunk) {
    const ScanPlace at(chunk, first_group, a.rows, a.channels);
    load_narrow(a, at, shared.narrow);
    float* sums = &shared.sums[0][0][0][0];
    constexpr int kPerWarp = kScanRows * kScanLanes * BackwardShared<S>::kSums;
    for (int i = static_cast<int>(threadIdx.x); i < kScanWarps * kPerWarp; i += kScanThreads) sums[i] = 0;
    __syncthreads();
    for (int group = first_group; group < min(g.groups, first_group + g.groups_per_share); ++group) {
      chunk_backward(a, g, chunk, group, chunk == first, range, shared);
    }
    for (int i = static_cast<int>(threadIdx.x); i < at.count * kScanLanes * BackwardShared<S>::kSums;
         i += kScanThreads) {
      const int t = i / (kScanLanes * BackwardShared<S>::kSums);
      const int k = i % BackwardShared<S>::kSums;
      const int n = i / BackwardShared<S>::kSums % kScanLanes * S + k % S;
      if (n >= a.states) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kScanWarps; ++w) sum += sums[w * kPerWarp + i];
      g.narrow[((std::int64_t{share} * a.rows + at.begin + t) * 2 + k / S) * a.states + n] = sum;
    }
    __syncthreads();
  }
}

// dB and dC: the shares' sums.
template <class T>
__global__ __launch_bounds__(kBlock) void scan_narrow(const float* narrow, Rows<T> dB, Rows<T> dC, int rows, int states,
                                                      int shares) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t size = std::int64_t{rows} * 2 * states;
  if (i >= size) return;
  float sum = 0;
  for (int k = 0; k < shares; ++k) sum += narrow[k * size + i];
  const int n = static_cast<int>(i % states);
  const int row = static_cast<int>(i / (2 * states));
  put_element(i / states % 2 == 0 ? dB : dC, row, n, sum);
}

// How the work is divided: by the shapes alone.
struct Division {
  std::int64_t chunks, ranges, groups, groups_per_share, shares;

  explicit Division(const SelectiveScanInputs& in) {
    constexpr std::int64_t kMostRanges = 128;
    constexpr std::int64_t kMostShares = 8;
    chunks = scan_chunks(in.x.extent(0));
    ranges = partial_count(chunks, 1, kMostRanges);
    groups = ceil_div(in.x.extent(1), kScanChannels);
    groups_per_share = std::max<std::int64_t>(1, ceil_div(groups, kMostShares));
    shares = ceil_div(groups, groups_per_share);
  }
};

struct BackwardMemory {
  float *entries, *sums, *narrow, *dA_log, *dskip, *ddt_bias;

  BackwardMemory(const SelectiveScanInputs& in, const Division& by, BumpAllocator& memory) {
    const std::int64_t D = in.x.extent(1);
    const std::int64_t state = in.A_log.shape.elements();
    entries = memory.take<float>(by.chunks * state);
    sums = memory.take<float>(by.chunks * D);
    narrow = memory.take<float>(by.shares * in.x.extent(0) * 2 * in.A_log.extent(1));
    dA_log = memory.take<float>(by.ranges * state);
    dskip = memory.take<float>(by.ranges * D);
    ddt_bias = memory.take<float>(by.ranges * D);
  }
};

}  // namespace

std::size_t selective_scan_backward_workspace(const SelectiveScanInputs& in) {
  BumpAllocator counter(nullptr);
  (void)BackwardMemory(in, Division(in), counter);
  return counter.used();
}

void selective_scan_backward(const Context& context, const SelectiveScanBackward& args,
                             std::span<std::byte> workspace) {
  const SelectiveScanInputs& in = args.in;
  const Division by(in);
  BumpAllocator allocator(workspace.data());
  const BackwardMemory memory(in, by, allocator);
  // A sequence without tokens hands its gradient on.
  if (args.dh0) copy_states(context, args.d_ht, args.dh0);
  const std::int64_t rows = in.x.extent(0);
  const std::int64_t D = in.x.extent(1);
  const std::int64_t N = in.A_log.extent(1);
  if (rows * D == 0) return;
  check_count(by.chunks * by.groups, "selective_scan");
  with_scan(in.x.dtype, N, [&](auto type, auto states) {
    using T = typename decltype(type)::type;
    constexpr int S = decltype(states)::value;
    const Scan<T> scan = scan_of<T>(in);
    const ScanGradients<T> g{rows_of<T>(args.dy),
                             rows_of<T>(args.dx),
                             rows_of<T>(args.ddt),
                             rows_of<T>(args.dz),
                             floats(in.h0),
                             floats(args.d_ht),
                             floats(args.chunk_states),
                             floats(args.dh0),
                             memory.entries,
                             memory.dA_log,
                             memory.dskip,
                             memory.ddt_bias,
                             memory.narrow,
                             static_cast<int>(by.chunks),
                             static_cast<int>(ceil_div(by.chunks, by.ranges)),
                             static_cast<int>(by.groups),
                             static_cast<int>(by.groups_per_share),
                             static_cast<int>(by.shares)};
    scan_backward_carry<T, S>
        <<<static_cast<unsigned>(by.chunks * by.groups), kScanThreads, 0, context.stream()>>>(scan, g, memory.sums);
    check_launch("selective_scan_backward_carry");
    join_chunks(context, in, memory.entries, memory.sums, true);
    constexpr int kShared = static_cast<int>(sizeof(BackwardShared<S>));
    require(kShared <= context.shared_memory(),
            "selective_scan: {} states need {} bytes of shared memory, there are {}", N, kShared,
            context.shared_memory());
    const auto kernel = scan_backward<T, S>;
    QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    kernel<<<static_cast<unsigned>(by.ranges * by.shares), kScanThreads, kShared, context.stream()>>>(scan, g);
    check_launch("selective_scan_backward");
    scan_narrow<T><<<blocks_for(rows * 2 * N, kBlock), kBlock, 0, context.stream()>>>(
        memory.narrow, rows_of<T>(args.dB), rows_of<T>(args.dC), static_cast<int>(rows), static_cast<int>(N),
        static_cast<int>(by.shares));
    check_launch("selective_scan_narrow");
  });
  add_partials(context, memory.dA_log, by.ranges, D * N, floats(args.dA_log));
  add_partials(context, memory.dskip, by.ranges, D, floats(args.dskip));
  add_partials(context, memory.ddt_bias, by.ranges, D, floats(args.ddt_bias));
}

}  // namespace qdelta::cuda
