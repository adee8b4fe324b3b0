// loss = log sum_v exp(z_v) - z_target;   dz = scale (softmax(z) - onehot(target)), in place of z
// A block for each row. The first kHeld packs of each thread stay in registers from the sum to the gradient, so that
// rows of up to 32768 bfloat16 logits are read once; what is longer is read again.
#include "kernels/cuda/layers.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {
namespace {

constexpr int kThreads = 512;

// exp(z - base). The difference comes first: it is small where it matters, however large the logits are.
__device__ float shifted_exp(float z, float base) { return fast_exp2((z - base) * kLog2e); }
// The shift for a row, or a part of one, whose largest logit is `most`: where there is none, zero will do.
__device__ float base_of(float most) { return most == -INFINITY ? 0.0F : most; }

// The largest logit and the sum of exp(z - most) of some of a row.
struct Running {
  float most = -INFINITY;
  float sum = 0;
};

// A sum whose largest logit was `most`, for another shift. Without a logit it is zero (or NaN) for any: the quotient of
// the shifts may be infinite there.
__device__ float shifted_sum(const Running& running, float base) {
  return running.most == -INFINITY ? running.sum : running.sum * shifted_exp(running.most, base);
}

__device__ Running joined(const Running& a, const Running& b) {
  const float most = fmaxf(a.most, b.most);
  const float base = base_of(most);
  return {most, shifted_sum(a, base) + shifted_sum(b, base)};
}

template <class T>
struct Loss {
  Rows<T> logits;
  const std::int32_t* targets;
  float* loss;
  std::int32_t* best;
  int width;
  float scale;
  bool gradient;
};

// The packs of a row that a thread looks at together: Count of them, kThreads apart, as far as the row has whole packs.
// Where it has no more they are empty.
template <class T, int N, int Count>
struct Packs {
  Pack<T, N> values[Count];
  int first;  // pack
  int whole;  // packs of the row

  __device__ Packs(const Loss<T>& a, std::int64_t row, int from) : first(from), whole(a.width / N) {
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
  // Lets the compiler forget that it has converted these values before: keeping the float32 ones would cost twice the
  // registers.
  __device__ void forget() {
    if constexpr (std::is_same_v<T, bf16>) {
#pragma unroll
      for (int p = 0; p < Count; ++p) {
        auto* words = reinterpret_cast<unsigned*>(&values[p]);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) asm volatile("" : "+r"(words[i]));
      }
    }
  }
  __device__ void add_to(Running& running) {
    float most = running.most;
    for_each([&](float z, int /*column*/) { most = fmaxf(most, z); });
    forget();
    const float base = base_of(most);
    running.sum = shifted_sum(running, base);
    running.most = most;
    for_each([&](float z, int /*column*/) { running.sum += shifted_exp(z, base); });
    forget();
  }
  __device__ void write_gradient(const Loss<T>& a, std::int64_t row, float base, float factor) const {
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (first + p * kThreads >= whole) continue;
      float dz[N];
#pragma unroll
      for (int i = 0; i < N; ++i) dz[i] = factor == 0 ? 0.0F : shifted_exp(values[p][i], base) * factor;
      a.logits.template store<N>(row, (first + p * kThreads) * N, dz);
    }
  }
};

template <class T, int N, int Held>
__global__ __launch_bounds__(kThreads, 2) void cross_entropy_kernel(Loss<T> a) {
  constexpr int kMore = 4;  // packs at a time of what is not held
  __shared__ Running of_warps[kThreads / 32];
  __shared__ int first_best;
  const std::int64_t row = blockIdx.x;
  const auto tid = static_cast<int>(threadIdx.x);
  const int target = a.targets[row];
  const bool inside = target >= 0 && target < a.width;
  const int whole = a.width / N;
  Packs<T, N, Held> held(a, row, tid);
  const auto for_more = [&](const auto& body) {
    for (int first = tid + Held * kThreads; first < whole; first += kMore * kThreads) {
      Packs<T, N, kMore> packs(a, row, first);
      body(packs);
    }
  };
  // The end of the row, less than a pack, one logit for each of the first threads; and the target's. Read before any
  // thread writes.
  const int last = whole * N + tid;
  const float rest = tid < N && last < a.width ? a.logits.template load<1>(row, last)[0] : -INFINITY;
  const float at_target = inside ? a.logits.template load<1>(row, target)[0] : __int_as_float(0x7fffffff);  // NaN

  Running mine;
  held.add_to(mine);
  for_more([&](auto& packs) { packs.add_to(mine); });
  if (tid < N && last < a.width) mine = joined(mine, {rest, isnan(rest) ? rest : rest == -INFINITY ? 0.0F : 1.0F});
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Running other{__shfl_xor_sync(0xffffffffU, mine.most, step), __shfl_xor_sync(0xffffffffU, mine.sum, step)};
    mine = joined(mine, other);
  }
  if (tid % 32 == 0) of_warps[tid / 32] = mine;
  if (tid == 0) first_best = a.width - 1;
  __syncthreads();
  Running all = of_warps[tid % (kThreads / 32)];
#pragma unroll
  for (int step = kThreads / 64; step > 0; step /= 2) {
    const Running other{__shfl_xor_sync(0xffffffffU, all.most, step), __shfl_xor_sync(0xffffffffU, all.sum, step)};
    all = joined(all, other);
  }

  if (a.best != nullptr) {
    int best = a.width - 1;
    const auto look = [&](float z, int column) {
      if (z == all.most) best = min(best, column);
    };
    held.for_each(look);
    for_more([&](auto& packs) { packs.for_each(look); });
    if (tid < N && last < a.width) look(rest, last);
    if (best < a.width - 1) atomicMin(&first_best, best);
    __syncthreads();
    if (tid == 0) a.best[row] = first_best;
  }
  if (tid == 0) a.loss[row] = target < 0 ? 0.0F : logf(all.sum) + all.most - at_target;
  if (!a.gradient) return;
  const float base = base_of(all.most);
  const float factor = target < 0 ? 0.0F : a.scale / all.sum;
  held.write_gradient(a, row, base, factor);
  for_more([&](auto& packs) { packs.write_gradient(a, row, base, factor); });
  if (tid < N && last < a.width) {
    const float dz[1] = {factor == 0 ? 0.0F : shifted_exp(rest, base) * factor};
    a.logits.template store<1>(row, last, dz);
  }
  // The thread that wrote the target's gradient mends it.
  const int owner = target < whole * N ? target / N % kThreads : target - whole * N;
  if (!inside || owner != tid) return;
  const float dz[1] = {shifted_exp(at_target, base) * factor - a.scale};
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
  require(args.best.empty() || static_cast<std::int64_t>(args.best.size()) == rows,
          "cross_entropy: best has {} places for {} rows", args.best.size(), rows);
  require(width > 0 && width < (std::int64_t{1} << 30), "cross_entropy: {} logits in a row", width);
  if (rows == 0) return;
  const auto run = [&](auto type, auto held) {
    using T = typename decltype(type)::type;
    const Loss<T> a{rows_of<T>(args.logits), args.targets.data(), args.loss.data(), args.best.data(),
                    static_cast<int>(width), args.scale,          args.gradient};
    cross_entropy_kernel<T, kAccess<T>, decltype(held)::value>
        <<<static_cast<unsigned>(rows), kThreads, 0, context.stream()>>>(a);
    check_launch("cross_entropy");
  };
  // Rows may end within a pack, so only their beginnings need to be aligned.
  ConstTensorView whole = args.logits;
  whole.shape = {rows, 8};
  if (!aligned(args.logits.dtype == DType::bf16 ? 8 : 4, {whole})) {
    run(Type<Either>(), std::integral_constant<int, 8>());
  } else {
    with_type(args.logits.dtype, [&](auto type) { run(type, std::integral_constant<int, 8>()); });
  }
}

}  // namespace qdelta::cuda
