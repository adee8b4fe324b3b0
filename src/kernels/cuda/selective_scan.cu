// h[n] <- exp(delta A[n]) h[n] + delta B[n] x,   y = (sum_n C[n] h[n] + skip x) silu(z),   delta = softplus(dt +
// dt_bias)
//
// Over a chunk of rows the state becomes exp(A sum delta) h + chunk state, so that a scan is three kernels, as in
// Mamba2:
//   chunk_state     all chunks in parallel from a zero state: the chunk state and the sum of delta
//   state_passing   over the chunks in order: the state before each
//   chunk_scan      all chunks in parallel from there, with their outputs
// A single token for each of many rows (decoding) has a kernel of its own. The backward is in
// selective_scan_backward.cu.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/selective_scan.cuh"
#include "kernels/cuda/selective_scan_launch.h"

namespace qdelta::cuda {
namespace {

template <class T>
__device__ void load_x_and_delta(const SelectiveScanArgs<T>& a, const ChunkCoord& at, ChannelTile& x,
                                 ChannelTile& delta) {
  for_each_channel(at, [&](int t, int column, int channel) {
    const bool valid = channel < a.channels;
    const int row = at.begin + t;
    x[t][column] = valid ? load_scalar(a.x, row, channel) : 0.0F;
    delta[t][column] = valid ? softplus(load_scalar(a.dt, row, channel) + a.dt_bias[channel]) : 0.0F;
  });
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void chunk_state_kernel(SelectiveScanArgs<T> a, const float* h0,
                                                                   float* chunk_states, float* sums, int groups) {
  __shared__ StateTile<S> state_tile;
  __shared__ ChannelTile x;
  __shared__ ChannelTile deltas;
  const int chunk = static_cast<int>(blockIdx.x) / groups;
  const ChunkCoord at(chunk, static_cast<int>(blockIdx.x) % groups, a.rows, a.channels);
  load_state_tile(a, at, state_tile);
  load_x_and_delta(a, at, x, deltas);
  __syncthreads();
  const LogDecays<S> A(a, at);
  float h[S] = {};
  float sum = 0;
  for (int t = 0; t < at.count; ++t) {
    if (state_tile.starts[t] >= 0) {
      load_states(a, at, state_at(a, h0, state_tile.starts[t]), h);
      sum = kReset;
    }
    const float delta = deltas[t][at.column];
    const float written = delta * x[t][at.column];
    if (sum >= 0) sum += delta;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      h[s] = fmaf(ptx::exp2_approx(delta * A.values[s]), h[s], written * state_tile.B[t][at.lane * S + s]);
    }
  }
  store_states(a, at, h, state_at(a, chunk_states, chunk));
  if (at.in_range && at.lane == 0) sums[std::int64_t{chunk} * a.channels + at.channel] = sum;
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void chunk_scan_kernel(SelectiveScanArgs<T> a, Rows<T> y, const float* h0,
                                                                  float* ht, const float* entries, int groups) {
  __shared__ StateTile<S> state_tile;
  __shared__ ChannelTile x;
  __shared__ ChannelTile deltas;
  const int chunk = static_cast<int>(blockIdx.x) / groups;
  const ChunkCoord at(chunk, static_cast<int>(blockIdx.x) % groups, a.rows, a.channels);
  load_state_tile(a, at, state_tile);
  load_x_and_delta(a, at, x, deltas);
  __syncthreads();
  const LogDecays<S> A(a, at);
  const float skip = at.in_range ? a.skip[at.channel] : 0.0F;
  float h[S];
  load_states(a, at, state_at(a, entries, chunk), h);
  for (int t = 0; t < at.count; ++t) {
    if (state_tile.starts[t] >= 0) load_states(a, at, state_at(a, h0, state_tile.starts[t]), h);
    const float delta = deltas[t][at.column];
    const float value = x[t][at.column];
    const float written = delta * value;
    float p = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      h[s] = fmaf(ptx::exp2_approx(delta * A.values[s]), h[s], written * state_tile.B[t][at.lane * S + s]);
      p = fmaf(state_tile.C[t][at.lane * S + s], h[s], p);
    }
    p = channel_sum(p);
    __syncwarp();  // all threads of the channel have read x
    if (at.lane == 0) x[t][at.column] = fmaf(skip, value, p);
    if (ht != nullptr && state_tile.ends[t] >= 0) store_states(a, at, h, state_at(a, ht, state_tile.ends[t]));
  }
  __syncthreads();
  for_each_channel(at, [&](int t, int column, int channel) {
    if (channel >= a.channels) return;
    float out = x[t][column];
    if (a.z.data != nullptr) {
      const float z = load_scalar(a.z, at.begin + t, channel);
      out *= z * sigmoid(z);
    }
    store_scalar(y, at.begin + t, channel, out);
  });
}

// A thread for each channel of each row.
template <class T>
__global__ __launch_bounds__(kBlockThreads) void step_kernel(SelectiveScanArgs<T> a, Rows<T> y, float* states,
                                                             const std::int64_t* index, std::int64_t pool) {
  const int d =
      static_cast<int>(blockIdx.x % ((a.channels + kBlockThreads - 1) / kBlockThreads) * kBlockThreads + threadIdx.x);
  const int row = static_cast<int>(blockIdx.x / ((a.channels + kBlockThreads - 1) / kBlockThreads));
  if (d >= a.channels) return;
  const std::int64_t slot = index == nullptr ? row : index[row];
  if (slot < 0 || slot >= pool) return store_scalar(y, row, d, 0.0F);
  float* state = states + slot * a.state_size() + d;
  const float x = load_scalar(a.x, row, d);
  const float delta = softplus(load_scalar(a.dt, row, d) + a.dt_bias[d]);
  const float* A_log = a.A_log + std::int64_t{d} * a.states;
  float p = a.skip[d] * x;
#pragma unroll 8
  for (int n = 0; n < a.states; ++n) {
    const float decay = ptx::exp2_approx(-kLog2e * delta * expf(A_log[n]));
    const float h = fmaf(decay, state[std::int64_t{n} * a.channels], delta * x * load_scalar(a.B, row, n));
    state[std::int64_t{n} * a.channels] = h;
    p = fmaf(load_scalar(a.C, row, n), h, p);
  }
  if (a.z.data != nullptr) {
    const float z = load_scalar(a.z, row, d);
    p *= z * sigmoid(z);
  }
  store_scalar(y, row, d, p);
}

// A thread for each state of each channel; it loads several chunks ahead. In place: the state before a chunk replaces
// its chunk state.
constexpr int kLoadsInFlight = 8;

template <bool Backward>
__global__ __launch_bounds__(kBlockThreads) void state_passing_kernel(const float* A_log, float* chunk_states,
                                                                      const float* sums, int chunks, int channels,
                                                                      int states) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= std::int64_t{channels} * states) return;
  const int n = static_cast<int>(i / channels);
  const int d = static_cast<int>(i % channels);
  const std::int64_t size = std::int64_t{channels} * states;
  const float A = -kLog2e * expf(A_log[std::int64_t{d} * states + n]);
  const auto chunk_of = [&](int k) { return Backward ? chunks - 1 - k : k; };
  float state = 0;
  for (int k0 = 0; k0 < chunks; k0 += kLoadsInFlight) {
    float chunk_state[kLoadsInFlight];
    float sum[kLoadsInFlight];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      if (k0 + k >= chunks) continue;
      chunk_state[k] = chunk_states[chunk_of(k0 + k) * size + i];
      sum[k] = sums[std::int64_t{chunk_of(k0 + k)} * channels + d];
    }
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      if (k0 + k >= chunks) continue;
      chunk_states[chunk_of(k0 + k) * size + i] = state;
      state = sum[k] < 0 ? chunk_state[k] : fmaf(ptx::exp2_approx(A * sum[k]), state, chunk_state[k]);
    }
  }
}

struct ForwardMemory {
  float *chunk_states, *sums, *initial;

  ForwardMemory(const SelectiveScanInputs& in, BumpAllocator& memory) {
    const std::int64_t state = in.A_log.shape.elements();
    const std::int64_t chunks = scan_chunks(in.x.extent(0));
    chunk_states = memory.take<float>(chunks * state);
    sums = memory.take<float>(chunks * in.x.extent(1));
    initial = memory.take<float>((static_cast<std::int64_t>(in.offsets.size()) - 1) * state);
  }
};

}  // namespace

void pass_states(const Context& context, const SelectiveScanInputs& in, float* chunk_states, const float* sums,
                 bool backward) {
  const auto chunks = static_cast<int>(scan_chunks(in.x.extent(0)));
  const auto channels = static_cast<int>(in.x.extent(1));
  const auto states = static_cast<int>(in.A_log.extent(1));
  const auto kernel = backward ? state_passing_kernel<true> : state_passing_kernel<false>;
  kernel<<<blocks_for(in.A_log.shape.elements(), kBlockThreads), kBlockThreads, 0, context.stream()>>>(
      floats(in.A_log), chunk_states, sums, chunks, channels, states);
  check_launch("selective_scan_state_passing");
}

void copy_states(const Context& context, const ConstTensorView& from, const TensorView& to) {
  const std::size_t bytes = static_cast<std::size_t>(to.shape.elements()) * sizeof(float);
  if (bytes == 0 || from.data == to.data) return;
  if (from) {
    QDELTA_CUDA(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, context.stream()));
  } else {
    QDELTA_CUDA(cudaMemsetAsync(to.data, 0, bytes, context.stream()));
  }
}

std::size_t selective_scan_workspace(const SelectiveScanInputs& in, bool backward) {
  BumpAllocator counter(nullptr);
  (void)ForwardMemory(in, counter);
  return backward ? std::max(counter.used(), selective_scan_backward_workspace(in)) : counter.used();
}

void selective_scan_forward(const Context& context, const SelectiveScanForward& args, std::span<std::byte> workspace) {
  const SelectiveScanInputs& in = args.in;
  BumpAllocator allocator(workspace.data());
  const ForwardMemory memory(in, allocator);
  // Where the final states overwrite the initial ones, other blocks still read those: copy them first. A sequence
  // without tokens ends as it began.
  const float* h0 = floats(in.h0);
  if (args.ht && args.ht.data == in.h0.data) {
    copy_states(context, in.h0, {reinterpret_cast<std::byte*>(memory.initial), DType::f32, args.ht.shape});
    h0 = memory.initial;
  }
  if (args.ht) copy_states(context, in.h0, args.ht);
  const std::int64_t chunks = scan_chunks(in.x.extent(0));
  const std::int64_t groups = ceil_div(in.x.extent(1), kScanChannels);
  if (chunks * groups == 0) return;
  check_count(chunks * groups, "selective_scan");
  const auto blocks = static_cast<unsigned>(chunks * groups);
  float* entries = args.chunk_states ? floats(args.chunk_states) : memory.chunk_states;
  dispatch_scan(in.x.dtype, in.A_log.extent(1), [&](auto type, auto states) {
    using T = typename decltype(type)::type;
    constexpr int S = decltype(states)::value;
    const SelectiveScanArgs<T> scan = scan_args<T>(in);
    if (chunks > 1 || args.chunk_states) {
      chunk_state_kernel<T, S>
          <<<blocks, kScanThreads, 0, context.stream()>>>(scan, h0, entries, memory.sums, static_cast<int>(groups));
      check_launch("selective_scan_chunk_state");
      pass_states(context, in, entries, memory.sums, false);
    }
    // With a single chunk, a sequence begins in its first row and brings its own state.
    chunk_scan_kernel<T, S><<<blocks, kScanThreads, 0, context.stream()>>>(
        scan, as_rows<T>(args.y), h0, floats(args.ht), chunks > 1 ? entries : nullptr, static_cast<int>(groups));
    check_launch("selective_scan_chunk_scan");
  });
}

void selective_scan_step(const Context& context, const SelectiveScanStep& args) {
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t blocks = rows * ceil_div(args.x.extent(1), kBlockThreads);
  if (blocks == 0) return;
  check_count(blocks, "selective_scan");
  dispatch_dtype(args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    step_kernel<T><<<static_cast<unsigned>(blocks), kBlockThreads, 0, context.stream()>>>(
        scan_args<T>(args), as_rows<T>(args.y), floats(args.states),
        reinterpret_cast<const std::int64_t*>(args.index.data), args.states.extent(0));
    check_launch("selective_scan_step");
  });
}

}  // namespace qdelta::cuda
