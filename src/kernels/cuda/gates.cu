// step = softplus(a + dt_bias),  g = -exp(A_log) step,  beta = f sigmoid(b),  lambda = f sigmoid(l + lambda_bias)
//   backward:  da = -dg exp(A_log) sigmoid(a + dt_bias) (+ dbeta sigmoid(a + dt_bias) where beta is the step)
//              dA_log += sum dg g,   ddt_bias += sum da,   db = dbeta beta (1 - beta / f),   likewise dl and
//              dlambda_bias
// There are few gates for each token, so one kernel serves all types.
#include "kernels/cuda/gates.cuh"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/overlapped_launch.cuh"

namespace qdelta::cuda {
namespace {

using View = Rows<RuntimeType>;

struct GateGradients {
  View dg, dbeta, dlambda, da, db, dl;
  float* partials;  // [blocks][3][heads]: of dA_log, ddt_bias and the lambda bias
  std::int64_t rows_per_block;
};

__device__ float load(const View& view, std::int64_t row, unsigned head) { return view.get(row * view.ld + head); }
__device__ void store(const View& view, std::int64_t row, unsigned head, float value) {
  view.set(row * view.ld + head, value);
}

__global__ __launch_bounds__(kBlockThreads) void gates_forward_kernel(GateArgs in) {
  ptx::let_next_begin();
  ptx::wait_for_previous();
  store_gates(in, std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x);
}

// A block has some rows of up to kBlockThreads heads; its threads are [row_groups][heads].
__global__ __launch_bounds__(kBlockThreads) void gates_backward_kernel(GateArgs in, GateGradients d,
                                                                       unsigned heads_per_block) {
  __shared__ float shared[3][kBlockThreads];
  const unsigned row_groups = kBlockThreads / heads_per_block;
  const unsigned row_group = threadIdx.x / heads_per_block;
  const unsigned h = blockIdx.y * heads_per_block + threadIdx.x % heads_per_block;
  float sums[3] = {};
  const std::int64_t end = min(in.rows, (std::int64_t{blockIdx.x} + 1) * d.rows_per_block);
  if (row_group < row_groups && h < in.heads) {
    for (std::int64_t r = blockIdx.x * d.rows_per_block + row_group; r < end; r += row_groups) {
      if (in.a.data != nullptr) {
        const float derivative = sigmoid(load(in.a, r, h) + in.dt_bias[h]);
        const float dg = load(d.dg, r, h);
        float dstep = -expf(in.A_log[h]) * dg;
        if (in.step_is_beta) dstep += load(d.dbeta, r, h);
        store(d.da, r, h, dstep * derivative);
        sums[0] += dg * load(in.g, r, h);
        sums[1] += dstep * derivative;
      }
      if (in.b.data != nullptr) {
        const float beta = load(in.beta, r, h);
        store(d.db, r, h, load(d.dbeta, r, h) * beta * (1.0F - beta / in.factor));
      }
      if (in.l.data != nullptr) {
        const float lambda = load(in.lambda, r, h);
        const float dl = load(d.dlambda, r, h) * lambda * (1.0F - lambda / in.factor);
        store(d.dl, r, h, dl);
        sums[2] += dl;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 3; ++k) shared[k][threadIdx.x] = sums[k];
  __syncthreads();
  if (row_group > 0 || h >= in.heads) return;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    float sum = 0;
    for (unsigned t = 0; t < row_groups; ++t) sum += shared[k][t * heads_per_block + threadIdx.x];
    d.partials[(std::int64_t{blockIdx.x} * 3 + k) * in.heads + h] = sum;
  }
}

// Adds up the partial sums in one block, a warp for each; the lambda bias also over all heads.
__global__ __launch_bounds__(kBlockThreads) void gates_reduce_kernel(const float* partials, std::int64_t blocks,
                                                                     unsigned heads, float* dA_log, float* ddt_bias,
                                                                     float* dlambda_bias) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned columns = 3 * heads;
  const auto column = [&](unsigned c) {
    float sum = 0;
    for (std::int64_t p = lane; p < blocks; p += 32) sum += partials[p * columns + c];
    return warp_sum(sum);
  };
  if (dA_log != nullptr) {
    for (unsigned c = threadIdx.x / 32; c < 2 * heads; c += kBlockThreads / 32) {
      const float sum = column(c);
      if (lane == 0) (c < heads ? dA_log[c] : ddt_bias[c - heads]) += sum;
    }
  }
  __shared__ float warp_sums[kBlockThreads / 32];
  float sum = 0;
  if (dlambda_bias != nullptr) {
    for (unsigned c = 2 * heads + threadIdx.x / 32; c < columns; c += kBlockThreads / 32) sum += column(c);
  }
  if (lane == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0 || dlambda_bias == nullptr) return;
  for (unsigned w = 1; w < kBlockThreads / 32; ++w) sum += warp_sums[w];
  *dlambda_bias += sum;
}

}  // namespace

void check_gates(const GatesForward& args) {
  const Shape shape = any_gate(args).shape;
  const auto pair = [&](const ConstTensorView& in, const char* in_name, const ConstTensorView& out, const char* name) {
    if (!in) return;
    check_matrix(in, shape, in_name);
    check_matrix(out, shape, name);
  };
  require(shape.rank == 2, "gates: the inputs have shape {}, expected [N, HV]", shape.text());
  pair(args.a, "a", args.g, "g");
  pair(args.b, "b", args.beta, "beta");
  pair(args.l, "l", args.lambda, "lambda");
  if (args.a) {
    check_vector(args.A_log, shape[1], "A_log");
    check_vector(args.dt_bias, shape[1], "dt_bias");
    if (args.step_is_beta) check_matrix(args.beta, shape, "beta");
  }
  if (args.lambda_bias) check_vector(args.lambda_bias, 1, "lambda_bias");
}

void gates_forward(const Context& context, const GatesForward& args) {
  if (!any_gate(args)) return;
  check_gates(args);
  const GateArgs in = gate_args(args);
  if (in.rows == 0 || in.heads == 0) return;
  launch_overlapped(context, "gates_forward", gates_forward_kernel, blocks_for(in.rows * in.heads, kBlockThreads),
                    kBlockThreads, 0, in);
}

void gates_backward(const Context& context, const GatesBackward& args, std::span<std::byte> workspace) {
  if (!any_gate(args.forward)) return;
  check_gates(args.forward);
  const Shape shape = any_gate(args.forward).shape;
  if (args.forward.a) {
    check_matrix(args.dg, shape, "dg");
    check_matrix(args.da, shape, "da");
    check_vector(args.dA_log, shape[1], "dA_log");
    check_vector(args.ddt_bias, shape[1], "ddt_bias");
    if (args.forward.step_is_beta) check_matrix(args.dbeta, shape, "dbeta");
  }
  if (args.forward.b) {
    check_matrix(args.dbeta, shape, "dbeta");
    check_matrix(args.db, shape, "db");
  }
  if (args.forward.l) {
    check_matrix(args.dlambda, shape, "dlambda");
    check_matrix(args.dl, shape, "dl");
  }
  if (args.dlambda_bias) check_vector(args.dlambda_bias, 1, "dlambda_bias");
  check_workspace(workspace, gates_backward_workspace(args));
  const GateArgs in = gate_args(args.forward);
  if (in.rows == 0 || in.heads == 0) return;
  const std::int64_t blocks = partial_count(in.rows, 64);
  const GateGradients d{.dg = as_rows<RuntimeType>(args.dg),
                        .dbeta = as_rows<RuntimeType>(args.dbeta),
                        .dlambda = as_rows<RuntimeType>(args.dlambda),
                        .da = as_rows<RuntimeType>(args.da),
                        .db = as_rows<RuntimeType>(args.db),
                        .dl = as_rows<RuntimeType>(args.dl),
                        .partials = reinterpret_cast<float*>(workspace.data()),
                        .rows_per_block = ceil_div(in.rows, blocks)};
  const unsigned heads_per_block = std::min<unsigned>(in.heads, kBlockThreads);
  gates_backward_kernel<<<dim3(static_cast<unsigned>(blocks), blocks_for(in.heads, heads_per_block)), kBlockThreads, 0,
                          context.stream()>>>(in, d, heads_per_block);
  check_launch("gates_backward");
  gates_reduce_kernel<<<1, kBlockThreads, 0, context.stream()>>>(
      d.partials, blocks, in.heads, args.forward.a ? floats(args.dA_log) : nullptr,
      args.forward.a ? floats(args.ddt_bias) : nullptr, args.forward.l ? floats(args.dlambda_bias) : nullptr);
  check_launch("gates_reduce");
}

std::size_t gates_backward_workspace(const GatesBackward& args) {
  const ConstTensorView& any = any_gate(args.forward);
  if (!any) return 0;
  return static_cast<std::size_t>(partial_count(any.extent(0), 64) * 3 * any.extent(1)) * sizeof(float);
}

}  // namespace qdelta::cuda
