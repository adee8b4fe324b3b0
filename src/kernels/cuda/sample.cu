// From logits to tokens, a block for each row. Candidates are ordered by logit, then by token. Every cutoff (top-k,
// min-p, top-p) keeps a prefix of that order, given by the last logit and the last token with just that logit; top-k
// and top-p find it by bisection on the logits, without sorting. The draw goes through the kept candidates in an order
// fixed by the threads, and all sums have a fixed order: results are deterministic.
#include <climits>

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kPack = 4;                            // values of a thread in a pass over the row
constexpr int kPassWidth = kSampleThreads * kPack;  // values of the block in a pass

template <class T>
struct SampleArgs {
  Rows<T> logits;
  const std::int64_t* slots;  // null: row r has state r
  SamplingState* states;
  std::uint32_t* seen;
  float* bias;  // null: no slot uses it
  std::uint32_t* drawn;
  std::int32_t* tokens;
  std::int64_t state_count;
  int width;
  int cached;  // passes cached in shared memory; the rest of a longer row is recomputed from the logits each time

  __device__ std::uint32_t* seen_by(std::int64_t slot) const { return seen + slot * ((width + 31) / 32); }
  __device__ std::uint32_t* drawn_by(std::int64_t slot) const { return drawn + slot * ((width + 31) / 32); }
  // Null where the slot does not use it.
  __device__ float* bias_of(const SamplingState& state, std::int64_t slot) const {
    const bool used = state.biased || state.options.presence_penalty != 0 || state.options.frequency_penalty != 0;
    return bias == nullptr || !used ? nullptr : bias + slot * width;
  }
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

// The result of a pass over the candidates with a threshold: the amount (number or weight) at or above it, and the
// nearest values on both sides.
struct ThresholdCount {
  float amount = 0;
  float above = INFINITY, below = -INFINITY;

  __device__ void add(const ThresholdCount& other) {
    amount += other.amount;
    above = fminf(above, other.above);
    below = fmaxf(below, other.below);
  }
  __device__ ThresholdCount from(int lane_step) const {
    return {__shfl_xor_sync(0xffffffffU, amount, lane_step), __shfl_xor_sync(0xffffffffU, above, lane_step),
            __shfl_xor_sync(0xffffffffU, below, lane_step)};
  }
};

struct Argmax {
  float logit = -INFINITY;
  int token = INT_MAX;

  __device__ void add(const Argmax& other) {
    if (other.logit > logit || (other.logit == logit && other.token < token)) *this = other;
  }
  __device__ Argmax from(int lane_step) const {
    return {__shfl_xor_sync(0xffffffffU, logit, lane_step), __shfl_xor_sync(0xffffffffU, token, lane_step)};
  }
};

struct Shared {
  alignas(16) unsigned char reduce_buffer[kSampleWarps * sizeof(ThresholdCount)];
  double scan_buffer[kSampleWarps];
  int chosen;
};

// Reduced over the block, in all threads.
template <class Value>
__device__ Value block_reduce(Value value, Shared& shared) {
  auto* warp_values = reinterpret_cast<Value*>(shared.reduce_buffer);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value.add(value.from(step));
  if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_values[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value.add(value.from(step));
  __syncthreads();
  return value;
}

// The sum over this thread and those before it; `total` is the sum over all.
__device__ double block_inclusive_scan(double value, double& total, Shared& shared) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(0xffffffffU, value, step);
    if (lane >= step) value += before;
  }
  if (lane == 31) shared.scan_buffer[warp] = value;
  __syncthreads();
  double before = 0;
  total = 0;
  for (unsigned w = 0; w < kSampleWarps; ++w) {
    if (w < warp) before += shared.scan_buffer[w];
    total += shared.scan_buffer[w];
  }
  __syncthreads();
  return before + value;
}

// The last candidate kept, in the order of candidates.
struct Cutoff {
  float value = -INFINITY;
  int last = INT_MAX;
  __device__ bool keeps(float v, int token) const { return v > value || (v == value && token <= last); }
};

template <class T, int N>
struct Candidates {
  const SampleArgs<T>& a;
  float penalty, min_p;
  std::int64_t row;
  const std::uint32_t* seen;  // null where there is no penalty
  const float* bias;          // null where there is none
  const SamplingState& state;
  bool ends_excluded;  // the tokens that end a sequence may not be drawn yet
  float* cached;
  Shared& shared;
  bool has_nan = false;  // this thread met a NaN
  float max_logit = 0;   // the largest logit
  float to_log2 = 0;     // log2(e) / temperature
  bool weights = false;  // the values are weights, not logits
  Cutoff by_logit, by_weight;

  __device__ Candidates(const SampleArgs<T>& args, const SamplingState& own, std::int64_t r, std::int64_t slot,
                        float* memory, Shared& space)
      : a(args),
        penalty(own.options.repetition_penalty),
        min_p(own.options.min_p),
        row(r),
        seen(own.options.repetition_penalty == 1.0F ? nullptr : args.seen_by(slot)),
        bias(args.bias_of(own, slot)),
        state(own),
        ends_excluded(own.draws < own.first_end),
        cached(memory),
        shared(space) {
    for (int pass = 0; pass < a.cached; ++pass) {
      float z[kPack];
      load(pass, z);
      store(pass, z);
    }
  }
  __device__ static int token_of(int pass) { return pass * kPassWidth + static_cast<int>(threadIdx.x) * kPack; }
  __device__ int passes() const { return (a.width + kPassWidth - 1) / kPassWidth; }
  // The value of a token that is no candidate.
  __device__ float excluded_value() const { return weights ? 0.0F : -INFINITY; }
  __device__ void store(int pass, const float (&v)[kPack]) const {
    *reinterpret_cast<float4*>(cached + token_of(pass)) = {v[0], v[1], v[2], v[3]};
  }

  // Logits of this thread, the penalty applied; -infinity beyond the row.
  __device__ void load(int pass, float (&z)[kPack]) {
    const int first = token_of(pass);
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
      has_nan = has_nan || isnan(z[i]);
      if ((bits >> static_cast<unsigned>(i) & 1U) != 0) z[i] = z[i] > 0 ? z[i] / penalty : z[i] * penalty;
      if (bias != nullptr && first + i < a.width) z[i] += bias[first + i];
    }
    if (!ends_excluded) return;
    // Device code cannot call std::array's functions.
    const auto* ends = reinterpret_cast<const std::int32_t*>(&state.ends);
    for (int n = 0; n < static_cast<int>(sizeof(state.ends) / sizeof(std::int32_t)); ++n) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (ends[n] == first + i) z[i] = -INFINITY;
      }
    }
  }
  __device__ float weight_of(float z, int token) const {
    if (!by_logit.keeps(z, token)) return 0.0F;
    const float w = ptx::exp2_approx((z - max_logit) * to_log2);
    return w < min_p ? 0.0F : w;
  }
  // The current values of a pass.
  __device__ void load_current(int pass, float (&v)[kPack]) {
    if (pass < a.cached) {
      const float4 four = *reinterpret_cast<const float4*>(cached + token_of(pass));
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
      return;
    }
    load(pass, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const int token = token_of(pass) + i;
      if (weights) v[i] = weight_of(v[i], token);
      const Cutoff& cutoff = weights ? by_weight : by_logit;
      if (!cutoff.keeps(v[i], token)) v[i] = excluded_value();
    }
  }
  template <class Body>
  __device__ void for_each(const Body& body) {
#pragma unroll 2
    for (int pass = 0; pass < a.cached; ++pass) {
      float v[kPack];
      load_current(pass, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) body(v[i], token_of(pass) + i);
    }
    for (int pass = a.cached; pass < passes(); ++pass) {
      float v[kPack];
      load_current(pass, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) body(v[i], token_of(pass) + i);
    }
  }
  template <class Change>
  __device__ void transform_cached(const Change& change) {
    for (int pass = 0; pass < a.cached; ++pass) {
      float v[kPack];
      load_current(pass, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) v[i] = change(v[i], token_of(pass) + i);
      store(pass, v);
    }
  }
  __device__ void to_weights() {
    transform_cached([&](float z, int token) { return weight_of(z, token); });
    weights = true;
  }
  __device__ void apply(const Cutoff& cutoff) {
    transform_cached([&](float v, int token) { return cutoff.keeps(v, token) ? v : excluded_value(); });
    (weights ? by_weight : by_logit) = cutoff;
  }

  // The number of candidates at or above a threshold, or their weight.
  template <bool Mass>
  __device__ ThresholdCount count_above(float threshold) {
    ThresholdCount partial;
    float sum = 0;
    for_each([&](float v, int /*token*/) {
      const bool counts = v >= threshold;
      sum += counts ? (Mass ? v : 1.0F) : 0.0F;
      partial.above = fminf(partial.above, counts ? v : INFINITY);
      partial.below = fmaxf(partial.below, counts ? -INFINITY : v);
    });
    partial.amount = sum;
    return block_reduce(partial, shared);
  }

  // Keeps the first `share` candidates, or those that together reach `share` of the weight.
  template <bool Mass>
  __device__ void keep_top(double share) {
    const ThresholdCount all = count_above<Mass>(nextafterf(excluded_value(), INFINITY));
    const double target = Mass ? share * double{all.amount} : share;
    if (!(all.amount > 0) || all.amount <= target) return;
    // Invariant: the amount at or above `low`, which is a value that occurs, is enough; above `high` it is not.
    float low = all.above;
    float high = nextafterf(Mass ? 1.0F : max_logit, INFINITY);
    for (int i = 0; i < 400; ++i) {
      float middle = Mass ? sqrtf(low) * sqrtf(high) : low + 0.5F * (high - low);
      if (!(middle > low && middle < high)) middle = nextafterf(low, INFINITY);
      const ThresholdCount found = count_above<Mass>(middle);
      if (found.amount >= target) {
        low = found.above;
      } else if (found.below > low) {
        high = middle;
      } else {
        break;
      }
    }
    // Of the candidates with this value, as many as are still needed.
    const double more = target - double{count_above<Mass>(nextafterf(low, INFINITY)).amount};
    const double needed = fmax(1.0, ceil(more / (Mass ? double{low} : 1.0)));
    if (threadIdx.x == 0) shared.chosen = INT_MAX;
    __syncthreads();
    double before = 0;
    for (int pass = 0; pass < passes() && before < needed; ++pass) {
      float v[kPack];
      load_current(pass, v);
      int equal = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) equal += v[i] == low ? 1 : 0;
      double total = 0;
      const double inclusive = before + block_inclusive_scan(equal, total, shared);
      before += total;
      if (inclusive < needed || inclusive - equal >= needed) continue;
      auto left = static_cast<int>(needed - (inclusive - equal));
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (v[i] == low && --left == 0) shared.chosen = token_of(pass) + i;
      }
    }
    __syncthreads();
    apply({low, shared.chosen});
    __syncthreads();
  }

  // Inverse transform sampling: the candidate at `uniform` of the total weight.
  __device__ int draw(double uniform, int fallback) {
    float sum = 0;
    for_each([&](float w, int /*token*/) { sum += w; });
    double total = 0;
    const double inclusive = block_inclusive_scan(sum, total, shared);
    const double point = uniform * total;
    if (threadIdx.x == 0) shared.chosen = INT_MAX;
    __syncthreads();
    if (sum > 0 && inclusive > point) atomicMin(&shared.chosen, static_cast<int>(threadIdx.x));
    __syncthreads();
    const int winner = shared.chosen;
    __syncthreads();
    if (winner == static_cast<int>(threadIdx.x)) {
      double reached = inclusive - sum;
      int chosen = fallback;
      bool found = false;
      for_each([&](float w, int token) {
        if (found || !(w > 0)) return;
        reached += w;
        chosen = token;  // the last one, where rounding leaves none
        found = reached > point;
      });
      shared.chosen = chosen;
    }
    __syncthreads();
    return winner == INT_MAX ? fallback : shared.chosen;
  }
};

template <class T, int N>
__global__ __launch_bounds__(kSampleThreads, 1) void sample_kernel(const __grid_constant__ SampleArgs<T> a) {
  __shared__ Shared shared;
  extern __shared__ __align__(16) float values[];
  const std::int64_t row = blockIdx.x;
  const std::int64_t slot = a.slots == nullptr ? row : a.slots[row];
  if (slot < 0 || slot >= a.state_count) return;
  const SamplingState state = a.states[slot];
  const SamplingOptions& options = state.options;
  Candidates<T, N> candidates(a, state, row, slot, values, shared);
  Argmax best;
  candidates.for_each([&](float z, int token) {
    if (token < a.width) best.add({z, token});
  });
  best = block_reduce(best, shared);
  const bool has_nan = __syncthreads_or(candidates.has_nan ? 1 : 0) != 0;
  int token = has_nan ? -1 : best.token;
  if (options.temperature > 0) {
    const double uniform = philox_uniform(options.seed, state.stream, state.draws);
    if (!has_nan && isfinite(best.logit)) {
      candidates.max_logit = best.logit;
      candidates.to_log2 = kLog2e / options.temperature;
      if (options.top_k > 0 && options.top_k < a.width) candidates.template keep_top<false>(options.top_k);
      candidates.to_weights();
      if (options.top_p < 1) candidates.template keep_top<true>(options.top_p);
      token = candidates.draw(uniform, token);
    }
  }
  __syncthreads();  // all have read the state
  if (threadIdx.x != 0) return;
  a.tokens[row] = token;
  a.states[slot].draws = state.draws + 1;
  if (token < 0) return;
  const std::uint32_t bit = std::uint32_t{1} << static_cast<unsigned>(token % 32);
  a.seen_by(slot)[token / 32] |= bit;
  float* const bias = a.bias_of(state, slot);
  if (bias == nullptr) return;
  std::uint32_t& drawn = a.drawn_by(slot)[token / 32];
  bias[token] -= options.frequency_penalty + ((drawn & bit) != 0 ? 0.0F : options.presence_penalty);
  drawn |= bit;
}

}  // namespace

void sample(const Context& context, const Sample& args) {
  check_matrix(args.logits, "logits");
  const std::int64_t rows = args.logits.extent(0);
  const std::int64_t width = args.logits.extent(1);
  if (rows == 0) return;
  const std::int64_t fit = (context.shared_memory() - static_cast<std::int64_t>(sizeof(Shared)) - 1024) /
                           static_cast<std::int64_t>(kPassWidth * sizeof(float));
  const std::int64_t cached = std::min(fit, ceil_div(width, kPassWidth));
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    const SampleArgs<T> a{.logits = as_rows<T>(args.logits),
                          .slots = args.slots.empty() ? nullptr : args.slots.data(),
                          .states = args.states.data(),
                          .seen = args.seen.data(),
                          .bias = args.bias.empty() ? nullptr : args.bias.data(),
                          .drawn = args.drawn.data(),
                          .tokens = args.tokens.data(),
                          .state_count = static_cast<std::int64_t>(args.states.size()),
                          .width = static_cast<int>(width),
                          .cached = static_cast<int>(cached)};
    const auto kernel = sample_kernel < T, std::is_same_v<T, RuntimeType> ? 1 : kPack > ;
    const std::size_t bytes = static_cast<std::size_t>(cached) * kPassWidth * sizeof(float);
    QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    kernel<<<static_cast<unsigned>(rows), kSampleThreads, bytes, context.stream()>>>(a);
    check_launch("sample");
  };
  // Rows may end within a pack, so only their starts need to be aligned.
  ConstTensorView whole = args.logits;
  whole.shape = {rows, kPack};
  if (!aligned(kPack, {whole})) return run(TypeTag<RuntimeType>());
  dispatch_dtype(args.logits.dtype, run);
}

}  // namespace qdelta::cuda
