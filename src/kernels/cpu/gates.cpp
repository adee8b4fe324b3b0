// step = softplus(a + dt_bias),  g = -exp(A_log) step,  beta = f sigmoid(b),  lambda = f sigmoid(l + lambda_bias)
//   backward:  da = -dg exp(A_log) sigmoid(a + dt_bias) (+ dbeta sigmoid(a + dt_bias) where beta is the step)
//              dA_log += sum dg g,   ddt_bias += sum da,   db = dbeta beta (1 - beta / f),   likewise dl and
//              dlambda_bias
// There are only a few gates for each token, so these are plain loops.
#include <cmath>

#include "kernels/cpu/layers.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/view_check.h"

namespace qdelta::cpu {
namespace {

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

// log(1 + exp(x)) without overflow.
float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

template <class View>
auto* row(const View& view, std::int64_t r) {
  return view ? floats(view) + r * view.step(0) : nullptr;
}

// What says how many tokens and heads there are.
const ConstTensorView& any_gate(const GatesForward& args) { return args.a ? args.a : args.b ? args.b : args.l; }

// Scratch memory of the backward: sums of dA_log, ddt_bias and the lambda bias side by side, in all and of blocks of
// rows.
struct GateSums {
  RowSums sums;
  float *totals, *partial;
  std::size_t bytes;

  GateSums(const ConstTensorView& gate, BumpAllocator memory)
      : sums(gate.extent(0), 2 * gate.extent(1) + 1),
        totals(memory.take<float>(sums.width)),
        partial(memory.take<float>(sums.floats())),
        bytes(memory.used()) {}
};

}  // namespace

void gates_forward(const Device& device, const GatesForward& args) {
  const ConstTensorView& any = any_gate(args);
  if (!any) return;
  const std::int64_t heads = any.extent(1);
  const float lambda_bias = args.lambda_bias ? *floats(args.lambda_bias) : args.constant_lambda_bias;
  for_rows(device, any.extent(0), [&](std::int64_t r) {
    for (std::int64_t h = 0; h < heads; ++h) {
      if (args.a) {
        const float step = softplus(row(args.a, r)[h] + floats(args.dt_bias)[h]);
        row(args.g, r)[h] = -std::exp(floats(args.A_log)[h]) * step;
        if (args.step_is_beta) row(args.beta, r)[h] = step;
      }
      if (args.b) row(args.beta, r)[h] = args.factor * sigmoid(row(args.b, r)[h]);
      if (args.l) row(args.lambda, r)[h] = args.factor * sigmoid(row(args.l, r)[h] + lambda_bias);
    }
  });
}

std::size_t gates_backward_workspace(const GatesBackward& args) {
  const ConstTensorView& any = any_gate(args.forward);
  return any ? GateSums(any, BumpAllocator(nullptr)).bytes : 0;
}

void gates_backward(const Device& device, const GatesBackward& args, std::span<std::byte> workspace) {
  const GatesForward& in = args.forward;
  const ConstTensorView& any = any_gate(in);
  if (!any) return;
  const std::int64_t heads = any.extent(1);
  const GateSums scratch(any, BumpAllocator(workspace.data()));
  float* totals = scratch.totals;
  std::fill_n(totals, scratch.sums.width, 0.0F);
  sum_over_rows(device, scratch.sums, scratch.partial, totals, [&](std::int64_t r, float* sums) {
    for (std::int64_t h = 0; h < heads; ++h) {
      if (in.a) {
        const float slope = sigmoid(row(in.a, r)[h] + floats(in.dt_bias)[h]);
        const float dg = row(args.dg, r)[h];
        float dstep = -std::exp(floats(in.A_log)[h]) * dg;
        if (in.step_is_beta) dstep += row(args.dbeta, r)[h];
        row(args.da, r)[h] = dstep * slope;
        sums[h] += dg * row(in.g, r)[h];
        sums[heads + h] += dstep * slope;
      }
      if (in.b) {
        const float beta = row(in.beta, r)[h];
        row(args.db, r)[h] = row(args.dbeta, r)[h] * beta * (1.0F - beta / in.factor);
      }
      if (in.l) {
        const float lambda = row(in.lambda, r)[h];
        const float dl = row(args.dlambda, r)[h] * lambda * (1.0F - lambda / in.factor);
        row(args.dl, r)[h] = dl;
        sums[2 * heads] += dl;
      }
    }
  });
  if (in.a) {
    for (std::int64_t h = 0; h < heads; ++h) {
      floats(args.dA_log)[h] += totals[h];
      floats(args.ddt_bias)[h] += totals[heads + h];
    }
  }
  if (args.dlambda_bias) *floats(args.dlambda_bias) += totals[2 * heads];
}

}  // namespace qdelta::cpu
