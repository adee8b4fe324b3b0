// Device code: the gates of a token and value head from its projections, as kernels/layers.h has them.
#pragma once

#include "kernels/cuda/kernel_launch.h"
#include "kernels/layers.h"

namespace qdelta::cuda {

// What the gates of a token and head are made of: its projections, and of the head's weights. Zeros where there is
// none.
struct GateInputs {
  float a, b, l;
};
struct GateWeights {
  float A_log, dt_bias, lambda_bias;
};

struct GateArgs {
  Rows<RuntimeType> a, b, l, g, beta, lambda;
  const float *A_log, *dt_bias, *lambda_bias;
  float constant_lambda_bias, factor;
  bool step_is_beta;
  unsigned heads;
  std::int64_t rows;

  // Of row r, head h.
  __device__ GateInputs inputs_of(std::int64_t r, unsigned h) const {
    const auto input = [&](const Rows<RuntimeType>& of) { return of.get_if(r * of.ld + h, of.data != nullptr); };
    return {input(a), input(b), input(l)};
  }
  __device__ GateWeights weights_of(unsigned h) const {
    const bool decays = a.data != nullptr;
    return {ptx::load_float(A_log + h, decays), ptx::load_float(dt_bias + h, decays),
            lambda_bias != nullptr ? *lambda_bias : constant_lambda_bias};
  }
  // Each only where there is its input.
  [[nodiscard]] __device__ float step_of(float a_of, const GateWeights& weights) const {
    return softplus(a_of + weights.dt_bias);
  }
  [[nodiscard]] __device__ float g_of(float step, const GateWeights& weights) const {
    return -expf(weights.A_log) * step;
  }
  [[nodiscard]] __device__ float beta_of(float b_of) const { return factor * sigmoid(b_of); }
  [[nodiscard]] __device__ float lambda_of(float l_of, const GateWeights& weights) const {
    return factor * sigmoid(l_of + weights.lambda_bias);
  }
};

// Computes the gate of that index, of all rows and heads.
__device__ inline void store_gates(const GateArgs& in, std::int64_t index) {
  const std::int64_t r = index / in.heads;
  if (r >= in.rows) return;
  const auto h = static_cast<unsigned>(index - r * in.heads);
  const GateInputs inputs = in.inputs_of(r, h);
  const GateWeights weights = in.weights_of(h);
  const auto store = [&](const Rows<RuntimeType>& to, float value) { to.set(r * to.ld + h, value); };
  if (in.a.data != nullptr) {
    const float step = in.step_of(inputs.a, weights);
    store(in.g, in.g_of(step, weights));
    if (in.step_is_beta) store(in.beta, step);
  }
  if (in.b.data != nullptr) store(in.beta, in.beta_of(inputs.b));
  if (in.l.data != nullptr) store(in.lambda, in.lambda_of(inputs.l, weights));
}

void check_gates(const GatesForward& args);

// Missing where all of its inputs are.
inline const ConstTensorView& any_gate(const GatesForward& args) { return args.a ? args.a : args.b ? args.b : args.l; }

inline GateArgs gate_args(const GatesForward& args) {
  const ConstTensorView& any = any_gate(args);
  return {.a = as_rows<RuntimeType>(args.a),
          .b = as_rows<RuntimeType>(args.b),
          .l = as_rows<RuntimeType>(args.l),
          .g = as_rows<RuntimeType>(args.g),
          .beta = as_rows<RuntimeType>(args.beta),
          .lambda = as_rows<RuntimeType>(args.lambda),
          .A_log = floats(args.A_log),
          .dt_bias = floats(args.dt_bias),
          .lambda_bias = floats(args.lambda_bias),
          .constant_lambda_bias = args.constant_lambda_bias,
          .factor = args.factor,
          .step_is_beta = args.step_is_beta,
          .heads = any ? static_cast<unsigned>(any.extent(1)) : 0,
          .rows = any ? any.extent(0) : 0};
}

}  // namespace qdelta::cuda
