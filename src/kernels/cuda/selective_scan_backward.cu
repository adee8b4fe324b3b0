// From the last token to the first, G the gradient of h, h' the state states_before the token, p = sum_n C[n] h[n] +
// skip x:
//   dp = dy silu(z)            dz = dy p silu'(z)         G[n] += C[n] dp              dC[n] = sum_d dp h[n]
//   dB[n] = sum_d G[n] delta x       dx = skip dp + delta sum_n G[n] B[n]              E[n] = G[n] exp(delta A[n])
//   ddelta = sum_n E[n] h'[n] A[n] + x sum_n G[n] B[n]    dA_log[n] += E[n] h'[n] delta A[n]          G <- E
//
// The three kernels of the forward in reverse time: chunk state gradients, state passing, then all chunks in parallel
// with their outputs. In the last one a block takes a range of chunks and a part of the channels (a chunk split and a
// channel split). In a chunk it goes from the last tile of rows to the first: it recomputes the states of the tile from
// the state before the chunk, then goes back through the tile. dB and dC of a chunk are summed over the block's
// channels in shared memory, warp by warp; dA_log, dskip and ddt_bias over its chunks in global memory. The sums of the
// splits are added up at the end, in order.
#include "kernels/cuda/selective_scan_launch.h"

namespace qdelta::cuda {
namespace {

template <class T>
struct ScanGradients {
  Rows<T> dy, dx, ddt, dz;
  const float *h0, *d_ht, *chunk_states;
  float* dh0;
  float* entries;                    // [chunks][N][D]: gradients of the states after the chunks
  float *dA_log, *dskip, *ddt_bias;  // [chunk_splits][D][N], [chunk_splits][D] twice
  float* dB_dC;                      // [channel_splits][rows][2 N]: dB, then dC
  int chunks, chunks_per_split, groups, groups_per_split, channel_splits;
};

// dp = dy silu(z)
template <class T>
__device__ float output_gradient(const SelectiveScanArgs<T>& a, const Rows<T>& dy, int row, int channel) {
  const float d = load_scalar(dy, row, channel);
  if (a.z.data == nullptr) return d;
  const float z = load_scalar(a.z, row, channel);
  return d * z * sigmoid(z);
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void chunk_state_backward_kernel(SelectiveScanArgs<T> a, ScanGradients<T> g,
                                                                            float* sums) {
  __shared__ StateTile<S> state_tile;
  __shared__ ChannelTile dps;
  __shared__ ChannelTile deltas;
  const int chunk = static_cast<int>(blockIdx.x) / g.groups;
  const ChunkCoord at(chunk, static_cast<int>(blockIdx.x) % g.groups, a.rows, a.channels);
  load_state_tile(a, at, state_tile);
  for_each_channel(at, [&](int t, int column, int channel) {
    const bool valid = channel < a.channels;
    const int row = at.begin + t;
    dps[t][column] = valid ? output_gradient(a, g.dy, row, channel) : 0.0F;
    deltas[t][column] = valid ? softplus(load_scalar(a.dt, row, channel) + a.dt_bias[channel]) : 0.0F;
  });
  __syncthreads();
  const LogDecays<S> A(a, at);
  float G[S] = {};
  float sum = 0;
  for (int t = at.count - 1; t >= 0; --t) {
    if (state_tile.ends[t] >= 0) {
      load_states(a, at, state_at(a, g.d_ht, state_tile.ends[t]), G);
      sum = kReset;
    }
    const float delta = deltas[t][at.column];
    const float dp = dps[t][at.column];
    if (sum >= 0) sum += delta;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      G[s] = ptx::exp2_approx(delta * A.values[s]) * fmaf(state_tile.C[t][at.lane * S + s], dp, G[s]);
    }
  }
  store_states(a, at, G, state_at(a, g.entries, chunk));
  if (at.in_range && at.lane == 0) sums[std::int64_t{chunk} * a.channels + at.channel] = sum;
}

// Sums over the 8 channels of a warp, whose threads differ in the lane bits from Bit on, by recursive halving: while a
// thread has several values, it exchanges half of them with its partner. The sums left are the first of `values`.
template <int Count, int Bit, int Size>
__device__ void reduce_scatter(float (&values)[Size], int lane) {
  if constexpr (Bit < 32) {
    const bool upper = (lane & Bit) != 0;
    constexpr int kHalf = Count / 2;
    if constexpr (Count > 1) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float sent = upper ? values[i] : values[kHalf + i];
        const float keep = upper ? values[kHalf + i] : values[i];
        values[i] = keep + __shfl_xor_sync(0xffffffffU, sent, Bit);
      }
      reduce_scatter<kHalf, Bit * 2>(values, lane);
    } else {
      values[0] += __shfl_xor_sync(0xffffffffU, values[0], Bit);
      reduce_scatter<1, Bit * 2>(values, lane);
    }
  }
}

template <int S>
struct BackwardShared {
  static constexpr int kSums = 2 * S;                           // of a thread: its dB and dC
  static constexpr int kSaved = S >= 2 ? 64 : 32;               // floats of states that a thread stores
  static constexpr int kTile = kSaved / S;                      // rows of a tile
  static constexpr int kSumsLeft = kSums >= 8 ? kSums / 8 : 1;  // sums of a thread after the reduce-scatter

  StateTile<S> state_tile;
  ChannelTile x, deltas, dps, derivatives;
  float states_before[kSaved][kScanThreads];
  float sums[kScanWarps][kScanRows][kScanLanes][kSums];

  // The first of a thread's sums after the reduce-scatter, and whether a lower lane has the same.
  __device__ static int first_sum(int lane) {
    int first = 0;
    int count = kSums;
    for (int bit = kScanLanes; bit < 32 && count > 1; bit *= 2) {
      count /= 2;
      if ((lane & bit) != 0) first += count;
    }
    return first;
  }
  __device__ static bool is_duplicate(int lane) {
    int count = kSums;
    for (int bit = kScanLanes; bit < 32; bit *= 2) {
      if (count == 1 && (lane & bit) != 0) return true;
      count = count > 1 ? count / 2 : 1;
    }
    return false;
  }
};

// One chunk of one group of channels: all outputs, but dB and dC are added to shared.sums.
template <class T, int S>
__device__ void backward_of_chunk(const SelectiveScanArgs<T>& a, const ScanGradients<T>& g, int chunk, int group,
                                  bool first_of_split, std::int64_t chunk_split, BackwardShared<S>& shared) {
  using Shared = BackwardShared<S>;
  const ChunkCoord at(chunk, group, a.rows, a.channels);
  for_each_channel(at, [&](int t, int column, int channel) {
    const bool valid = channel < a.channels;
    const int row = at.begin + t;
    const float shifted = valid ? load_scalar(a.dt, row, channel) + a.dt_bias[channel] : 0.0F;
    shared.x[t][column] = valid ? load_scalar(a.x, row, channel) : 0.0F;
    shared.deltas[t][column] = valid ? softplus(shifted) : 0.0F;
    shared.derivatives[t][column] = sigmoid(shifted);
    shared.dps[t][column] = valid ? output_gradient(a, g.dy, row, channel) : 0.0F;
  });
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_sum = Shared::first_sum(lane);
  const bool is_duplicate = Shared::is_duplicate(lane);
  const LogDecays<S> A(a, at);
  const float skip = at.in_range ? a.skip[at.channel] : 0.0F;
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
      if (shared.state_tile.starts[t] >= 0) load_states(a, at, state_at(a, g.h0, shared.state_tile.starts[t]), h);
      const float delta = shared.deltas[t][at.column];
      const float written = delta * shared.x[t][at.column];
#pragma unroll
      for (int s = 0; s < S; ++s) {
        if (t >= tile) shared.states_before[(t - tile) * S + s][threadIdx.x] = h[s];
        h[s] = fmaf(ptx::exp2_approx(delta * A.values[s]), h[s], written * shared.state_tile.B[t][at.lane * S + s]);
      }
    }
    for (int t = end - 1; t >= tile; --t) {
      if (shared.state_tile.ends[t] >= 0) load_states(a, at, state_at(a, g.d_ht, shared.state_tile.ends[t]), G);
      const float delta = shared.deltas[t][at.column];
      const float x = shared.x[t][at.column];
      const float dp = shared.dps[t][at.column];
      const float written = delta * x;
      float p = 0;
      float ddelta = 0;
      float d_written = 0;  // sum_n G[n] B[n]
      float sums[Shared::kSums];
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const float B = shared.state_tile.B[t][at.lane * S + s];
        const float C = shared.state_tile.C[t][at.lane * S + s];
        const float decay = ptx::exp2_approx(delta * A.values[s]);
        const float old = shared.states_before[(t - tile) * S + s][threadIdx.x];
        const float state = fmaf(decay, old, written * B);
        p = fmaf(C, state, p);
        sums[S + s] = dp * state;
        G[s] = fmaf(C, dp, G[s]);
        sums[s] = G[s] * written;
        d_written = fmaf(G[s], B, d_written);
        G[s] *= decay;
        const float of_exponent = G[s] * old * A.values[s];
        ddelta += of_exponent;
        dA[s] = fmaf(of_exponent, delta, dA[s]);
      }
      p = fmaf(skip, x, channel_sum(p));
      ddelta = channel_sum(ddelta) * (1.0F / kLog2e);
      d_written = channel_sum(d_written);
      const float ddt = fmaf(x, d_written, ddelta) * shared.derivatives[t][at.column];
      dskip = fmaf(dp, x, dskip);
      ddt_bias += ddt;
      __syncwarp();
      if (at.lane == 0) {  // all threads of the channel have read these
        shared.x[t][at.column] = fmaf(delta, d_written, skip * dp);
        shared.derivatives[t][at.column] = ddt;
        shared.dps[t][at.column] = p;
      }
      reduce_scatter<Shared::kSums, kScanLanes>(sums, lane);
      if (!is_duplicate) {
#pragma unroll
        for (int i = 0; i < Shared::kSumsLeft; ++i) shared.sums[warp][t][at.lane][first_sum + i] += sums[i];
      }
      if (g.dh0 != nullptr && shared.state_tile.starts[t] >= 0) {
        store_states(a, at, G, state_at(a, g.dh0, shared.state_tile.starts[t]));
      }
    }
  }
  // Only this block adds to these.
  const auto add = [&](float* to, float value) { *to = first_of_split ? value : *to + value; };
  if (at.in_range) {
    const std::int64_t of_split = chunk_split * a.channels + at.channel;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int n = at.lane * S + s;
      if (n < a.states) add(g.dA_log + of_split * a.states + n, dA[s] * (1.0F / kLog2e));
    }
    if (at.lane == 0) {
      add(g.dskip + of_split, dskip);
      add(g.ddt_bias + of_split, ddt_bias);
    }
  }
  __syncthreads();
  for_each_channel(at, [&](int t, int column, int channel) {
    if (channel >= a.channels) return;
    const int row = at.begin + t;
    store_scalar(g.dx, row, channel, shared.x[t][column]);
    store_scalar(g.ddt, row, channel, shared.derivatives[t][column]);
    if (a.z.data != nullptr) {
      const float z = load_scalar(a.z, row, channel);
      store_scalar(g.dz, row, channel,
                   load_scalar(g.dy, row, channel) * shared.dps[t][column] * silu_derivative(z, sigmoid(z)));
    }
  });
  __syncthreads();
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void chunk_scan_backward_kernel(SelectiveScanArgs<T> a, ScanGradients<T> g) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardShared<S>*>(memory);
  const int chunk_split = static_cast<int>(blockIdx.x) / g.channel_splits;
  const int channel_split = static_cast<int>(blockIdx.x) % g.channel_splits;
  const int first = chunk_split * g.chunks_per_split;
  const int first_group = channel_split * g.groups_per_split;
  for (int chunk = first; chunk < min(g.chunks, first + g.chunks_per_split); ++chunk) {
    const ChunkCoord at(chunk, first_group, a.rows, a.channels);
    load_state_tile(a, at, shared.state_tile);
    float* sums = &shared.sums[0][0][0][0];
    constexpr int kPerWarp = kScanRows * kScanLanes * BackwardShared<S>::kSums;
    for (int i = static_cast<int>(threadIdx.x); i < kScanWarps * kPerWarp; i += kScanThreads) sums[i] = 0;
    __syncthreads();
    for (int group = first_group; group < min(g.groups, first_group + g.groups_per_split); ++group) {
      backward_of_chunk(a, g, chunk, group, chunk == first, chunk_split, shared);
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
      g.dB_dC[((std::int64_t{channel_split} * a.rows + at.begin + t) * 2 + k / S) * a.states + n] = sum;
    }
    __syncthreads();
  }
}

// dB and dC: sums over the channel splits.
template <class T>
__global__ __launch_bounds__(kBlockThreads) void reduce_dB_dC_kernel(const float* dB_dC, Rows<T> dB, Rows<T> dC,
                                                                     int rows, int states, int channel_splits) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const std::int64_t size = std::int64_t{rows} * 2 * states;
  if (i >= size) return;
  float sum = 0;
  for (int k = 0; k < channel_splits; ++k) sum += dB_dC[k * size + i];
  const int n = static_cast<int>(i % states);
  const int row = static_cast<int>(i / (2 * states));
  store_scalar(i / states % 2 == 0 ? dB : dC, row, n, sum);
}

// Depends on the shapes alone, and with it the order of sums.
struct WorkPartition {
  std::int64_t chunks, chunk_splits, groups, groups_per_split, channel_splits;

  explicit WorkPartition(const SelectiveScanInputs& in) {
    constexpr std::int64_t kMaxChunkSplits = 128;
    constexpr std::int64_t kMaxChannelSplits = 8;
    chunks = scan_chunks(in.x.extent(0));
    chunk_splits = partial_count(chunks, 1, kMaxChunkSplits);
    groups = ceil_div(in.x.extent(1), kScanChannels);
    groups_per_split = std::max<std::int64_t>(1, ceil_div(groups, kMaxChannelSplits));
    channel_splits = ceil_div(groups, groups_per_split);
  }
};

struct BackwardMemory {
  float *entries, *sums, *dB_dC, *dA_log, *dskip, *ddt_bias;

  BackwardMemory(const SelectiveScanInputs& in, const WorkPartition& by, BumpAllocator& memory) {
    const std::int64_t D = in.x.extent(1);
    const std::int64_t state = in.A_log.shape.elements();
    entries = memory.take<float>(by.chunks * state);
    sums = memory.take<float>(by.chunks * D);
    dB_dC = memory.take<float>(by.channel_splits * in.x.extent(0) * 2 * in.A_log.extent(1));
    dA_log = memory.take<float>(by.chunk_splits * state);
    dskip = memory.take<float>(by.chunk_splits * D);
    ddt_bias = memory.take<float>(by.chunk_splits * D);
  }
};

}  // namespace

std::size_t selective_scan_backward_workspace(const SelectiveScanInputs& in) {
  BumpAllocator counter(nullptr);
  (void)BackwardMemory(in, WorkPartition(in), counter);
  return counter.used();
}

void selective_scan_backward(const Context& context, const SelectiveScanBackward& args,
                             std::span<std::byte> workspace) {
  const SelectiveScanInputs& in = args.in;
  const WorkPartition by(in);
  BumpAllocator allocator(workspace.data());
  const BackwardMemory memory(in, by, allocator);
  // A sequence without tokens passes its gradient through.
  if (args.dh0) copy_states(context, args.d_ht, args.dh0);
  const std::int64_t rows = in.x.extent(0);
  const std::int64_t D = in.x.extent(1);
  const std::int64_t N = in.A_log.extent(1);
  if (rows * D == 0) return;
  check_count(by.chunks * by.groups, "selective_scan");
  dispatch_scan(in.x.dtype, N, [&](auto type, auto states) {
    using T = typename decltype(type)::type;
    constexpr int S = decltype(states)::value;
    const SelectiveScanArgs<T> scan = scan_args<T>(in);
    const ScanGradients<T> g{.dy = as_rows<T>(args.dy),
                             .dx = as_rows<T>(args.dx),
                             .ddt = as_rows<T>(args.ddt),
                             .dz = as_rows<T>(args.dz),
                             .h0 = floats(in.h0),
                             .d_ht = floats(args.d_ht),
                             .chunk_states = floats(args.chunk_states),
                             .dh0 = floats(args.dh0),
                             .entries = memory.entries,
                             .dA_log = memory.dA_log,
                             .dskip = memory.dskip,
                             .ddt_bias = memory.ddt_bias,
                             .dB_dC = memory.dB_dC,
                             .chunks = static_cast<int>(by.chunks),
                             .chunks_per_split = static_cast<int>(ceil_div(by.chunks, by.chunk_splits)),
                             .groups = static_cast<int>(by.groups),
                             .groups_per_split = static_cast<int>(by.groups_per_split),
                             .channel_splits = static_cast<int>(by.channel_splits)};
    chunk_state_backward_kernel<T, S>
        <<<static_cast<unsigned>(by.chunks * by.groups), kScanThreads, 0, context.stream()>>>(scan, g, memory.sums);
    check_launch("selective_scan_chunk_state_backward");
    pass_states(context, in, memory.entries, memory.sums, true);
    constexpr int kShared = static_cast<int>(sizeof(BackwardShared<S>));
    require(kShared <= context.shared_memory(),
            "selective_scan: {} states need {} bytes of shared memory, there are {}", N, kShared,
            context.shared_memory());
    const auto kernel = chunk_scan_backward_kernel<T, S>;
    QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    kernel<<<static_cast<unsigned>(by.chunk_splits * by.channel_splits), kScanThreads, kShared, context.stream()>>>(
        scan, g);
    check_launch("selective_scan_backward");
    reduce_dB_dC_kernel<T><<<blocks_for(rows * 2 * N, kBlockThreads), kBlockThreads, 0, context.stream()>>>(
        memory.dB_dC, as_rows<T>(args.dB), as_rows<T>(args.dC), static_cast<int>(rows), static_cast<int>(N),
        static_cast<int>(by.channel_splits));
    check_launch("selective_scan_reduce_dB_dC");
  });
  add_partials(context, memory.dA_log, by.chunk_splits, D * N, floats(args.dA_log));
  add_partials(context, memory.dskip, by.chunk_splits, D, floats(args.dskip));
  add_partials(context, memory.ddt_bias, by.chunk_splits, D, floats(args.ddt_bias));
}

}  // namespace qdelta::cuda
