// step = softplus(a + dt_bias),  g = -exp(A_log) step,  beta = f sigmoid(b),  lambda = f sigmoid(l + lambda_bias)
//   backward:  da = -dg exp(A_log) sigmoid(a + dt_bias) (+ dbeta sigmoid(a + dt_bias) where beta is the step)
//              dA_log += sum dg g,   ddt_bias += sum da,   db = dbeta beta (1 - beta / f),   likewise dl and
//              dlambda_bias
// There are only a few gates for each token: one kernel for all types.
#include "kernels/cuda/layers.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {
namespace {

using View = Rows<Either>;

struct Gates {
  View a, b, l, g, beta, lambda;
  const float *A_log, *dt_bias, *lambda_bias;
  float constant_lambda_bias, factor;
  bool step_is_beta;
  unsigned heads;
  std::int64_t rows;
};

struct GateGradients {
  View dg, dbeta, dlambda, da, db, dl;
  float* partials;  // [blocks][3][heads]: of dA_log, ddt_bias and the lambda bias
  std::int64_t rows_per_block;
};

__device__ float at(const View& view, std::int64_t row, unsigned head) { return view.at(row * view.ld + head); }
__device__ void put(const View& view, std::int64_t row, unsigned head, float value) {
  view.put(row * view.ld + head, value);
}

__global__ __launch_bounds__(kBlock) void gates_forward_kernel(Gates in) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t r = index / in.heads;
  if (r >= in.rows) return;
  const auto h = static_cast<unsigned>(index - r * in.heads);
  if (in.a.data != nullptr) {
    const float step = softplus(at(in.a, r, h) + in.dt_bias[h]);
    put(in.g, r, h, -expf(in.A_log[h]) * step);
    if (in.step_is_beta) put(in.beta, r, h, step);
  }
  if (in.b.data != nullptr) put(in.beta, r, h, in.factor * sigmoid(at(in.b, r, h)));
  if (in.l.data != nullptr) {
    const float bias = in.lambda_bias != nullptr ? *in.lambda_bias : in.constant_lambda_bias;
    put(in.lambda, r, h, in.factor * sigmoid(at(in.l, r, h) + bias));
  }
}

// A block takes some rows of up to kBlock heads; its threads are [rows at a time][heads].
__global__ __launch_bounds__(kBlock) void gates_backward_kernel(Gates in, GateGradients d, unsigned heads_per_block) {
  __shared__ float shared[3][kBlock];
  const unsigned teams = kBlock / heads_per_block;
  const unsigned team = threadIdx.x / heads_per_block;
  const unsigned h = blockIdx.y * heads_per_block + threadIdx.x % heads_per_block;
  float sums[3] = {};
  const std::int64_t end = min(in.rows, (std::int64_t{blockIdx.x} + 1) * d.rows_per_block);
  if (team < teams && h < in.heads) {
    for (std::int64_t r = blockIdx.x * d.rows_per_block + team; r < end; r += teams) {
      if (in.a.data != nullptr) {
        const float slope = sigmoid(at(in.a, r, h) + in.dt_bias[h]);
        const float dg = at(d.dg, r, h);
        float dstep = -expf(in.A_log[h]) * dg;
        if (in.step_is_beta) dstep += at(d.dbeta, r, h);
        put(d.da, r, h, dstep * slope);
        sums[0] += dg * at(in.g, r, h);
        sums[1] += dstep * slope;
      }
      if (in.b.data != nullptr) {
        const float beta = at(in.beta, r, h);
        put(d.db, r, h, at(d.dbeta, r, h) * beta * (1.0F - beta / in.factor));
      }
      if (in.l.data != nullptr) {
        const float lambda = at(in.lambda, r, h);
        const float dl = at(d.dlambda, r, h) * lambda * (1.0F - lambda / in.factor);
        put(d.dl, r, h, dl);
        sums[2] += dl;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 3; ++k) shared[k][threadIdx.x] = sums[k];
  __syncthreads();
  if (team > 0 || h >= in.heads) return;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    float sum = 0;
    for (unsigned t = 0; t < teams; ++t) sum += shared[k][t * heads_per_block + threadIdx.x];
    d.partials[(std::int64_t{blockIdx.x} * 3 + k) * in.heads + h] = sum;
  }
}

// A warp for each sum, and at last the lambda bias over all heads by the first warp of the block.
__global__ __launch_bounds__(kBlock) void gates_finish(const float* partials, std::int64_t blocks, unsigned heads,
                                                       float* dA_log, float* ddt_bias, float* dlambda_bias) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned columns = 3 * heads;
  const auto column = [&](unsigned c) {
    float sum = 0;
    for (std::int64_t p = lane; p < blocks; p += 32) sum += partials[p * columns + c];
    return warp_sum(sum);
  };
  if (dA_log != nullptr) {
    for (unsigned c = threadIdx.x / 32; c < 2 * heads; c += kBlock / 32) {
      const float sum = column(c);
      if (lane == 0) (c < heads ? dA_log[c] : ddt_bias[c - heads]) += sum;
    }
  }
  __shared__ float of_heads[kBlock / 32];
  float sum = 0;
  if (dlambda_bias != nullptr) {
    for (unsigned c = 2 * heads + threadIdx.x / 32; c < columns; c += kBlock / 32) sum += column(c);
  }
  if (lane == 0) of_heads[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0 || dlambda_bias == nullptr) return;
  for (unsigned w = 1; w < kBlock / 32; ++w) sum += of_heads[w];
  *dlambda_bias += sum;
}

const ConstTensorView& any_of(const GatesForward& args) { return args.a ? args.a : args.b ? args.b : args.l; }

void check_gates(const GatesForward& args) {
  const Shape shape = any_of(args).shape;
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

Gates gates_of(const GatesForward& args) {
  const ConstTensorView& any = any_of(args);
  return {rows_of<Either>(args.a),
          rows_of<Either>(args.b),
          rows_of<Either>(args.l),
          rows_of<Either>(args.g),
          rows_of<Either>(args.beta),
          rows_of<Either>(args.lambda),
          floats(args.A_log),
          floats(args.dt_bias),
          floats(args.lambda_bias),
          args.constant_lambda_bias,
          args.factor,
          args.step_is_beta,
          static_cast<unsigned>(any.extent(1)),
          any.extent(0)};
}

}  // namespace

void gates_forward(const Context& context, const GatesForward& args) {
  if (!any_of(args)) return;
  check_gates(args);
  const Gates in = gates_of(args);
  if (in.rows == 0 || in.heads == 0) return;
  gates_forward_kernel<<<blocks_for(in.rows * in.heads, kBlock), kBlock, 0, context.stream()>>>(in);
  check_launch("gates_forward");
}

void gates_backward(const Context& context, const GatesBackward& args, std::span<std::byte> workspace) {
  if (!any_of(args.forward)) return;
  check_gates(args.forward);
  const Shape shape = any_of(args.forward).shape;
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
  const Gates in = gates_of(args.forward);
  if (in.rows == 0 || in.heads == 0) return;
  const std::int64_t blocks = partial_count(in.rows, 64);
  const GateGradients d{rows_of<Either>(args.dg),
                        rows_of<Either>(args.dbeta),
                        rows_of<Either>(args.dlambda),
                        rows_of<Either>(args.da),
                        rows_of<Either>(args.db),
                        rows_of<Either>(args.dl),
                        reinterpret_cast<float*>(workspace.data()),
                        ceil_div(in.rows, blocks)};
  const unsigned heads_per_block = std::min<unsigned>(in.heads, kBlock);
  gates_backward_kernel<<<dim3(static_cast<unsigned>(blocks), blocks_for(in.heads, heads_per_block)), kBlock, 0,
                          context.stream()>>>(in, d, heads_per_block);
  check_launch("gates_backward");
  gates_finish<<<1, kBlock, 0, context.stream()>>>(
      d.partials, blocks, in.heads, args.forward.a ? floats(args.dA_log) : nullptr,
      args.forward.a ? floats(args.ddt_bias) : nullptr, args.forward.l ? floats(args.dlambda_bias) : nullptr);
  check_launch("gates_finish");
}

std::size_t gates_backward_workspace(const GatesBackward& args) {
  const ConstTensorView& any = any_of(args.forward);
  if (!any) return 0;
  return static_cast<std::size_t>(partial_count(any.extent(0), 64) * 3 * any.extent(1)) * sizeof(float);
}

}  // namespace qdelta::cuda
