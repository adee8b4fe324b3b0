// From logits to tokens, a block for each row. Candidates are ordered by logit, then by token; every cut keeps the
// first of them and is therefore one place in that order: a logit, and the last token among those with just that logit.
// top-k and top-p find theirs by bisection between logits that occur, without sorting. The draw then walks what is kept
// in an order that is fixed by the threads. All sums are taken in a fixed order.
#include <climits>

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kPack = 4;                        // values that a thread takes at a time
constexpr int kRound = kSampleThreads * kPack;  // and all threads together

template <class T>
struct Sampling {
  Rows<T> logits;
  const std::int64_t* slots;  // null: row r has state r
  SamplingState* states;
  std::uint32_t* seen;
  std::int32_t* tokens;
  std::int64_t state_count;
  int width;
  int held;  // rounds that fit in shared memory; the rest of a longer row is computed from the logits each time

  __device__ std::uint32_t* seen_by(std::int64_t slot) const { return seen + slot * ((width + 31) / 32); }
};

// Philox with four words and ten rounds; the first 53 bits as a number in [0, 1).
__device__ double philox_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t draw) {
  std::uint32_t c[4] = {static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32U),
                        static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32U)};
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t q = std::uint64_t{0xCD9E8D57U} * c[2];
    c[0] = static_cast<std::uint32_t>(q >> 32U) ^ c[1] ^ key[0];
    c[1] = static_cast<std::uint32_t>(q);
    c[2] = static_cast<std::uint32_t>(p >> 32U) ^ c[3] ^ key[1];
    c[3] = static_cast<std::uint32_t>(p);
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  const std::uint64_t bits = (std::uint64_t{c[0]} << 32U) | c[1];
  return static_cast<double>(bits >> 11U) * 0x1.0p-53;
}

// What a sweep over the candidates finds out: how much lies at or above a logit, and the nearest logits to it.
struct Tally {
  float amount = 0;
  float above = INFINITY, below = -INFINITY;

  __device__ void add(const Tally& other) {
    amount += other.amount;
    above = fminf(above, other.above);
    below = fmaxf(below, other.below);
  }
  __device__ Tally from(int lane_step) const {
    return {__shfl_xor_sync(0xffffffffU, amount, lane_step), __shfl_xor_sync(0xffffffffU, above, lane_step),
            __shfl_xor_sync(0xffffffffU, below, lane_step)};
  }
};

struct Best {
  float logit = -INFINITY;
  int token = INT_MAX;

  __device__ void add(const Best& other) {
    if (other.logit > logit || (other.logit == logit && other.token < token)) *this = other;
  }
  __device__ Best from(int lane_step) const {
    return {__shfl_xor_sync(0xffffffffU, logit, lane_step), __shfl_xor_sync(0xffffffffU, token, lane_step)};
  }
};

struct Shared {
  alignas(16) unsigned char joined[kSampleWarps * sizeof(Tally)];
  double scanned[kSampleWarps];
  int chosen;
};

// Joined over all threads, for all of them.
template <class Value>
__device__ Value join(Value value, Shared& shared) {
  auto* of_warps = reinterpret_cast<Value*>(shared.joined);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value.add(value.from(step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value.add(value.from(step));
  __syncthreads();
  return value;
}

// The sum over this thread and those before it; `total` over all.
__device__ double scan(double value, double& total, Shared& shared) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(0xffffffffU, value, step);
    if (lane >= step) value += before;
  }
  if (lane == 31) shared.scanned[warp] = value;
  __syncthreads();
  double before = 0;
  total = 0;
  for (unsigned w = 0; w < kSampleWarps; ++w) {
    if (w < warp) before += shared.scanned[w];
    total += shared.scanned[w];
  }
  __syncthreads();
  return before + value;
}

// Keeps the candidates up to this one, in the order of likelihood.
struct Cut {
  float value = -INFINITY;
  int last = INT_MAX;
  __device__ bool keeps(float v, int token) const { return v > value || (v == value && token <= last); }
};

template <class T, int N>
struct Candidates {
  const Sampling<T>& a;
  float penalty, min_p;
  std::int64_t row;
  const std::uint32_t* seen;  // null where there is no penalty
  float* held;
  Shared& shared;
  bool undefined = false;  // this thread met a NaN
  float most = 0;          // the largest logit
  float to_log2 = 0;       // log2(e) / temperature
  bool weights = false;    // what the values are
  Cut by_logit, by_weight;

  __device__ Candidates(const Sampling<T>& args, const SamplingOptions& options, std::int64_t r, std::int64_t slot,
                        float* memory, Shared& space)
      : a(args),
        penalty(options.repetition_penalty),
        min_p(options.min_p),
        row(r),
        seen(options.repetition_penalty == 1.0F ? nullptr : args.seen_by(slot)),
        held(memory),
        shared(space) {
    for (int round = 0; round < a.held; ++round) {
      float z[kPack];
      load(round, z);
      put(round, z);
    }
  }
  __device__ static int token_of(int round) { return round * kRound + static_cast<int>(threadIdx.x) * kPack; }
  __device__ int rounds() const { return (a.width + kRound - 1) / kRound; }
  // What a value is that is no candidate.
  __device__ float nothing() const { return weights ? 0.0F : -INFINITY; }
  __device__ void put(int round, const float (&v)[kPack]) const {
    *reinterpret_cast<float4*>(held + token_of(round)) = {v[0], v[1], v[2], v[3]};
  }

  // Logits of this thread, the penalty applied; -infinity beyond the row.
  __device__ void load(int round, float (&z)[kPack]) {
    const int first = token_of(round);
#pragma unroll
    for (int i = 0; i < kPack; ++i) z[i] = -INFINITY;
    if (first >= a.width) return;
    if (N == kPack && first + kPack <= a.width) {
      const auto values = a.logits.template load<N>(row, first);
#pragma unroll
      for (int i = 0; i < kPack; ++i) z[i] = values[i % N];
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (first + i < a.width) z[i] = a.logits.template load<1>(row, first + i)[0];
      }
    }
    std::uint32_t bits = 0;
    if (seen != nullptr) bits = seen[first / 32] >> static_cast<unsigned>(first % 32);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      undefined = undefined || isnan(z[i]);
      if ((bits >> static_cast<unsigned>(i) & 1U) != 0) z[i] = z[i] > 0 ? z[i] / penalty : z[i] * penalty;
    }
  }
  __device__ float weight_of(float z, int token) const {
    if (!by_logit.keeps(z, token)) return 0.0F;
    const float w = fast_exp2((z - most) * to_log2);
    return w < min_p ? 0.0F : w;
  }
  // The values of a round as they now are.
  __device__ void get(int round, float (&v)[kPack]) {
    if (round < a.held) {
      const float4 four = *reinterpret_cast<const float4*>(held + token_of(round));
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
      return;
    }
    load(round, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const int token = token_of(round) + i;
      if (weights) v[i] = weight_of(v[i], token);
      const Cut& cut = weights ? by_weight : by_logit;
      if (!cut.keeps(v[i], token)) v[i] = nothing();
    }
  }
  template <class Body>
  __device__ void for_each(const Body& body) {
#pragma unroll 2
    for (int round = 0; round < a.held; ++round) {
      float v[kPack];
      get(round, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) body(v[i], token_of(round) + i);
    }
    for (int round = a.held; round < rounds(); ++round) {
      float v[kPack];
      get(round, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) body(v[i], token_of(round) + i);
    }
  }
  template <class Change>
  __device__ void change_held(const Change& change) {
    for (int round = 0; round < a.held; ++round) {
      float v[kPack];
      get(round, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) v[i] = change(v[i], token_of(round) + i);
      put(round, v);
    }
  }
  __device__ void weigh() {
    change_held([&](float z, int token) { return weight_of(z, token); });
    weights = true;
  }
  __device__ void apply(const Cut& cut) {
    change_held([&](float v, int token) { return cut.keeps(v, token) ? v : nothing(); });
    (weights ? by_weight : by_logit) = cut;
  }

  // How much lies at or above a threshold: the number of candidates, or their weight.
  template <bool Mass>
  __device__ Tally tally(float threshold) {
    Tally mine;
    float sum = 0;
    for_each([&](float v, int /*token*/) {
      const bool counts = v >= threshold;
      sum += counts ? (Mass ? v : 1.0F) : 0.0F;
      mine.above = fminf(mine.above, counts ? v : INFINITY);
      mine.below = fmaxf(mine.below, counts ? -INFINITY : v);
    });
    mine.amount = sum;
    return join(mine, shared);
  }

  // Keeps the first candidates that together reach `share` (of all, if it is a weight).
  template <bool Mass>
  __device__ void keep_first(double share) {
    const Tally all = tally<Mass>(nextafterf(nothing(), INFINITY));
    const double target = Mass ? share * double{all.amount} : share;
    if (!(all.amount > 0) || all.amount <= target) return;
    // At or above `low`, which occurs, lies enough; at or above `high` too little.
    float low = all.above;
    float high = nextafterf(Mass ? 1.0F : most, INFINITY);
    for (int i = 0; i < 400; ++i) {
      float middle = Mass ? sqrtf(low) * sqrtf(high) : low + 0.5F * (high - low);
      if (!(middle > low && middle < high)) middle = nextafterf(low, INFINITY);
      const Tally found = tally<Mass>(middle);
      if (found.amount >= target) {
        low = found.above;
      } else if (found.below > low) {
        high = middle;
      } else {
        break;
      }
    }
    // Of the candidates with just this value, as many as are still needed.
    const double more = target - double{tally<Mass>(nextafterf(low, INFINITY)).amount};
    const double needed = fmax(1.0, ceil(more / (Mass ? double{low} : 1.0)));
    if (threadIdx.x == 0) shared.chosen = INT_MAX;
    __syncthreads();
    double before = 0;
    for (int round = 0; round < rounds() && before < needed; ++round) {
      float v[kPack];
      get(round, v);
      int equal = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) equal += v[i] == low ? 1 : 0;
      double total = 0;
      const double upto = before + scan(equal, total, shared);
      before += total;
      if (upto < needed || upto - equal >= needed) continue;
      auto left = static_cast<int>(needed - (upto - equal));
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (v[i] == low && --left == 0) shared.chosen = token_of(round) + i;
      }
    }
    __syncthreads();
    apply({low, shared.chosen});
    __syncthreads();
  }

  // The candidate at `uniform` of all the weight.
  __device__ int draw(double uniform, int fallback) {
    float sum = 0;
    for_each([&](float w, int /*token*/) { sum += w; });
    double total = 0;
    const double upto = scan(sum, total, shared);
    const double point = uniform * total;
    if (threadIdx.x == 0) shared.chosen = INT_MAX;
    __syncthreads();
    if (sum > 0 && upto > point) atomicMin(&shared.chosen, static_cast<int>(threadIdx.x));
    __syncthreads();
    const int winner = shared.chosen;
    __syncthreads();
    if (winner == static_cast<int>(threadIdx.x)) {
      double reached = upto - sum;
      int chosen = fallback;
      bool found = false;
      for_each([&](float w, int token) {
        if (found || !(w > 0)) return;
        reached += w;
        chosen = token;  // the last one, should rounding leave none
        found = reached > point;
      });
      shared.chosen = chosen;
    }
    __syncthreads();
    return winner == INT_MAX ? fallback : shared.chosen;
  }
};

template <class T, int N>
__global__ __launch_bounds__(kSampleThreads, 1) void sample_kernel(const __grid_constant__ Sampling<T> a) {
  __shared__ Shared shared;
  extern __shared__ __align__(16) float values[];
  const std::int64_t row = blockIdx.x;
  const std::int64_t slot = a.slots == nullptr ? row : a.slots[row];
  if (slot < 0 || slot >= a.state_count) return;
  const SamplingState state = a.states[slot];
  const SamplingOptions& options = state.options;
  Candidates<T, N> candidates(a, options, row, slot, values, shared);
  Best best;
  candidates.for_each([&](float z, int token) {
    if (token < a.width) best.add({z, token});
  });
  best = join(best, shared);
  const bool undefined = __syncthreads_or(candidates.undefined ? 1 : 0) != 0;
  int token = undefined ? -1 : best.token;
  if (options.temperature > 0) {
    const double uniform = philox_uniform(options.seed, state.stream, state.draws);
    if (!undefined && isfinite(best.logit)) {
      candidates.most = best.logit;
      candidates.to_log2 = kLog2e / options.temperature;
      if (options.top_k > 0 && options.top_k < a.width) candidates.template keep_first<false>(options.top_k);
      candidates.weigh();
      if (options.top_p < 1) candidates.template keep_first<true>(options.top_p);
      token = candidates.draw(uniform, token);
    }
  }
  __syncthreads();  // all have read the state
  if (threadIdx.x != 0) return;
  a.tokens[row] = token;
  a.states[slot].draws = state.draws + 1;
  if (token >= 0) a.seen_by(slot)[token / 32] |= std::uint32_t{1} << static_cast<unsigned>(token % 32);
}

}  // namespace

void sample(const Context& context, const Sample& args) {
  check_matrix(args.logits, "logits");
  const std::int64_t rows = args.logits.extent(0);
  const std::int64_t width = args.logits.extent(1);
  if (rows == 0) return;
  const std::int64_t fit = (context.shared_memory() - static_cast<std::int64_t>(sizeof(Shared)) - 1024) /
                           static_cast<std::int64_t>(kRound * sizeof(float));
  const std::int64_t held = std::min(fit, ceil_div(width, kRound));
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    const Sampling<T> a{.logits = as_rows<T>(args.logits),
                        .slots = args.slots.empty() ? nullptr : args.slots.data(),
                        .states = args.states.data(),
                        .seen = args.seen.data(),
                        .tokens = args.tokens.data(),
                        .state_count = static_cast<std::int64_t>(args.states.size()),
                        .width = static_cast<int>(width),
                        .held = static_cast<int>(held)};
    const auto kernel = sample_kernel < T, std::is_same_v<T, RuntimeType> ? 1 : kPack > ;
    const std::size_t bytes = static_cast<std::size_t>(held) * kRound * sizeof(float);
    QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    kernel<<<static_cast<unsigned>(rows), kSampleThreads, bytes, context.stream()>>>(a);
    check_launch("sample");
  };
  // Rows may end within a pack, so only their beginnings need to be aligned.
  ConstTensorView whole = args.logits;
  whole.shape = {rows, kPack};
  if (!aligned(kPack, {whole})) return run(TypeTag<RuntimeType>());
  dispatch_dtype(args.logits.dtype, run);
}

}  // namespace qdelta::cuda
