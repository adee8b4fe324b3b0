// All that a step has between the products of a mixer, for one head of one row:
//
//   q, k, v = silu(conv(...)),  gates,  q and k normalised          kernels/layers.h, cuda/gates.cuh
//   r = write v - erase a x^T S,  o = scale (a q^T S + (q.k) r),  S <- a S + k r^T      with a = exp(log_decay),
//   y = weight o / rms . activation(gate)                                               x = k + mix q
//
// Bound by reading and writing the state once. A block goes through the columns of its head's state, kColumns at a
// time: a thread has 4 of them in every kRowGroups-th row. While it computes with these, its part of the next two
// groups of columns is on the way into shared memory; the first two before the kernel ahead is waited for.
#include "kernels/cuda/gates.cuh"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/norms.cuh"
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/steps.h"

namespace qdelta::cuda {
namespace {

constexpr int kColumns = 32;
constexpr int kVectors = kColumns / 4;
constexpr int kRowsPerThread = 8;
constexpr int kMostTaps = 4;
constexpr int kStages = 2;

struct HeadsArgs {
  Rows<bf16> projected;  // the convolution's input
  int q_at, k_at, v_at;  // columns of the first head
  const float* conv_weight;
  int taps;
  float* conv_state;
  std::int64_t conv_stride, conv_ld;
  GateArgs gates;
  Rows<RuntimeType> g, beta, lambda;  // where the gates have no inputs
  float* states;
  std::int64_t state_stride, state_head_stride, state_row_stride, pool;
  const std::int64_t* index;  // null: row r has state r
  Rule rule;
  bool qk_l2norm;
  float scale;
  const float* norm_weight;
  float epsilon;
  Rows<bf16> gate;  // may be null
  GateActivation activation;
  Rows<bf16> y;
  int K, V, heads;

  __device__ RuleInputs<float> gates_of(int r, int h) const {
    const auto head = static_cast<unsigned>(h);
    const auto stored = [&](const Rows<RuntimeType>& view) {
      return view.data != nullptr ? view.get(r * view.ld + h) : 0.0F;
    };
    RuleInputs<float> in;
    if (gates.a.data != nullptr) {
      const float step = gates.step_of(r, head);
      in.g = gates.g_of(step, head);
      in.beta = gates.step_is_beta ? step : stored(beta);
    } else {
      in.g = stored(g);
      in.beta = stored(beta);
    }
    if (gates.b.data != nullptr) in.beta = gates.beta_of(r, head);
    in.lambda = gates.l.data != nullptr ? gates.lambda_of(r, head) : stored(lambda);
    return in;
  }
};

// The vectors of a head in shared memory.
struct HeadVectors {
  float *q, *k, *x, *v, *o;
  __device__ HeadVectors(float* memory, const HeadsArgs& a)
      : q(memory), k(q + a.K), x(k + a.K), v(x + a.K), o(v + a.V) {}
};

// silu of the convolution of 4 channels from c on; the state goes on by a token.
__device__ float4 convolve(const HeadsArgs& a, std::int64_t r, float* state, int c) {
  float u[4] = {};
  const auto x = a.projected.template load<4>(r, c);
  float4 before[kMostTaps - 1];
  float weights[4][kMostTaps];
#pragma unroll
  for (int j = 0; j + 1 < kMostTaps; ++j) {
    if (j + 1 < a.taps) before[j] = *reinterpret_cast<const float4*>(state + j * a.conv_ld + c);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (a.taps == kMostTaps) {
      const float4 w = reinterpret_cast<const float4*>(a.conv_weight)[c + i];
      weights[i][0] = w.x;
      weights[i][1] = w.y;
      weights[i][2] = w.z;
      weights[i][3] = w.w;
    } else {
#pragma unroll
      for (int j = 0; j < kMostTaps; ++j) weights[i][j] = j < a.taps ? a.conv_weight[(c + i) * a.taps + j] : 0.0F;
    }
  }
#pragma unroll
  for (int j = 0; j < kMostTaps; ++j) {
    if (j >= a.taps) continue;
    const bool now = j + 1 == a.taps;
    const float4 old = before[j < kMostTaps - 1 ? j : 0];
    u[0] = fmaf(weights[0][j], now ? x[0] : old.x, u[0]);
    u[1] = fmaf(weights[1][j], now ? x[1] : old.y, u[1]);
    u[2] = fmaf(weights[2][j], now ? x[2] : old.z, u[2]);
    u[3] = fmaf(weights[3][j], now ? x[3] : old.w, u[3]);
  }
#pragma unroll
  for (int j = 0; j + 1 < kMostTaps; ++j) {
    if (j + 1 >= a.taps) continue;
    const float4 next = j + 2 < a.taps ? before[j + 1 < kMostTaps - 1 ? j + 1 : 0] : float4{x[0], x[1], x[2], x[3]};
    *reinterpret_cast<float4*>(state + j * a.conv_ld + c) = next;
  }
  return {u[0] * sigmoid(u[0]), u[1] * sigmoid(u[1]), u[2] * sigmoid(u[2]), u[3] * sigmoid(u[3])};
}

// What the recurrence needs of a token beside q, k, x and v.
struct Token {
  float decay, erase, write, q_dot_k;
};

// Normalises q and k, and makes x. All threads of the block; ends with a barrier.
template <int kThreads>
__device__ Token prepare(const HeadsArgs& a, int r, int h, const HeadVectors& vectors, float (*shared)[3]) {
  constexpr int kWarps = kThreads / 32;
  const auto i = static_cast<int>(threadIdx.x);
  float by_q = 1.0F;
  float by_k = 1.0F;
  const float q = i < a.K ? vectors.q[i] : 0.0F;
  const float k = i < a.K ? vectors.k[i] : 0.0F;
  float products[3] = {q * q, k * k, q * k};
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    products[p] = warp_sum(products[p]);
    if (i % 32 == 0) shared[i / 32][p] = products[p];
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    products[p] = shared[0][p];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) products[p] += shared[w][p];
  }
  if (a.qk_l2norm) {
    if (isfinite(products[0]) && isfinite(products[1])) {
      by_q = 1.0F / sqrtf(products[0] + static_cast<float>(kNormEpsilon));
      by_k = 1.0F / sqrtf(products[1] + static_cast<float>(kNormEpsilon));
      products[1] *= by_k * by_k;
      products[2] *= by_q * by_k;
    } else {  // squares overflow a float: in double
      double sums[3] = {};
      for (int e = 0; e < a.K; ++e) {
        sums[0] += double{vectors.q[e]} * vectors.q[e];
        sums[1] += double{vectors.k[e]} * vectors.k[e];
        sums[2] += double{vectors.q[e]} * vectors.k[e];
      }
      __syncthreads();
      const double q_factor = 1.0 / sqrt(sums[0] + kNormEpsilon);
      const double k_factor = 1.0 / sqrt(sums[1] + kNormEpsilon);
      by_q = static_cast<float>(q_factor);
      by_k = static_cast<float>(k_factor);
      products[1] = static_cast<float>(sums[1] * k_factor * k_factor);
      products[2] = static_cast<float>(sums[2] * q_factor * k_factor);
    }
  }
  RuleInputs<float> gates = a.gates_of(r, h);
  gates.k_dot_k = products[1];
  const RuleOutputs<float> rule = rule_forward<float>(a.rule, gates);
  if (i < a.K) {
    vectors.q[i] = q * by_q;
    vectors.k[i] = k * by_k;
    vectors.x[i] = k * by_k + rule.mix * (q * by_q);
  }
  __syncthreads();
  return {.decay = expf(rule.log_decay), .erase = rule.erase, .write = rule.write, .q_dot_k = products[2]};
}

// y of the head. All threads of the block, after o is complete.
template <int kThreads>
__device__ void store_normed(const HeadsArgs& a, int r, int h, const HeadVectors& vectors, const Pack<bf16, 4>& z,
                             float* shared) {
  const int c = static_cast<int>(threadIdx.x) * 4;
  float4 o{};
  float4 weight{};
  if (c < a.V) {
    o = *reinterpret_cast<const float4*>(vectors.o + c);
    weight = *reinterpret_cast<const float4*>(a.norm_weight + c);
  }
  const float sum = block_sum<kThreads>(o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w, shared);
  if (c >= a.V) return;
  const float s = inverse_rms(sum, a.V, a.epsilon);
  float y[4] = {o.x * s * norm_weight(weight.x), o.y * s * norm_weight(weight.y), o.z * s * norm_weight(weight.z),
                o.w * s * norm_weight(weight.w)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (a.gate.data != nullptr) y[i] *= gate_factor(a.activation, z[i]);
  }
  a.y.template store<4>(r, h * a.V + c, y);
}

__device__ float4 fma4(float a, const float4& x, const float4& y) {
  return {fmaf(a, x.x, y.x), fmaf(a, x.y, y.y), fmaf(a, x.z, y.z), fmaf(a, x.w, y.w)};
}
__device__ float4 from_lane(const float4& value, int step) {
  return {__shfl_xor_sync(0xffffffffU, value.x, step), __shfl_xor_sync(0xffffffffU, value.y, step),
          __shfl_xor_sync(0xffffffffU, value.z, step), __shfl_xor_sync(0xffffffffU, value.w, step)};
}

// What the columns of a thread give to all rows of the state together.
struct Dots {
  float4 x_S, q_S;

  __device__ void add(const Dots& other) {
    x_S = fma4(1.0F, other.x_S, x_S);
    q_S = fma4(1.0F, other.q_S, q_S);
  }
  // Summed over the threads that have the same columns: those of a warp, then the warps in order. One barrier.
  template <int kWarps>
  __device__ void reduce(Dots (*warps)[kVectors]) {
    const auto tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int step = kVectors; step < 32; step *= 2) add({from_lane(x_S, step), from_lane(q_S, step)});
    if (tid % 32 < kVectors) warps[tid / 32][tid % kVectors] = *this;
    __syncthreads();
    *this = warps[0][tid % kVectors];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) add(warps[w][tid % kVectors]);
  }
};

// q, k and v of the head. All threads of the block.
template <int kThreads>
__device__ void convolve_head(const HeadsArgs& a, int r, int h, float* state, const HeadVectors& vectors) {
  for (int e = static_cast<int>(threadIdx.x) * 4; e < 2 * a.K + a.V; e += kThreads * 4) {
    const bool is_q = e < a.K;
    const bool is_k = !is_q && e < 2 * a.K;
    const int i = is_q ? e : is_k ? e - a.K : e - 2 * a.K;
    const int c = is_q ? a.q_at + h * a.K : is_k ? a.k_at + h * a.K : a.v_at + h * a.V;
    float* to = is_q ? vectors.q : is_k ? vectors.k : vectors.v;
    *reinterpret_cast<float4*>(to + i) = convolve(a, r, state, c + i);
  }
}

template <int kRowGroups>
__global__ __launch_bounds__(kVectors* kRowGroups,
                             768 / (kVectors * kRowGroups)) void heads_kernel(const __grid_constant__ HeadsArgs a) {
  constexpr int kThreads = kVectors * kRowGroups;
  constexpr int kWarps = kThreads / 32;
  extern __shared__ __align__(16) unsigned char dynamic[];
  auto* stages = reinterpret_cast<float4*>(dynamic);  // [kStages][kRowsPerThread][kThreads]
  const HeadVectors vectors(reinterpret_cast<float*>(stages + kStages * kRowsPerThread * kThreads), a);
  __shared__ float warp_products[kWarps][3];
  __shared__ float sums[kWarps];
  __shared__ Dots warp_dots[2][kWarps][kVectors];
  const auto tid = static_cast<int>(threadIdx.x);
  const int vector = tid % kVectors;
  const int row_group = tid / kVectors;
  const int r = static_cast<int>(blockIdx.x) / a.heads;
  const int h = static_cast<int>(blockIdx.x) % a.heads;
  ptx::let_next_begin();
  const std::int64_t slot = a.index != nullptr ? a.index[r] : r;
  if (slot < 0 || slot >= a.pool) {
    ptx::wait_for_previous();
    const float zeros[4] = {};
    if (tid * 4 < a.V) a.y.template store<4>(r, h * a.V + tid * 4, zeros);
    return;
  }
  float* state = a.states + slot * a.state_stride + h * a.state_head_stride + vector * 4;
  const auto fetch = [&](int group) {
    const int c = group * kColumns;
#pragma unroll
    for (int j = 0; j < kRowsPerThread; ++j) {
      const int row = row_group + j * kRowGroups;
      const bool valid = row < a.K && c + vector * 4 < a.V;
      ptx::cp_async(&stages[(group % kStages * kRowsPerThread + j) * kThreads + tid],
                    valid ? state + row * a.state_row_stride + c : a.states, valid);
    }
    ptx::cp_async_commit();
  };
  for (int group = 0; group < kStages; ++group) fetch(group);
  ptx::wait_for_previous();

  Pack<bf16, 4> z;
  if (a.gate.data != nullptr && tid * 4 < a.V) z = a.gate.template load<4>(r, h * a.V + tid * 4);
  convolve_head<kThreads>(a, r, h, a.conv_state + slot * a.conv_stride, vectors);
  __syncthreads();
  const Token token = prepare<kThreads>(a, r, h, vectors, warp_products);

  for (int group = 0; group * kColumns < a.V; ++group) {
    ptx::cp_async_wait<kStages - 1>();
    float4 s[kRowsPerThread];
    Dots dots{};
#pragma unroll
    for (int j = 0; j < kRowsPerThread; ++j) {
      const int row = row_group + j * kRowGroups;
      s[j] = stages[(group % kStages * kRowsPerThread + j) * kThreads + tid];
      dots.x_S = fma4(row < a.K ? vectors.x[row] : 0.0F, s[j], dots.x_S);
      dots.q_S = fma4(row < a.K ? vectors.q[row] : 0.0F, s[j], dots.q_S);
    }
    dots.template reduce<kWarps>(warp_dots[group % 2]);
    fetch(group + kStages);  // beyond the last: zeros, and a group to wait for
    const int c = group * kColumns + vector * 4;
    if (c >= a.V) continue;
    const float4 v = *reinterpret_cast<const float4*>(vectors.v + c);
    const float4 written{token.write * v.x, token.write * v.y, token.write * v.z, token.write * v.w};
    const float4 residual = fma4(-token.erase * token.decay, dots.x_S, written);
#pragma unroll
    for (int j = 0; j < kRowsPerThread; ++j) {
      const int row = row_group + j * kRowGroups;
      if (row >= a.K) continue;
      const float4 decayed{token.decay * s[j].x, token.decay * s[j].y, token.decay * s[j].z, token.decay * s[j].w};
      *reinterpret_cast<float4*>(state + row * a.state_row_stride + group * kColumns) =
          fma4(vectors.k[row], residual, decayed);
    }
    if (row_group > 0) continue;
    *reinterpret_cast<float4*>(vectors.o + c) =
        fma4(a.scale * token.decay, dots.q_S, fma4(a.scale * token.q_dot_k, residual, {}));
  }
  __syncthreads();
  store_normed<kThreads>(a, r, h, vectors, z, sums);
}

// Host ---------------------------------------------------------------------------------------------------------------

constexpr std::int64_t kFewKeys = kRowsPerThread * 16;
// Of an SM. Beyond it the states outweigh all else, and recurrence_step moves them faster (H200, 6 heads of 128 x 256:
// at 128 rows this kernel has 2.6 TB/s).
constexpr std::int64_t kMostBlocks = 3;

bool is_bf16(const ConstTensorView& view) { return !view || view.dtype == DType::bf16; }

// Heads one behind the other in a row, all of a row's elements in 4s.
bool heads_in_rows(const ConstTensorView& view) {
  return view.step(2) == 1 && view.step(1) == view.extent(2) && view.extent(2) % 4 == 0;
}

// The columns of `whole` at which `part` begins.
int column_of(const ConstTensorView& part, const ConstTensorView& whole) {
  return static_cast<int>((part.data - whole.data) / static_cast<std::ptrdiff_t>(size_of(whole.dtype)));
}

HeadsArgs heads_args(const MixerStep& m) {
  const RecurrenceStep& step = m.recurrence;
  HeadsArgs a{};
  a.projected = as_rows<bf16>(m.conv.x);
  a.q_at = column_of(step.q, m.conv.y);
  a.k_at = column_of(step.k, m.conv.y);
  a.v_at = column_of(step.v, m.conv.y);
  a.conv_weight = floats(m.conv.weight);
  a.taps = static_cast<int>(m.conv.weight.extent(1));
  a.conv_state = floats(m.conv.state);
  a.conv_stride = m.conv.state.step(0);
  a.conv_ld = m.conv.state.step(1);
  a.gates = gate_args(m.gates);
  a.g = as_rows<RuntimeType>(step.g);
  a.beta = as_rows<RuntimeType>(step.beta);
  a.lambda = as_rows<RuntimeType>(step.lambda);
  a.states = floats(step.states);
  a.state_stride = step.states.step(0);
  a.state_head_stride = step.states.step(1);
  a.state_row_stride = step.states.step(2);
  a.pool = step.states.extent(0);
  a.index = reinterpret_cast<const std::int64_t*>(step.index.data);
  a.rule = step.rule;
  a.qk_l2norm = step.qk_l2norm;
  a.scale = step.scale;
  a.norm_weight = floats(m.out_norm.weight);
  a.epsilon = m.out_norm.epsilon;
  a.gate = as_rows<bf16>(m.out_norm.gate);
  a.activation = m.out_norm.activation;
  a.y = as_rows<bf16>(m.out_norm.y);
  a.K = static_cast<int>(step.q.extent(2));
  a.V = static_cast<int>(step.v.extent(2));
  a.heads = static_cast<int>(step.v.extent(1));
  return a;
}

template <int kRowGroups>
void launch(const Context& context, const HeadsArgs& a, std::int64_t rows) {
  constexpr int kThreads = kVectors * kRowGroups;
  const std::size_t shared = sizeof(float4) * kStages * kRowsPerThread * kThreads +
                             sizeof(float) * static_cast<std::size_t>(3 * a.K + 2 * a.V);
  const auto kernel = heads_kernel<kRowGroups>;
  QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapped(context, "heads_step", kernel, static_cast<unsigned>(rows * a.heads), kThreads, shared, a);
}

}  // namespace

bool fits_heads_step(const Context& context, const MixerStep& m) {
  const RecurrenceStep& step = m.recurrence;
  const std::int64_t K = step.q.extent(2);
  const std::int64_t V = step.v.extent(2);
  const std::int64_t most_keys = 2 * kFewKeys;
  const TensorView& conv_state = m.conv.state;
  const auto in_fours = [](const TensorView& view) {
    return view && view.dtype == DType::f32 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
           view.step(0) % 4 == 0 && view.step(1) % 4 == 0 && view.step(2) % 4 <= 1;
  };
  return is_bf16(m.conv.x) && is_bf16(m.out_norm.gate) && is_bf16(m.out_norm.y) && is_bf16(step.q) &&
         step.q.extent(1) == step.v.extent(1) && K <= most_keys && V <= (K <= kFewKeys ? 4 : 8) * kFewKeys &&
         heads_in_rows(step.q) && heads_in_rows(step.k) && heads_in_rows(step.v) &&
         m.conv.weight.extent(1) <= kMostTaps && !m.conv.bias && in_fours(conv_state) && in_fours(step.states) &&
         step.states.step(2) % 4 == 0 && aligned(4, {m.conv.x, m.conv.y, m.out_norm.gate, m.out_norm.y}) &&
         aligned(4, {m.out_norm.weight}) && reinterpret_cast<std::uintptr_t>(m.conv.weight.data) % 16 == 0 &&
         step.index.dtype == DType::i64 &&
         reinterpret_cast<const std::int64_t*>(step.index.data) == m.conv.slots.data() &&
         step.q.extent(0) * step.v.extent(1) <= kMostBlocks * context.sm_count();
}

void heads_step(const Context& context, const MixerStep& m) {
  const HeadsArgs a = heads_args(m);
  const std::int64_t rows = m.recurrence.q.extent(0);
  if (rows == 0) return;
  if (a.K <= kFewKeys) return launch<16>(context, a, rows);
  launch<32>(context, a, rows);
}

}  // namespace qdelta::cuda
