// Device code: the gates of a token and value head from its projections, as kernels/layers.h has them.
#pragma once

#include "kernels/cuda/kernel_launch.h"
#include "kernels/layers.h"

namespace qdelta::cuda {

struct GateArgs {
  Rows<RuntimeType> a, b, l, g, beta, lambda;
  const float *A_log, *dt_bias, *lambda_bias;
  float constant_lambda_bias, factor;
  bool step_is_beta;
  unsigned heads;
  std::int64_t rows;

  // Of row r, head h; each only where there is its input.
  __device__ float step_of(std::int64_t r, unsigned h) const { return softplus(a.get(r * a.ld + h) + dt_bias[h]); }
  __device__ float g_of(float step, unsigned h) const { return -expf(A_log[h]) * step; }
  __device__ float beta_of(std::int64_t r, unsigned h) const { return factor * sigmoid(b.get(r * b.ld + h)); }
  __device__ float lambda_of(std::int64_t r, unsigned h) const {
    const float bias = lambda_bias != nullptr ? *lambda_bias : constant_lambda_bias;
    return factor * sigmoid(l.get(r * l.ld + h) + bias);
  }
};

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
