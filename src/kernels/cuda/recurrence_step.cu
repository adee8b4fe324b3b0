// One token for each row, in place on a pool of states, with a = exp(log_decay), x = k + mix q:
//
//   r = write v - erase a x^T S          o = scale (a q^T S + (q.k) r)          S <- a S + k r^T
//
// Bound by reading and writing the state once. A block takes a slice of the columns of one head's state and keeps it in
// registers: both reads come from the state as it was, then it is updated and written back. The loads of the state are
// under way while q and k are normalised.
#include "kernels/cuda/layers.h"
#include "kernels/cuda/views.h"
#include "kernels/recurrence_check.h"

namespace qdelta::cuda {
namespace {

constexpr int kGroups = 16;  // rows that a block reads at a time

// Strided views of q, k, v, o and the gates: [row][head][element].
struct Small {
  Rows<Either> data;  // ld: between rows
  std::int64_t head, element;
  __device__ float at(std::int64_t r, std::int64_t h, std::int64_t i) const {
    return data.at(r * data.ld + h * head + i * element);
  }
};

struct Step {
  Small q, k, v, o, g, beta, lambda;
  float* states;
  std::int64_t state_step, state_head, state_row;
  const void* index;  // missing: row r has state r
  std::int64_t index_step, pool;
  bool wide_index, norm;
  Rule rule;
  float scale;
  int K, V, heads, share;  // share: value heads for each query/key head
  unsigned slices;
};

// The factors that normalise q and k, and the products of what comes of it.
struct Norms {
  float q, k, k_dot_k, q_dot_k;
};

// In double, as seldom needed as it is slow: where the squares are not floats.
__device__ __noinline__ Norms long_norms(const Step& a, int r, int h) {
  double products[3] = {};
  for (int i = 0; i < a.K; ++i) {
    const double q = a.q.at(r, h / a.share, i);
    const double k = a.k.at(r, h / a.share, i);
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

// Units: packs of N columns in a slice. Rows: of the state, for each thread.
template <int N, int Units, int Rows>
__global__ __launch_bounds__(Units* kGroups,
                             (Rows <= 8 ? 6 : 4) * 8 / Units) void step_kernel(const __grid_constant__ Step a) {
  constexpr int kThreads = Units * kGroups;
  constexpr int kWarps = kThreads / 32;
  __shared__ float q[kGroups * Rows], k[kGroups * Rows], x[kGroups * Rows];
  __shared__ float norms[kWarps][3];
  __shared__ Columns<N> reads[kWarps][2][Units];
  const unsigned tid = threadIdx.x;
  const auto unit = static_cast<int>(tid % Units);
  const auto group = static_cast<int>(tid / Units);
  const unsigned slice = blockIdx.x % a.slices;
  const unsigned head_index = blockIdx.x / a.slices;
  const int r = static_cast<int>(head_index / static_cast<unsigned>(a.heads));
  const int h = static_cast<int>(head_index % static_cast<unsigned>(a.heads));
  const int c = (static_cast<int>(slice) * Units + unit) * N;
  const bool inside = c < a.V;

  std::int64_t place = r;
  if (a.index != nullptr) {
    place = a.wide_index ? static_cast<const std::int64_t*>(a.index)[r * a.index_step]
                         : static_cast<const std::int32_t*>(a.index)[r * a.index_step];
  }
  if (place < 0 || place >= a.pool) {
    if (!inside || group > 0) return;
    for (int i = 0; i < N; ++i) a.o.data.put(r * a.o.data.ld + h * a.o.head + (c + i) * a.o.element, 0.0F);
    return;
  }

  float* state = a.states + place * a.state_step + h * a.state_head + c;
  Columns<N> s[Rows];
#pragma unroll
  for (int j = 0; j < Rows; ++j) {
    const int row = group + j * kGroups;
    if (inside && row < a.K) {
      s[j] = *reinterpret_cast<const Columns<N>*>(state + row * a.state_row);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) s[j].values[i] = 0.0F;
    }
  }

  // Meanwhile q and k, and their products.
  constexpr int kEach = (kGroups * Rows + kThreads - 1) / kThreads;
  float mine_q[kEach];
  float mine_k[kEach];
  float products[3] = {};  // q.q, k.k, q.k
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = static_cast<int>(tid) + e * kThreads;
    mine_q[e] = i < a.K ? a.q.at(r, h / a.share, i) : 0.0F;
    mine_k[e] = i < a.K ? a.k.at(r, h / a.share, i) : 0.0F;
    products[0] += mine_q[e] * mine_q[e];
    products[1] += mine_k[e] * mine_k[e];
    products[2] += mine_q[e] * mine_k[e];
  }
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = inside ? a.v.at(r, h, c + i) : 0.0F;
  RuleInputs<float> gates;
  gates.g = a.g.at(r, h, 0);
  if (a.beta.data.data != nullptr) gates.beta = a.beta.at(r, h, 0);
  if (a.lambda.data.data != nullptr) gates.lambda = a.lambda.at(r, h, 0);
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    products[p] = warp_sum(products[p]);
    if (tid % 32 == 0) norms[tid / 32][p] = products[p];
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    products[p] = norms[0][p];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) products[p] += norms[w][p];
  }
  Norms norms_of{1.0F, 1.0F, products[1], products[2]};
  if (a.norm) {
    if (isfinite(products[0]) && isfinite(products[1])) {
      const float by_q = 1.0F / sqrtf(products[0] + static_cast<float>(kNormEpsilon));
      const float by_k = 1.0F / sqrtf(products[1] + static_cast<float>(kNormEpsilon));
      norms_of = {by_q, by_k, products[1] * by_k * by_k, products[2] * by_q * by_k};
    } else {
      norms_of = long_norms(a, r, h);
    }
  }
  gates.k_dot_k = norms_of.k_dot_k;
  const RuleOutputs<float> rule = rule_forward<float>(a.rule, gates);
  const float decay = expf(rule.log_decay);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = static_cast<int>(tid) + e * kThreads;
    if (i >= kGroups * Rows) continue;
    q[i] = mine_q[e] * norms_of.q;
    k[i] = mine_k[e] * norms_of.k;
    x[i] = k[i] + rule.mix * q[i];
  }
  __syncthreads();

  // x^T S and q^T S: over a thread's rows, the groups of its warp, the warps.
  Columns<N> by_x{};
  Columns<N> by_q{};
#pragma unroll
  for (int j = 0; j < Rows; ++j) {
    const float xi = x[group + j * kGroups];
    const float qi = q[group + j * kGroups];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      by_x.values[i] = fmaf(xi, s[j].values[i], by_x.values[i]);
      by_q.values[i] = fmaf(qi, s[j].values[i], by_q.values[i]);
    }
  }
#pragma unroll
  for (int step = Units; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      by_x.values[i] += __shfl_xor_sync(0xffffffffU, by_x.values[i], step);
      by_q.values[i] += __shfl_xor_sync(0xffffffffU, by_q.values[i], step);
    }
  }
  if (tid % 32 < Units) {
    reads[tid / 32][0][unit] = by_x;
    reads[tid / 32][1][unit] = by_q;
  }
  __syncthreads();
  by_x = reads[0][0][unit];
  by_q = reads[0][1][unit];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    const Columns<N> more_x = reads[w][0][unit];
    const Columns<N> more_q = reads[w][1][unit];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      by_x.values[i] += more_x.values[i];
      by_q.values[i] += more_q.values[i];
    }
  }
  float write[N];
#pragma unroll
  for (int i = 0; i < N; ++i) write[i] = rule.write * v[i] - rule.erase * decay * by_x.values[i];

#pragma unroll
  for (int j = 0; j < Rows; ++j) {
    const int row = group + j * kGroups;
    if (!inside || row >= a.K) continue;
    const float ki = k[row];
#pragma unroll
    for (int i = 0; i < N; ++i) s[j].values[i] = fmaf(ki, write[i], decay * s[j].values[i]);
    *reinterpret_cast<Columns<N>*>(state + row * a.state_row) = s[j];
  }
  if (!inside || group > 0) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    a.o.data.put(r * a.o.data.ld + h * a.o.head + (c + i) * a.o.element,
                 a.scale * (decay * by_q.values[i] + norms_of.q_dot_k * write[i]));
  }
}

Small small(const ConstTensorView& view) {
  Small out{};
  if (!view) return out;
  out.data = rows_of<Either>(view);
  out.head = view.step(1);
  out.element = view.shape.rank > 2 ? view.step(2) : 0;
  return out;
}

// What the host can see: everything but the numbers in the index.
void check_step(const RecurrenceStep& args) {
  RecurrenceStep seen = args;
  seen.index = {};
  if (args.index) {
    require(args.index.dtype == DType::i32 || args.index.dtype == DType::i64, "index is {}, expected I32 or I64",
            name_of(args.index.dtype));
    require(args.index.shape == Shape{args.q.extent(0)}, "index has shape {}, expected [R] = [{}]",
            args.index.shape.text(), args.q.extent(0));
    seen.states.shape.extent[0] = std::max(args.states.extent(0), args.q.extent(0));
  }
  check(seen);
  require(args.q.extent(2) <= kMaxStepKeys, "q has width {}, at most {} on a GPU", args.q.extent(2), kMaxStepKeys);
}

}  // namespace

void recurrence_step(const Context& context, const RecurrenceStep& args) {
  check_step(args);
  const std::int64_t R = args.q.extent(0);
  const std::int64_t K = args.q.extent(2);
  const std::int64_t HV = args.v.extent(1);
  const std::int64_t V = args.v.extent(2);
  if (R == 0 || V == 0) return;
  const TensorView& states = args.states;
  const bool wide = reinterpret_cast<std::uintptr_t>(states.data) % 16 == 0 && V % 4 == 0 && states.step(0) % 4 == 0 &&
                    states.step(1) % 4 == 0 && states.step(2) % 4 == 0;
  constexpr int kUnits = 16;  // a slice of 64 columns: whole sectors, and enough blocks of a few rows
  const std::int64_t slices = ceil_div(V, kUnits * (wide ? 4 : 1));
  require(R * HV * slices < (std::int64_t{1} << 31), "recurrence_step: {} rows are too many for one launch", R);
  const Step a{small(args.q),
               small(args.k),
               small(args.v),
               small(args.o),
               small(args.g),
               small(args.beta),
               small(args.lambda),
               floats(states),
               states.step(0),
               states.step(1),
               states.step(2),
               args.index.data,
               args.index ? args.index.step(0) : 0,
               states.extent(0),
               args.index.dtype == DType::i64,
               args.qk_l2norm,
               args.rule,
               args.scale,
               static_cast<int>(K),
               static_cast<int>(V),
               static_cast<int>(HV),
               static_cast<int>(HV / args.q.extent(1)),
               static_cast<unsigned>(slices)};
  const auto blocks = static_cast<unsigned>(R * HV * slices);
  const auto run = [&](auto columns, auto rows) {
    step_kernel<decltype(columns)::value, kUnits, decltype(rows)::value>
        <<<blocks, kUnits * kGroups, 0, context.stream()>>>(a);
    check_launch("recurrence_step");
  };
  const auto with_rows = [&](auto columns) {
    if (K <= 4 * kGroups) return run(columns, std::integral_constant<int, 4>());
    if (K <= 8 * kGroups) return run(columns, std::integral_constant<int, 8>());
    run(columns, std::integral_constant<int, 16>());
  };
  if (wide) return with_rows(std::integral_constant<int, 4>());
  with_rows(std::integral_constant<int, 1>());
}

}  // namespace qdelta::cuda
