// h[n] <- exp(delta A[n]) h[n] + delta B[n] x,   y = (sum_n C[n] h[n] + skip x) silu(z),   delta = softplus(dt +
// dt_bias)
//
// A chunk of rows turns the state before it, in, into exp(A sum delta) in + carry, so that time is gone through in
// three steps, of which the first and the last have all chunks at work at once:
//   carry   each chunk from a zero state: its carry and its sum of delta (or that a sequence begins in it)
//   join    over the chunks in order: the state before each
//   walk    each chunk again, from there, with its outputs
// A single token for each of many rows (decoding) has a kernel of its own. The backward is in
// selective_scan_backward.cu.
#include "kernels/cuda/selective_scan.cuh"
#include "kernels/cuda/selective_scan_parts.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {
namespace {

template <class T>
__device__ void load_steps(const Scan<T>& a, const ScanPlace& at, WideTile& x, WideTile& delta) {
  for_wide(at, [&](int t, int column, int channel) {
    const bool there = channel < a.channels;
    const int row = at.begin + t;
    x[t][column] = there ? element(a.x, row, channel) : 0.0F;
    delta[t][column] = there ? softplus(element(a.dt, row, channel) + a.dt_bias[channel]) : 0.0F;
  });
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void scan_carry(Scan<T> a, const float* h0, float* carries, float* sums,
                                                           int groups) {
  __shared__ NarrowTile<S> narrow;
  __shared__ WideTile x;
  __shared__ WideTile deltas;
  const int chunk = static_cast<int>(blockIdx.x) / groups;
  const ScanPlace at(chunk, static_cast<int>(blockIdx.x) % groups, a.rows, a.channels);
  load_narrow(a, at, narrow);
  load_steps(a, at, x, deltas);
  __syncthreads();
  const Decays<S> A(a, at);
  float h[S] = {};
  float sum = 0;
  for (int t = 0; t < at.count; ++t) {
    if (narrow.starts[t] >= 0) {
      load_states(a, at, state_at(a, h0, narrow.starts[t]), h);
      sum = kCut;
    }
    const float delta = deltas[t][at.column];
    const float written = delta * x[t][at.column];
    if (sum >= 0) sum += delta;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      h[s] = fmaf(fast_exp2(delta * A.values[s]), h[s], written * narrow.B[t][at.lane * S + s]);
    }
  }
  store_states(a, at, h, state_at(a, carries, chunk));
  if (at.inside && at.lane == 0) sums[std::int64_t{chunk} * a.channels + at.channel] = sum;
}

template <class T, int S>
__global__ __launch_bounds__(kScanThreads) void scan_walk(Scan<T> a, Rows<T> y, const float* h0, float* ht,
                                                          const float* entries, int groups) {
  __shared__ NarrowTile<S> narrow;
  __shared__ WideTile x;
  __shared__ WideTile deltas;
  const int chunk = static_cast<int>(blockIdx.x) / groups;
  const ScanPlace at(chunk, static_cast<int>(blockIdx.x) % groups, a.rows, a.channels);
  load_narrow(a, at, narrow);
  load_steps(a, at, x, deltas);
  __syncthreads();
  const Decays<S> A(a, at);
  const float skip = at.inside ? a.skip[at.channel] : 0.0F;
  float h[S];
  load_states(a, at, state_at(a, entries, chunk), h);
  for (int t = 0; t < at.count; ++t) {
    if (narrow.starts[t] >= 0) load_states(a, at, state_at(a, h0, narrow.starts[t]), h);
    const float delta = deltas[t][at.column];
    const float value = x[t][at.column];
    const float written = delta * value;
    float p = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      h[s] = fmaf(fast_exp2(delta * A.values[s]), h[s], written * narrow.B[t][at.lane * S + s]);
      p = fmaf(narrow.C[t][at.lane * S + s], h[s], p);
    }
    p = channel_sum(p);
    __syncwarp();  // all four have read it
    if (at.lane == 0) x[t][at.column] = fmaf(skip, value, p);
    if (ht != nullptr && narrow.ends[t] >= 0) store_states(a, at, h, state_at(a, ht, narrow.ends[t]));
  }
  __syncthreads();
  for_wide(at, [&](int t, int column, int channel) {
    if (channel >= a.channels) return;
    float out = x[t][column];
    if (a.z.data != nullptr) {
      const float z = element(a.z, at.begin + t, channel);
      out *= z * sigmoid(z);
    }
    put_element(y, at.begin + t, channel, out);
  });
}

// A thread has a channel of a row.
template <class T>
__global__ __launch_bounds__(kBlock) void scan_step(Scan<T> a, Rows<T> y, float* states, const std::int64_t* index,
                                                    std::int64_t pool) {
  const int d = static_cast<int>(blockIdx.x % ((a.channels + kBlock - 1) / kBlock) * kBlock + threadIdx.x);
  const int row = static_cast<int>(blockIdx.x / ((a.channels + kBlock - 1) / kBlock));
  if (d >= a.channels) return;
  const std::int64_t slot = index == nullptr ? row : index[row];
  if (slot < 0 || slot >= pool) return put_element(y, row, d, 0.0F);
  float* state = states + slot * a.state_size() + d;
  const float x = element(a.x, row, d);
  const float delta = softplus(element(a.dt, row, d) + a.dt_bias[d]);
  const float* A_log = a.A_log + std::int64_t{d} * a.states;
  float p = a.skip[d] * x;
#pragma unroll 8
  for (int n = 0; n < a.states; ++n) {
    const float decay = fast_exp2(-kLog2e * delta * expf(A_log[n]));
    const float h = fmaf(decay, state[std::int64_t{n} * a.channels], delta * x * element(a.B, row, n));
    state[std::int64_t{n} * a.channels] = h;
    p = fmaf(element(a.C, row, n), h, p);
  }
  if (a.z.data != nullptr) {
    const float z = element(a.z, row, d);
    p *= z * sigmoid(z);
  }
  put_element(y, row, d, p);
}

// A thread takes one state of one channel over the chunks; loads of several are under way at once.
constexpr int kJoinAhead = 8;

template <bool Backward>
__global__ __launch_bounds__(kBlock) void scan_join(const float* A_log, float* carries, const float* sums, int chunks,
                                                    int channels, int states) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= std::int64_t{channels} * states) return;
  const int n = static_cast<int>(i / channels);
  const int d = static_cast<int>(i % channels);
  const std::int64_t size = std::int64_t{channels} * states;
  const float A = -kLog2e * expf(A_log[std::int64_t{d} * states + n]);
  const auto chunk_of = [&](int k) { return Backward ? chunks - 1 - k : k; };
  float state = 0;
  for (int k0 = 0; k0 < chunks; k0 += kJoinAhead) {
    float carry[kJoinAhead];
    float sum[kJoinAhead];
#pragma unroll
    for (int k = 0; k < kJoinAhead; ++k) {
      if (k0 + k >= chunks) continue;
      carry[k] = carries[chunk_of(k0 + k) * size + i];
      sum[k] = sums[std::int64_t{chunk_of(k0 + k)} * channels + d];
    }
#pragma unroll
    for (int k = 0; k < kJoinAhead; ++k) {
      if (k0 + k >= chunks) continue;
      carries[chunk_of(k0 + k) * size + i] = state;
      state = sum[k] < 0 ? carry[k] : fmaf(fast_exp2(A * sum[k]), state, carry[k]);
    }
  }
}

struct ForwardMemory {
  float *carries, *sums, *initial;

  ForwardMemory(const SelectiveScanInputs& in, BumpAllocator& memory) {
    const std::int64_t state = in.A_log.shape.elements();
    const std::int64_t chunks = scan_chunks(in.x.extent(0));
    carries = memory.take<float>(chunks * state);
    sums = memory.take<float>(chunks * in.x.extent(1));
    initial = memory.take<float>((static_cast<std::int64_t>(in.offsets.size()) - 1) * state);
  }
};

}  // namespace

void join_chunks(const Context& context, const SelectiveScanInputs& in, float* carries, const float* sums,
                 bool backward) {
  const auto chunks = static_cast<int>(scan_chunks(in.x.extent(0)));
  const auto channels = static_cast<int>(in.x.extent(1));
  const auto states = static_cast<int>(in.A_log.extent(1));
  const auto kernel = backward ? scan_join<true> : scan_join<false>;
  kernel<<<blocks_for(in.A_log.shape.elements(), kBlock), kBlock, 0, context.stream()>>>(
      floats(in.A_log), carries, sums, chunks, channels, states);
  check_launch("selective_scan_join");
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
  // Where the final states take the place of the initial ones, those are kept aside: other blocks still read them. A
  // sequence without tokens ends as it began.
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
  float* entries = args.chunk_states ? floats(args.chunk_states) : memory.carries;
  with_scan(in.x.dtype, in.A_log.extent(1), [&](auto type, auto states) {
    using T = typename decltype(type)::type;
    constexpr int S = decltype(states)::value;
    const Scan<T> scan = scan_of<T>(in);
    if (chunks > 1 || args.chunk_states) {
      scan_carry<T, S>
          <<<blocks, kScanThreads, 0, context.stream()>>>(scan, h0, entries, memory.sums, static_cast<int>(groups));
      check_launch("selective_scan_carry");
      join_chunks(context, in, entries, memory.sums, false);
    }
    // The only chunk begins with a sequence.
    scan_walk<T, S><<<blocks, kScanThreads, 0, context.stream()>>>(
        scan, rows_of<T>(args.y), h0, floats(args.ht), chunks > 1 ? entries : nullptr, static_cast<int>(groups));
    check_launch("selective_scan_walk");
  });
}

void selective_scan_step(const Context& context, const SelectiveScanStep& args) {
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t blocks = rows * ceil_div(args.x.extent(1), kBlock);
  if (blocks == 0) return;
  check_count(blocks, "selective_scan");
  with_type(args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    scan_step<T><<<static_cast<unsigned>(blocks), kBlock, 0, context.stream()>>>(
        scan_of<T>(args), rows_of<T>(args.y), floats(args.states),
        reinterpret_cast<const std::int64_t*>(args.index.data), args.states.extent(0));
    check_launch("selective_scan_step");
  });
}

}  // namespace qdelta::cuda
