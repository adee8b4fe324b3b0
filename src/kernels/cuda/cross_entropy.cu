// loss = log sum_v exp(z_v) - z_target;   dz = scale (softmax(z) - onehot(target)), in place of z
// A block for each row, with online softmax. The first packs of each thread stay in registers from the sum to the
// gradient, so that rows of up to 32768 bfloat16 logits are read once; the rest of a longer row is read twice.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

constexpr int kThreads = 512;

// exp(z - shift). Subtracting before scaling to base 2 keeps the precision of large logits.
__device__ float shifted_exp(float z, float shift) { return ptx::exp2_approx((z - shift) * kLog2e); }
// The shift for logits of which `max` is the largest; zero where all are -infinity.
__device__ float shift_of(float max) { return max == -INFINITY ? 0.0F : max; }

// The largest logit and the sum of exp(z - max) over a part of a row.
struct OnlineSoftmax {
  float max = -INFINITY;
  float sum = 0;
};

// The sum for another shift. Where all logits are -infinity it is zero (or NaN) for any shift, and the factor between
// shifts might be infinite.
__device__ float rescaled_sum(const OnlineSoftmax& softmax, float shift) {
  return softmax.max == -INFINITY ? softmax.sum : softmax.sum * shifted_exp(softmax.max, shift);
}

__device__ OnlineSoftmax merged(const OnlineSoftmax& a, const OnlineSoftmax& b) {
  const float max = fmaxf(a.max, b.max);
  const float shift = shift_of(max);
  return {max, rescaled_sum(a, shift) + rescaled_sum(b, shift)};
}

template <class T>
struct CrossEntropyArgs {
  Rows<T> logits;
  const std::int32_t* targets;
  float* loss;
  std::int32_t* best;
  float* log_sum;  // null: not wanted
  int width;
  float scale;
  bool gradient;
};

// Count packs of a row, kThreads apart: the part of a thread. Packs beyond the last whole one of the row are skipped.
template <class T, int N, int Count>
struct Packs {
  Pack<T, N> values[Count];
  int first;  // pack
  int whole;  // packs of the row

  __device__ Packs(const CrossEntropyArgs<T>& a, std::int64_t row, int from) : first(from), whole(a.width / N) {
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (first + p * kThreads < whole) values[p] = a.logits.template load<N>(row, (first + p * kThreads) * N);
    }
  }
  // body(value, column)
  template <class Body>
  __device__ void for_each(const Body& body) const {
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (first + p * kThreads >= whole) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) body(values[p][i], (first + p * kThreads) * N + i);
    }
  }
  // Makes the compiler convert the values again at their next use: keeping the float32 ones would take twice the
  // registers.
  __device__ void hide_from_compiler() {
    if constexpr (std::is_same_v<T, bf16>) {
#pragma unroll
      for (int p = 0; p < Count; ++p) {
        auto* words = reinterpret_cast<unsigned*>(&values[p]);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) ptx::hide_from_compiler(words[i]);
      }
    }
  }
  __device__ void add_to(OnlineSoftmax& softmax) {
    float max = softmax.max;
    for_each([&](float z, int /*column*/) { max = fmaxf(max, z); });
    hide_from_compiler();
    const float shift = shift_of(max);
    softmax.sum = rescaled_sum(softmax, shift);
    softmax.max = max;
    for_each([&](float z, int /*column*/) { softmax.sum += shifted_exp(z, shift); });
    hide_from_compiler();
  }
  __device__ void write_gradient(const CrossEntropyArgs<T>& a, std::int64_t row, float shift, float factor) const {
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (first + p * kThreads >= whole) continue;
      float dz[N];
#pragma unroll
      for (int i = 0; i < N; ++i) dz[i] = factor == 0 ? 0.0F : shifted_exp(values[p][i], shift) * factor;
      a.logits.template store<N>(row, (first + p * kThreads) * N, dz);
    }
  }
};

template <class T, int N, int InRegisters>
__global__ __launch_bounds__(kThreads, 2) void cross_entropy_kernel(CrossEntropyArgs<T> a) {
  constexpr int kStreamedPacks = 4;  // loaded together, of those not in registers
  __shared__ OnlineSoftmax warp_results[kThreads / 32];
  __shared__ int argmax;
  const std::int64_t row = blockIdx.x;
  const auto tid = static_cast<int>(threadIdx.x);
  const int target = a.targets[row];
  const bool in_range = target >= 0 && target < a.width;
  const int whole = a.width / N;
  Packs<T, N, InRegisters> in_registers(a, row, tid);
  const auto for_each_streamed = [&](const auto& body) {
    for (int first = tid + InRegisters * kThreads; first < whole; first += kStreamedPacks * kThreads) {
      Packs<T, N, kStreamedPacks> packs(a, row, first);
      body(packs);
    }
  };
  // The tail of the row, less than a pack, one logit for each of the first threads; and the target's logit. Read before
  // any thread writes.
  const int last = whole * N + tid;
  const float tail = tid < N && last < a.width ? a.logits.template load<1>(row, last)[0] : -INFINITY;
  const float at_target = in_range ? a.logits.template load<1>(row, target)[0] : __int_as_float(0x7fffffff);  // NaN

  OnlineSoftmax partial;
  in_registers.add_to(partial);
  for_each_streamed([&](auto& packs) { packs.add_to(partial); });
  if (tid < N && last < a.width)
    partial = merged(partial, {tail, isnan(tail) ? tail : tail == -INFINITY ? 0.0F : 1.0F});
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const OnlineSoftmax other{__shfl_xor_sync(0xffffffffU, partial.max, step),
                              __shfl_xor_sync(0xffffffffU, partial.sum, step)};
    partial = merged(partial, other);
  }
  if (tid % 32 == 0) warp_results[tid / 32] = partial;
  if (tid == 0) argmax = a.width - 1;
  __syncthreads();
  OnlineSoftmax total = warp_results[tid % (kThreads / 32)];
#pragma unroll
  for (int step = kThreads / 64; step > 0; step /= 2) {
    const OnlineSoftmax other{__shfl_xor_sync(0xffffffffU, total.max, step),
                              __shfl_xor_sync(0xffffffffU, total.sum, step)};
    total = merged(total, other);
  }

  if (a.best != nullptr) {
    int best = a.width - 1;
    const auto update_best = [&](float z, int column) {
      if (z == total.max) best = min(best, column);
    };
    in_registers.for_each(update_best);
    for_each_streamed([&](auto& packs) { packs.for_each(update_best); });
    if (tid < N && last < a.width) update_best(tail, last);
    if (best < a.width - 1) atomicMin(&argmax, best);
    __syncthreads();
    if (tid == 0) a.best[row] = argmax;
  }
  if (tid == 0) {
    const float log_sum = logf(total.sum) + total.max;
    if (a.log_sum != nullptr) a.log_sum[row] = log_sum;
    a.loss[row] = target < 0 ? 0.0F : log_sum - at_target;
  }
  if (!a.gradient) return;
  const float shift = shift_of(total.max);
  const float factor = target < 0 ? 0.0F : a.scale / total.sum;
  in_registers.write_gradient(a, row, shift, factor);
  for_each_streamed([&](auto& packs) { packs.write_gradient(a, row, shift, factor); });
  if (tid < N && last < a.width) {
    const float dz[1] = {factor == 0 ? 0.0F : shifted_exp(tail, shift) * factor};
    a.logits.template store<1>(row, last, dz);
  }
  // The thread that wrote the target's gradient subtracts the one-hot.
  const int owner = target < whole * N ? target / N % kThreads : target - whole * N;
  if (!in_range || owner != tid) return;
  const float dz[1] = {shifted_exp(at_target, shift) * factor - a.scale};
  a.logits.template store<1>(row, target, dz);
}

}  // namespace

void cross_entropy(const Context& context, const CrossEntropy& args) {
  check_matrix(args.logits, "logits");
  const std::int64_t rows = args.logits.extent(0);
  const std::int64_t width = args.logits.extent(1);
  require(static_cast<std::int64_t>(args.targets.size()) == rows && static_cast<std::int64_t>(args.loss.size()) == rows,
          "cross_entropy: {} targets and {} losses for logits {}", args.targets.size(), args.loss.size(),
          args.logits.shape.text());
  require(args.log_sum.empty() || static_cast<std::int64_t>(args.log_sum.size()) == rows,
          "cross_entropy: log_sum has {} places for {} rows", args.log_sum.size(), rows);
  require(args.best.empty() || static_cast<std::int64_t>(args.best.size()) == rows,
          "cross_entropy: best has {} places for {} rows", args.best.size(), rows);
  require(width > 0 && width < (std::int64_t{1} << 30), "cross_entropy: {} logits in a row", width);
  if (rows == 0) return;
  const auto run = [&](auto type, auto in_registers) {
    using T = typename decltype(type)::type;
    const CrossEntropyArgs<T> a{.logits = as_rows<T>(args.logits),
                                .targets = args.targets.data(),
                                .loss = args.loss.data(),
                                .best = args.best.data(),
                                .log_sum = args.log_sum.data(),
                                .width = static_cast<int>(width),
                                .scale = args.scale,
                                .gradient = args.gradient};
    cross_entropy_kernel<T, kVectorWidth<T>, decltype(in_registers)::value>
        <<<static_cast<unsigned>(rows), kThreads, 0, context.stream()>>>(a);
    check_launch("cross_entropy");
  };
  // Rows may end within a pack, so only their starts need to be aligned.
  ConstTensorView whole = args.logits;
  whole.shape = {rows, 8};
  if (!aligned(args.logits.dtype == DType::bf16 ? 8 : 4, {whole})) {
    run(TypeTag<RuntimeType>(), std::integral_constant<int, 8>());
  } else {
    dispatch_dtype(args.logits.dtype, [&](auto type) { run(type, std::integral_constant<int, 8>()); });
  }
}

}  // namespace qdelta::cuda
