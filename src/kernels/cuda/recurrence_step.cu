// One token for each row, in place on a pool of states, with a = exp(log_decay), x = k + mix q:
//
//   r = write v - erase a x^T S          o = scale (a q^T S + (q.k) r)          S <- a S + k r^T
//
// Bound by reading and writing the state once. A block has a slice of the columns of one head's state in registers: it
// computes x^T S and q^T S from the old state, then updates it and writes it back. The loads of the state are in flight
// while q and k are normalised. Sums have the same order whatever the width of a slice, which depends on the number of
// rows: a row's bits do not.
#include "kernels/cuda/gates.cuh"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/steps.h"
#include "kernels/recurrence_check.h"

namespace qdelta::cuda {
namespace {

constexpr int kRowGroups = 16;  // state rows that a block loads together
constexpr int kSummed = 4;      // of them, whose sums come first

// Strided views of q, k, v, o and the gates: [row][head][element].
struct StridedView {
  Rows<RuntimeType> data;  // ld: between rows
  std::int64_t head, element;
  __device__ float at(std::int64_t r, std::int64_t h, std::int64_t i) const {
    return data.get(r * data.ld + h * head + i * element);
  }
};

struct StepArgs {
  StridedView q, k, v, o, g, beta, lambda;
  GateArgs gates;  // where its inputs are given they replace g, beta and lambda
  float* states;
  std::int64_t state_stride, state_head_stride, state_row_stride;
  const void* index;  // null: row r has state r
  std::int64_t index_stride, pool;
  bool index_is_i64, qk_l2norm;
  Rule rule;
  float scale;
  int K, V, heads, group_size;  // group_size: value heads for each query/key head
  unsigned slices;

  __device__ RuleInputs<float> gates_of(int r, int h) const {
    const auto head = static_cast<unsigned>(h);
    RuleInputs<float> in;
    if (gates.a.data != nullptr) {
      const float step = gates.step_of(r, head);
      in.g = gates.g_of(step, head);
      if (gates.step_is_beta) in.beta = step;
    } else {
      in.g = g.at(r, h, 0);
    }
    if (gates.b.data != nullptr) {
      in.beta = gates.beta_of(r, head);
    } else if (!gates.step_is_beta && beta.data.data != nullptr) {
      in.beta = beta.at(r, h, 0);
    }
    if (gates.l.data != nullptr) {
      in.lambda = gates.lambda_of(r, head);
    } else if (lambda.data.data != nullptr) {
      in.lambda = lambda.at(r, h, 0);
    }
    return in;
  }
};

// 1 / |q| and 1 / |k|, and the dot products of the normalised rows.
struct Norms {
  float q, k, k_dot_k, q_dot_k;
};

// In double, where squares overflow a float.
__device__ __noinline__ Norms norms_double(const StepArgs& a, int r, int h) {
  double products[3] = {};
  for (int i = 0; i < a.K; ++i) {
    const double q = a.q.at(r, h / a.group_size, i);
    const double k = a.k.at(r, h / a.group_size, i);
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

// A slice has VectorsPerSlice vectors of N columns; RowsPerThread are rows of the state.
template <int N, int VectorsPerSlice, int RowsPerThread>
__global__ __launch_bounds__(VectorsPerSlice* kRowGroups,
                             (RowsPerThread <= 8 ? 6 : 4) * 8 /
                                 VectorsPerSlice) void step_kernel(const __grid_constant__ StepArgs a) {
  constexpr int kThreads = VectorsPerSlice * kRowGroups;
  constexpr int kWarps = kThreads / 32;
  __shared__ float q[kRowGroups * RowsPerThread], k[kRowGroups * RowsPerThread], x[kRowGroups * RowsPerThread];
  __shared__ float warp_products[4][3];
  __shared__ Columns<N> warp_dots[kWarps][2][VectorsPerSlice];
  const unsigned tid = threadIdx.x;
  const auto vector = static_cast<int>(tid % VectorsPerSlice);
  const auto row_group = static_cast<int>(tid / VectorsPerSlice);
  const unsigned slice = blockIdx.x % a.slices;
  const unsigned row_head = blockIdx.x / a.slices;
  const int r = static_cast<int>(row_head / static_cast<unsigned>(a.heads));
  const int h = static_cast<int>(row_head % static_cast<unsigned>(a.heads));
  const int c = (static_cast<int>(slice) * VectorsPerSlice + vector) * N;
  const bool in_range = c < a.V;

  ptx::let_next_begin();
  std::int64_t slot = r;
  if (a.index != nullptr) {
    slot = a.index_is_i64 ? static_cast<const std::int64_t*>(a.index)[r * a.index_stride]
                          : static_cast<const std::int32_t*>(a.index)[r * a.index_stride];
  }
  if (slot < 0 || slot >= a.pool) {
    ptx::wait_for_previous();
    if (!in_range || row_group > 0) return;
    for (int i = 0; i < N; ++i) a.o.data.set(r * a.o.data.ld + h * a.o.head + (c + i) * a.o.element, 0.0F);
    return;
  }

  float* state = a.states + slot * a.state_stride + h * a.state_head_stride + c;
  Columns<N> s[RowsPerThread];
#pragma unroll
  for (int j = 0; j < RowsPerThread; ++j) {
    const int row = row_group + j * kRowGroups;
    if (in_range && row < a.K) {
      s[j] = *reinterpret_cast<const Columns<N>*>(state + row * a.state_row_stride);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) s[j].values[i] = 0.0F;
    }
  }

  ptx::wait_for_previous();

  // Load q and k, and compute their dot products.
  constexpr int kLoaders = 128;  // threads, of 128 or 256
  constexpr int kPerThread = (kRowGroups * RowsPerThread + kLoaders - 1) / kLoaders;
  const bool loads = tid < kLoaders;
  float q_part[kPerThread];
  float k_part[kPerThread];
  float products[3] = {};  // q.q, k.k, q.k
#pragma unroll
  for (int e = 0; e < kPerThread; ++e) {
    const int i = static_cast<int>(tid) + e * kLoaders;
    q_part[e] = loads && i < a.K ? a.q.at(r, h / a.group_size, i) : 0.0F;
    k_part[e] = loads && i < a.K ? a.k.at(r, h / a.group_size, i) : 0.0F;
    products[0] += q_part[e] * q_part[e];
    products[1] += k_part[e] * k_part[e];
    products[2] += q_part[e] * k_part[e];
  }
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = in_range ? a.v.at(r, h, c + i) : 0.0F;
  RuleInputs<float> gates = a.gates_of(r, h);
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    products[p] = warp_sum(products[p]);
    if (loads && tid % 32 == 0) warp_products[tid / 32][p] = products[p];
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    products[p] = warp_products[0][p];
#pragma unroll
    for (int w = 1; w < kLoaders / 32; ++w) products[p] += warp_products[w][p];
  }
  Norms norms{1.0F, 1.0F, products[1], products[2]};
  if (a.qk_l2norm) {
    if (isfinite(products[0]) && isfinite(products[1])) {
      const float by_q = 1.0F / sqrtf(products[0] + static_cast<float>(kNormEpsilon));
      const float by_k = 1.0F / sqrtf(products[1] + static_cast<float>(kNormEpsilon));
      norms = {by_q, by_k, products[1] * by_k * by_k, products[2] * by_q * by_k};
    } else {
      norms = norms_double(a, r, h);
    }
  }
  gates.k_dot_k = norms.k_dot_k;
  const RuleOutputs<float> rule = rule_forward<float>(a.rule, gates);
  const float decay = expf(rule.log_decay);
#pragma unroll
  for (int e = 0; e < kPerThread; ++e) {
    const int i = static_cast<int>(tid) + e * kLoaders;
    if (!loads || i >= kRowGroups * RowsPerThread) continue;
    q[i] = q_part[e] * norms.q;
    k[i] = k_part[e] * norms.k;
    x[i] = k[i] + rule.mix * q[i];
  }
  __syncthreads();

  // x^T S and q^T S: sums over the rows of a thread, over kSummed groups of them, then over all of these in order.
  Columns<N> dots[2] = {};
#pragma unroll
  for (int j = 0; j < RowsPerThread; ++j) {
    const float xi = x[row_group + j * kRowGroups];
    const float qi = q[row_group + j * kRowGroups];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dots[0].values[i] = fmaf(xi, s[j].values[i], dots[0].values[i]);
      dots[1].values[i] = fmaf(qi, s[j].values[i], dots[1].values[i]);
    }
  }
#pragma unroll
  for (int step = VectorsPerSlice; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (Columns<N>& dot : dots) dot.values[i] += __shfl_xor_sync(0xffffffffU, dot.values[i], step);
    }
  }
  if (tid % 32 < VectorsPerSlice) {
    warp_dots[tid / 32][0][vector] = dots[0];
    warp_dots[tid / 32][1][vector] = dots[1];
  }
  __syncthreads();
  constexpr int kWarpsSummed = kSummed * VectorsPerSlice / 32;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int w = 0; w < kWarps; w += kWarpsSummed) {
      Columns<N> some = warp_dots[w][which][vector];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (kWarpsSummed == 2) some.values[i] += warp_dots[w + kWarpsSummed - 1][which][vector].values[i];
        dots[which].values[i] = w == 0 ? some.values[i] : dots[which].values[i] + some.values[i];
      }
    }
  }
  const Columns<N>& x_dot_S = dots[0];
  const Columns<N>& q_dot_S = dots[1];
  float residual[N];
#pragma unroll
  for (int i = 0; i < N; ++i) residual[i] = rule.write * v[i] - rule.erase * decay * x_dot_S.values[i];

#pragma unroll
  for (int j = 0; j < RowsPerThread; ++j) {
    const int row = row_group + j * kRowGroups;
    if (!in_range || row >= a.K) continue;
    const float ki = k[row];
#pragma unroll
    for (int i = 0; i < N; ++i) s[j].values[i] = fmaf(ki, residual[i], decay * s[j].values[i]);
    *reinterpret_cast<Columns<N>*>(state + row * a.state_row_stride) = s[j];
  }
  if (!in_range || row_group > 0) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    a.o.data.set(r * a.o.data.ld + h * a.o.head + (c + i) * a.o.element,
                 a.scale * (decay * q_dot_S.values[i] + norms.q_dot_k * residual[i]));
  }
}

StridedView strided_view(const ConstTensorView& view) {
  StridedView out{};
  if (!view) return out;
  out.data = as_rows<RuntimeType>(view);
  out.head = view.step(1);
  out.element = view.shape.rank > 2 ? view.step(2) : 0;
  return out;
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
                          states.step(0) % 4 == 0 && states.step(1) % 4 == 0 && states.step(2) % 4 == 0;
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
  const auto run = [&](auto columns, auto vectors, auto rows) {
    launch_overlapped(context, "recurrence_step",
                      step_kernel<decltype(columns)::value, decltype(vectors)::value, decltype(rows)::value>, blocks,
                      decltype(vectors)::value * kRowGroups, 0, a);
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
