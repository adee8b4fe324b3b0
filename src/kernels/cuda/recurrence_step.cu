// One token for each row, in place on a pool of states, with a = exp(log_decay), x = k + mix q:
//
//   r = write v - erase a x^T S          o = scale (a q^T S + (q.k) r)          S <- a S + k r^T
//
// Bound by reading and writing the state once. A block has a slice of the columns of one head's state in registers: it
// computes x^T S and q^T S from the old state, then updates it and writes it back. The loads of the state are in flight
// while q and k are normalised. Sums have the same order whatever the width of a slice, which depends on the number of
// rows: a row's bits do not.
//
// Where recent tokens are kept beside the states (kernels/recurrence.h), S is the sum of the state and of those, and
// the new token joins them; when there is no room for it they first go into the state. A group of rows of the state has
// one of the tokens, so that its part of x^T S is one more term of the group's sum.
#include "kernels/cuda/gates.cuh"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/recent_tokens.cuh"
#include "kernels/cuda/steps.h"
#include "kernels/recurrence_check.h"

namespace qdelta::cuda {
namespace {

constexpr int kRowGroups = 16;  // state rows that a block loads together
static_assert(kRowGroups == kRecentTokens);
constexpr int kSummed = 4;  // of them, whose sums come first

// Strided views of q, k, v, o and the gates: [row][head][element].
struct StridedView {
  Rows<RuntimeType> data;  // ld: between rows
  std::int64_t head, element;
  // Zero where not valid.
  [[nodiscard]] __device__ float at(std::int64_t r, std::int64_t h, std::int64_t i, bool valid = true) const {
    return data.get_if(r * data.ld + h * head + i * element, valid);
  }
};

struct StepArgs {
  StridedView q, k, v, o, g, beta, lambda;
  GateArgs gates;  // where its inputs are given they replace g, beta and lambda
  float* states;
  std::int64_t state_stride, state_head_stride, state_row_stride;
  float* recent;
  std::int64_t recent_stride, recent_head_stride;
  const void* index;  // null: row r has state r
  std::int64_t index_stride, pool;
  bool index_is_i64, qk_l2norm;
  Rule rule;
  float scale;
  int K, V, heads, group_size;  // group_size: value heads for each query/key head
  unsigned slices;

  // What the gates are made of or, where that is not given, the gates themselves.
  [[nodiscard]] __device__ GateInputs gate_inputs(int r, int h) const {
    const auto input = [&](const Rows<RuntimeType>& projection, const StridedView& gate) {
      const bool is_projected = projection.data != nullptr;
      const Rows<RuntimeType>& from = is_projected ? projection : gate.data;
      return from.get_if(r * from.ld + h * (is_projected ? 1 : gate.head), from.data != nullptr);
    };
    return {input(gates.a, g), input(gates.b, beta), input(gates.l, lambda)};
  }
  [[nodiscard]] __device__ RuleInputs<float> gates_of(const GateInputs& inputs, const GateWeights& weights) const {
    RuleInputs<float> in{inputs.a, inputs.b, inputs.l};
    if (gates.a.data != nullptr) {
      const float step = gates.step_of(inputs.a, weights);
      in.g = gates.g_of(step, weights);
      if (gates.step_is_beta) in.beta = step;
    }
    if (gates.b.data != nullptr) in.beta = gates.beta_of(inputs.b);
    if (gates.l.data != nullptr) in.lambda = gates.lambda_of(inputs.l, weights);
    return in;
  }
};

// 1 / |q| and 1 / |k|, and the dot products of the normalised rows.
struct Norms {
  float q, k, k_dot_k, q_dot_k;
};

// In double, where squares overflow a float.
__device__ __noinline__ Norms norms_double(const StepArgs& a, int r, int q_head) {
  double products[3] = {};
  for (int i = 0; i < a.K; ++i) {
    const double q = a.q.at(r, q_head, i);
    const double k = a.k.at(r, q_head, i);
    products[0] += q * q;
    products[1] += k * k;
    products[2] += q * k;
  }
  const double by_q = 1.0 / sqrt(products[0] + kNormEpsilon);
  const double by_k = 1.0 / sqrt(products[1] + kNormEpsilon);
  return {static_cast<float>(by_q), static_cast<float>(by_k), static_cast<float>(products[1] * by_k * by_k),
          static_cast<float>(products[2] * by_q * by_k)};
}

template <int N>
struct alignas(sizeof(float) * N) Columns {
  float values[N];
};

// What a thread has of the recent tokens: of one of them, that of its row group, some of the key and its columns of the
// residual. Beyond the last all is zero.
template <int N, int VectorsPerSlice, int RowsPerThread>
class RecentOfThread {
 public:
  // The tokens are in memory that only this kernel writes.
  __device__ RecentOfThread(const RecentOfHead& recent, int first_column, int column, bool in_range)
      : range_(recent, first_column) {
    const RecentDecays decays(recent, range_);
    state_weight_ = decays.of_state();
    weight_ = decays.behind(token());
    const bool valid = token() < range_.count;
    const int row = range_.row(token());
    residual_ = {};
    if (valid && in_range) residual_ = *reinterpret_cast<const Columns<N>*>(recent.residuals + row * recent.V + column);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      key_[e] = valid && element(e) < recent.K ? recent.keys[row * recent.K + element(e)] : 0.0F;
    }
  }
  [[nodiscard]] __device__ const RecentRange& range() const { return range_; }
  [[nodiscard]] __device__ bool is_full() const { return range_.count == kRecentTokens; }

  // From the thread's terms of x^T S and q^T S for the state in the pool to those for the state as it is.
  __device__ void add_to(Columns<N> (&dots)[2], const float* x, const float* q) const {
    const float* const rows[2] = {x, q};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float weight = weight_ * key_dot(rows[which]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dots[which].values[i] = fmaf(weight, residual_.values[i], state_weight_ * dots[which].values[i]);
      }
    }
  }

  // For all threads of the block: the tokens go into the state in registers, and then there are none.
  template <class Shared>
  __device__ void settle(Columns<N> (&state)[RowsPerThread], Shared& shared) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) shared.keys[token()][element(e)] = key_[e];
#pragma unroll
    for (int i = 0; i < N; ++i) shared.residuals[token()][vector()].values[i] = weight_ * residual_.values[i];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < RowsPerThread; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) state[j].values[i] *= state_weight_;
    }
    for (int other = 0; other < kRecentTokens; ++other) {
      const Columns<N> r = shared.residuals[other][vector()];
#pragma unroll
      for (int j = 0; j < RowsPerThread; ++j) {
        const float key = shared.keys[other][token() + j * kRowGroups];
#pragma unroll
        for (int i = 0; i < N; ++i) state[j].values[i] = fmaf(key, r.values[i], state[j].values[i]);
      }
    }
    range_.clear();
    state_weight_ = 1.0F;
    weight_ = 0.0F;
  }

 private:
  static constexpr int kElements = kRowGroups * RowsPerThread / VectorsPerSlice;
  // Sums over the key have one order whatever the width of a slice: that of 16 lanes which take elements in turn.
  static constexpr int kLanes = 16;
  static constexpr int kChains = kLanes / VectorsPerSlice;

  [[nodiscard]] static __device__ int token() { return static_cast<int>(threadIdx.x) / VectorsPerSlice; }
  [[nodiscard]] static __device__ int vector() { return static_cast<int>(threadIdx.x) % VectorsPerSlice; }
  [[nodiscard]] static __device__ int element(int e) { return vector() + e * VectorsPerSlice; }

  [[nodiscard]] __device__ float key_dot(const float* row) const {
    float chains[kChains] = {};
#pragma unroll
    for (int e = 0; e < kElements; ++e) chains[e % kChains] = fmaf(key_[e], row[element(e)], chains[e % kChains]);
    float sum = chains[0];
    if (kChains == 2) sum += chains[kChains - 1];
#pragma unroll
    for (int step = VectorsPerSlice / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    return sum;
  }

  RecentRange range_;
  float state_weight_, weight_;
  Columns<N> residual_;
  float key_[kElements];
};
template <int N, int VectorsPerSlice, int RowsPerThread>
struct SharedRecent {
  float keys[kRecentTokens][kRowGroups * RowsPerThread];
  Columns<N> residuals[kRecentTokens][VectorsPerSlice];
};
// Where there are none.
struct NoRecent {
  template <class... Args>
  __device__ explicit NoRecent(const Args&... /*args*/) {}
};

// A block's part of a step: a slice of VectorsPerSlice vectors of N columns. A thread has one of the vectors, and of it
// RowsPerThread rows of the state.
template <int N, int VectorsPerSlice, int RowsPerThread, bool kRecent>
struct SliceStep {
  static constexpr int kThreads = VectorsPerSlice * kRowGroups;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRows = kRowGroups * RowsPerThread;
  static constexpr int kLoaders = 128;  // threads that load q and k, of 128 or 256
  static constexpr int kPerLoader = (kRows + kLoaders - 1) / kLoaders;
  struct Shared {
    float q[kRows], k[kRows], x[kRows];
    float warp_products[4][3];
    Columns<N> warp_dots[kWarps][2][VectorsPerSlice];
    std::conditional_t<kRecent, SharedRecent<N, VectorsPerSlice, RowsPerThread>, char> recent;
  };

  const StepArgs& a;
  Shared& shared;
  int vector = static_cast<int>(threadIdx.x) % VectorsPerSlice;
  int row_group = static_cast<int>(threadIdx.x) / VectorsPerSlice;
  int slice, r, h, q_head, c;  // the row of the call, the value head and the key's, the first of the thread's columns
  Columns<N> s[RowsPerThread];
  float q_part[kPerLoader], k_part[kPerLoader], v[N];
  GateWeights gate_weights;
  RuleInputs<float> gates;

  __device__ SliceStep(const StepArgs& args, Shared& memory) : a(args), shared(memory) {
    const unsigned row_head = blockIdx.x / a.slices;
    slice = static_cast<int>(blockIdx.x % a.slices);
    r = static_cast<int>(row_head / static_cast<unsigned>(a.heads));
    h = static_cast<int>(row_head % static_cast<unsigned>(a.heads));
    q_head = h / a.group_size;
    c = (slice * VectorsPerSlice + vector) * N;
  }
  [[nodiscard]] __device__ bool in_range() const { return c < a.V; }
  [[nodiscard]] __device__ int first_column() const { return slice * VectorsPerSlice * N; }
  [[nodiscard]] __device__ int row(int j) const { return row_group + j * kRowGroups; }
  [[nodiscard]] __device__ bool loads() const { return threadIdx.x < kLoaders; }
  [[nodiscard]] static __device__ int loaded(int e) { return static_cast<int>(threadIdx.x) + e * kLoaders; }

  // -1: none.
  [[nodiscard]] __device__ std::int64_t slot() const {
    std::int64_t slot = r;
    if (a.index != nullptr) {
      slot = a.index_is_i64 ? static_cast<const std::int64_t*>(a.index)[r * a.index_stride]
                            : static_cast<const std::int32_t*>(a.index)[r * a.index_stride];
    }
    return slot < a.pool ? slot : -1;
  }
  [[nodiscard]] __device__ float* state_of(std::int64_t slot) const {
    return a.states + slot * a.state_stride + h * a.state_head_stride + c;
  }
  __device__ void load_state(const float* state) {
#pragma unroll
    for (int j = 0; j < RowsPerThread; ++j) {
      if (in_range() && row(j) < a.K) {
        s[j] = *reinterpret_cast<const Columns<N>*>(state + row(j) * a.state_row_stride);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) s[j].values[i] = 0.0F;
      }
    }
  }
  __device__ void store_state(float* state) const {
#pragma unroll
    for (int j = 0; j < RowsPerThread; ++j) {
      if (in_range() && row(j) < a.K) *reinterpret_cast<Columns<N>*>(state + row(j) * a.state_row_stride) = s[j];
    }
  }

  // What the token has; q.q, k.k and q.k.
  __device__ void load_token(float (&products)[3]) {
    const GateInputs gate_inputs = a.gate_inputs(r, h);
#pragma unroll
    for (int e = 0; e < kPerLoader; ++e) {
      const int i = loaded(e);
      q_part[e] = a.q.at(r, q_head, i, loads() && i < a.K);
      k_part[e] = a.k.at(r, q_head, i, loads() && i < a.K);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = a.v.at(r, h, c + i, in_range());
#pragma unroll
    for (int e = 0; e < kPerLoader; ++e) {
      products[0] += q_part[e] * q_part[e];
      products[1] += k_part[e] * k_part[e];
      products[2] += q_part[e] * k_part[e];
    }
    gates = a.gates_of(gate_inputs, gate_weights);
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      products[p] = warp_sum(products[p]);
      if (loads() && threadIdx.x % 32 == 0) shared.warp_products[threadIdx.x / 32][p] = products[p];
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      products[p] = shared.warp_products[0][p];
#pragma unroll
      for (int w = 1; w < kLoaders / 32; ++w) products[p] += shared.warp_products[w][p];
    }
  }
  [[nodiscard]] __device__ Norms norms_of(const float (&products)[3]) const {
    if (!a.qk_l2norm) return {1.0F, 1.0F, products[1], products[2]};
    if (!isfinite(products[0]) || !isfinite(products[1])) return norms_double(a, r, q_head);
    const float by_q = 1.0F / sqrtf(products[0] + static_cast<float>(kNormEpsilon));
    const float by_k = 1.0F / sqrtf(products[1] + static_cast<float>(kNormEpsilon));
    return {by_q, by_k, products[1] * by_k * by_k, products[2] * by_q * by_k};
  }
  // Normalised, with x = k + mix q, in shared memory.
  __device__ void share_rows(const Norms& norms, float mix) const {
#pragma unroll
    for (int e = 0; e < kPerLoader; ++e) {
      const int i = loaded(e);
      if (!loads() || i >= kRows) continue;
      shared.q[i] = q_part[e] * norms.q;
      shared.k[i] = k_part[e] * norms.k;
      shared.x[i] = shared.k[i] + mix * shared.q[i];
    }
    __syncthreads();
  }

  // The thread's terms of x^T S and q^T S.
  __device__ void dot_own(Columns<N> (&dots)[2]) const {
#pragma unroll
    for (int j = 0; j < RowsPerThread; ++j) {
      const float xi = shared.x[row(j)];
      const float qi = shared.q[row(j)];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dots[0].values[i] = fmaf(xi, s[j].values[i], dots[0].values[i]);
        dots[1].values[i] = fmaf(qi, s[j].values[i], dots[1].values[i]);
      }
    }
  }
  // Their sums over kSummed groups of rows, then over all of these in order.
  __device__ void sum_dots(Columns<N> (&dots)[2]) const {
#pragma unroll
    for (int step = VectorsPerSlice; step < 32; step *= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
#pragma unroll
        for (Columns<N>& dot : dots) dot.values[i] += __shfl_xor_sync(0xffffffffU, dot.values[i], step);
      }
    }
    if (threadIdx.x % 32 < VectorsPerSlice) {
      shared.warp_dots[threadIdx.x / 32][0][vector] = dots[0];
      shared.warp_dots[threadIdx.x / 32][1][vector] = dots[1];
    }
    __syncthreads();
    constexpr int kWarpsSummed = kSummed * VectorsPerSlice / 32;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int w = 0; w < kWarps; w += kWarpsSummed) {
        Columns<N> some = shared.warp_dots[w][which][vector];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (kWarpsSummed == 2) some.values[i] += shared.warp_dots[w + kWarpsSummed - 1][which][vector].values[i];
          dots[which].values[i] = w == 0 ? some.values[i] : dots[which].values[i] + some.values[i];
        }
      }
    }
  }

  // S <- decay S + k r^T
  __device__ void update(float decay, const float (&residual)[N]) {
#pragma unroll
    for (int j = 0; j < RowsPerThread; ++j) {
      const float ki = shared.k[row(j)];
#pragma unroll
      for (int i = 0; i < N; ++i) s[j].values[i] = fmaf(ki, residual[i], decay * s[j].values[i]);
    }
  }
  // The token joins the recent ones. The keys and decays of a head are written by its first slice.
  __device__ void keep(RecentOfHead& recent, const RecentRange& range, float decay, const float (&residual)[N]) const {
    const int to = range.row(range.count);
    if (slice == 0) {
      for (auto i = static_cast<int>(threadIdx.x); i < a.K; i += kThreads) recent.keys[to * a.K + i] = shared.k[i];
      if (threadIdx.x == 0) recent.decays[to] = decay;
    }
    if (!in_range() || row_group > 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      recent.residuals[to * a.V + c + i] = residual[i];
      recent.first_rows[c + i] = static_cast<float>(range.first_row);
      recent.counts[c + i] = static_cast<float>(range.count + 1);
    }
  }
  __device__ void store_output(const float (&o)[N]) const {
    if (!in_range() || row_group > 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) a.o.data.set(r * a.o.data.ld + h * a.o.head + (c + i) * a.o.element, o[i]);
  }
};

// Narrow slices are for few blocks, which have all the registers that they want.
constexpr int blocks_per_sm(int vectors_per_slice, int rows_per_thread) {
  if (vectors_per_slice == 16) return rows_per_thread <= 8 ? 3 : 2;
  return rows_per_thread <= 8 ? 4 : 3;
}

template <int N, int VectorsPerSlice, int RowsPerThread, bool kRecent>
__global__ __launch_bounds__(VectorsPerSlice* kRowGroups,
                             blocks_per_sm(VectorsPerSlice,
                                           RowsPerThread)) void step_kernel(const __grid_constant__ StepArgs a) {
  using Slice = SliceStep<N, VectorsPerSlice, RowsPerThread, kRecent>;
  __shared__ typename Slice::Shared shared;
  ptx::let_next_begin();
  Slice step(a, shared);
  const std::int64_t slot = step.slot();
  if (slot < 0) {
    ptx::wait_for_previous();
    return step.store_output({});
  }
  // What only this kernel writes. The state first, which is the most: it is on its way while the others are looked up
  // one by one.
  float* const state = step.state_of(slot);
  step.load_state(state);
  step.gate_weights = a.gates.weights_of(static_cast<unsigned>(step.h));  // weights, which no kernel ahead writes
  RecentOfHead recent(kRecent ? a.recent + slot * a.recent_stride + step.h * a.recent_head_stride : nullptr, a.K, a.V);
  using Recent = std::conditional_t<kRecent, RecentOfThread<N, VectorsPerSlice, RowsPerThread>, NoRecent>;
  Recent own_recent(recent, step.first_column(), step.c, step.in_range());
  if constexpr (kRecent) {
    if (own_recent.is_full()) {
      own_recent.settle(step.s, shared.recent);
      step.store_state(state);
    }
  }
  ptx::wait_for_previous();

  float products[3] = {};
  step.load_token(products);
  const Norms norms = step.norms_of(products);
  step.gates.k_dot_k = norms.k_dot_k;
  const RuleOutputs<float> rule = rule_forward<float>(a.rule, step.gates);
  const float decay = expf(rule.log_decay);
  step.share_rows(norms, rule.mix);

  Columns<N> dots[2] = {};  // x^T S, q^T S
  step.dot_own(dots);
  if constexpr (kRecent) own_recent.add_to(dots, shared.x, shared.q);
  step.sum_dots(dots);
  float residual[N], o[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    residual[i] = rule.write * step.v[i] - rule.erase * decay * dots[0].values[i];
    o[i] = a.scale * (decay * dots[1].values[i] + norms.q_dot_k * residual[i]);
  }

  if constexpr (kRecent) {
    step.keep(recent, own_recent.range(), decay, residual);
  } else {
    step.update(decay, residual);
    step.store_state(state);
  }
  step.store_output(o);
}

StridedView strided_view(const ConstTensorView& view) {
  StridedView out{};
  if (!view) return out;
  out.data = as_rows<RuntimeType>(view);
  out.head = view.step(1);
  out.element = view.shape.rank > 2 ? view.step(2) : 0;
  return out;
}

// Whether the residuals of recent tokens, of which V are a multiple of 4, can be accessed 4 at a time.
bool has_wide_residuals(const TensorView& recent) {
  return !recent || (reinterpret_cast<std::uintptr_t>(recent.data) % 16 == 0 && recent.step(0) % 4 == 0 &&
                     recent.step(1) % 4 == 0);
}

// Everything but the values of the index, which is in device memory.
void check_step(const RecurrenceStep& args) {
  RecurrenceStep without_index = args;
  without_index.index = {};
  if (args.index) {
    require(args.index.dtype == DType::i32 || args.index.dtype == DType::i64, "index is {}, expected I32 or I64",
            name_of(args.index.dtype));
    require(args.index.shape == Shape{args.q.extent(0)}, "index has shape {}, expected [R] = [{}]",
            args.index.shape.text(), args.q.extent(0));
    without_index.states.shape.extent[0] = std::max(args.states.extent(0), args.q.extent(0));
    if (args.recent) without_index.recent.shape.extent[0] = without_index.states.extent(0);
  }
  check(without_index);
  require(args.q.extent(2) <= kMaxStepKeys, "q has width {}, at most {} on a GPU", args.q.extent(2), kMaxStepKeys);
}

}  // namespace

void recurrence_step(const Context& context, const RecurrenceStep& args) { gated_recurrence_step(context, {}, args); }

void gated_recurrence_step(const Context& context, const GatesForward& gates, const RecurrenceStep& args) {
  check_step(args);
  const std::int64_t R = args.q.extent(0);
  const std::int64_t K = args.q.extent(2);
  const std::int64_t HV = args.v.extent(1);
  const std::int64_t V = args.v.extent(2);
  if (R == 0 || V == 0) return;
  const TensorView& states = args.states;
  const bool vectorized = reinterpret_cast<std::uintptr_t>(states.data) % 16 == 0 && V % 4 == 0 &&
                          states.step(0) % 4 == 0 && states.step(1) % 4 == 0 && states.step(2) % 4 == 0 &&
                          has_wide_residuals(args.recent);
  // A slice of 64 columns, or of 32 where there would be few blocks.
  const std::int64_t vectors_per_slice = R * HV * ceil_div(V, 64) < context.sm_count() ? 8 : 16;
  const std::int64_t slices = ceil_div(V, vectors_per_slice * (vectorized ? 4 : 1));
  require(R * HV * slices < (std::int64_t{1} << 31), "recurrence_step: {} rows are too many for one launch", R);
  const StepArgs a{.q = strided_view(args.q),
                   .k = strided_view(args.k),
                   .v = strided_view(args.v),
                   .o = strided_view(args.o),
                   .g = strided_view(args.g),
                   .beta = strided_view(args.beta),
                   .lambda = strided_view(args.lambda),
                   .gates = gate_args(gates),
                   .states = floats(states),
                   .state_stride = states.step(0),
                   .state_head_stride = states.step(1),
                   .state_row_stride = states.step(2),
                   .recent = args.recent ? floats(args.recent) : nullptr,
                   .recent_stride = args.recent ? args.recent.step(0) : 0,
                   .recent_head_stride = args.recent ? args.recent.step(1) : 0,
                   .index = args.index.data,
                   .index_stride = args.index ? args.index.step(0) : 0,
                   .pool = states.extent(0),
                   .index_is_i64 = args.index.dtype == DType::i64,
                   .qk_l2norm = args.qk_l2norm,
                   .rule = args.rule,
                   .scale = args.scale,
                   .K = static_cast<int>(K),
                   .V = static_cast<int>(V),
                   .heads = static_cast<int>(HV),
                   .group_size = static_cast<int>(HV / args.q.extent(1)),
                   .slices = static_cast<unsigned>(slices)};
  const auto blocks = static_cast<unsigned>(R * HV * slices);
  const auto launch = [&](auto columns, auto vectors, auto rows, auto keeps_recent) {
    launch_overlapped(context, "recurrence_step",
                      step_kernel<decltype(columns)::value, decltype(vectors)::value, decltype(rows)::value,
                                  decltype(keeps_recent)::value>,
                      blocks, decltype(vectors)::value * kRowGroups, 0, a);
  };
  const auto run = [&](auto columns, auto vectors, auto rows) {
    if (args.recent) return launch(columns, vectors, rows, std::true_type());
    launch(columns, vectors, rows, std::false_type());
  };
  const auto dispatch_rows = [&](auto columns, auto vectors) {
    if (K <= 4 * kRowGroups) return run(columns, vectors, std::integral_constant<int, 4>());
    if (K <= 8 * kRowGroups) return run(columns, vectors, std::integral_constant<int, 8>());
    run(columns, vectors, std::integral_constant<int, 16>());
  };
  const auto dispatch_vectors = [&](auto columns) {
    if (vectors_per_slice == 8) return dispatch_rows(columns, std::integral_constant<int, 8>());
    dispatch_rows(columns, std::integral_constant<int, 16>());
  };
  if (vectorized) return dispatch_vectors(std::integral_constant<int, 4>());
  dispatch_vectors(std::integral_constant<int, 1>());
}

}  // namespace qdelta::cuda
