// Device code that the norms have in common.
#pragma once

#include "kernels/cuda/row_kernels.cuh"
#include "kernels/gate_activation.h"
#include "kernels/layers.h"

namespace qdelta::cuda {

__device__ inline float norm_weight(float weight) {
  return fabsf(weight) < kLeastNormWeight ? kLeastNormWeight : weight;
}
// Into L2, by all kThreads of a block: before the kernel ahead is waited for, from which no weights come.
template <int kThreads>
__device__ void prefetch_norm_weights(const float* weights, int width) {
  for (int c = static_cast<int>(threadIdx.x) * 8; c < width; c += kThreads * 8) ptx::prefetch(weights + c);
}
// 1 / rms of a row of `width` elements, from the sum of their squares.
__device__ inline float inverse_rms(float sum_of_squares, int width, float epsilon) {
  return 1.0F / sqrtf(sum_of_squares / static_cast<float>(width) + epsilon);
}
// What an output gate multiplies with.
__device__ inline float gate_factor(GateActivation activation, float z) {
  return activation == GateActivation::silu ? z * sigmoid(z) : sigmoid(z);
}

}  // namespace qdelta::cuda
