// Device code that kernels over the rows of a matrix share: vectorized loads and stores of float32 or bfloat16 rows, up
// to 16 bytes at a time, reductions in a fixed order, activation functions.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace qdelta::cuda {

using bf16 = __nv_bfloat16;

// In place of an element type: known at run time only. For unaligned shapes and small tensors, one element at a time.
struct RuntimeType {};

// N adjacent elements, loaded or stored with one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  __device__ float operator[](int i) const { return static_cast<float>(values[i]); }
};
template <>
struct Pack<RuntimeType, 1> {
  float value;
  __device__ float operator[](int /*i*/) const { return value; }
};

// A row-major matrix; ld is the stride between rows, in elements.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t ld = 0;

  template <int N>
  __device__ Pack<T, N> load(std::int64_t row, std::int64_t column) const {
    return *reinterpret_cast<const Pack<T, N>*>(data + row * ld + column);
  }
  template <int N>
  __device__ void store(std::int64_t row, std::int64_t column, const float (&values)[N]) const {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.values[i] = T(values[i]);
    *reinterpret_cast<Pack<T, N>*>(data + row * ld + column) = pack;
  }
};
template <>
struct Rows<RuntimeType> {
  void* data = nullptr;
  std::int64_t ld = 0;
  bool is_bf16 = false;

  __device__ float get(std::int64_t offset) const {
    return is_bf16 ? static_cast<float>(static_cast<const bf16*>(data)[offset])
                   : static_cast<const float*>(data)[offset];
  }
  __device__ void set(std::int64_t offset, float value) const {
    if (is_bf16) {
      static_cast<bf16*>(data)[offset] = bf16(value);
    } else {
      static_cast<float*>(data)[offset] = value;
    }
  }
  template <int N>
  __device__ Pack<RuntimeType, N> load(std::int64_t row, std::int64_t column) const {
    static_assert(N == 1);
    return {get(row * ld + column)};
  }
  template <int N>
  __device__ void store(std::int64_t row, std::int64_t column, const float (&values)[N]) const {
    static_assert(N == 1);
    set(row * ld + column, values[0]);
  }
};

// Elements of one access: 16 bytes of the widest of the element types.
template <class T>
inline constexpr int kVectorWidthOf = 4;
template <>
inline constexpr int kVectorWidthOf<bf16> = 8;
template <>
inline constexpr int kVectorWidthOf<RuntimeType> = 1;
template <class... T>
inline constexpr int kVectorWidth = [] {
  int width = 8;
  ((width = kVectorWidthOf<T> < width ? kVectorWidthOf<T> : width), ...);
  return width;
}();

inline constexpr float kLog2e = 1.4426950408889634F;

__device__ inline float sigmoid(float x) { return ptx::reciprocal_approx(1.0F + ptx::exp2_approx(-kLog2e * x)); }
// log(1 + exp(x)) without overflow.
__device__ inline float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(__expf(-fabsf(x))); }
// The derivative of silu(x) = x sigmoid(x), with s = sigmoid(x).
__device__ inline float silu_derivative(float x, float s) { return s * (1.0F + x * (1.0F - s)); }

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// The sum over a block of Threads threads, in all of them; `shared` has one value for each warp. Ends with a barrier,
// so that `shared` may be reused.
template <int Threads, class T>
__device__ T block_sum(T value, T* shared) {
  if constexpr (Threads == 32) return warp_sum(value);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = shared[0];
#pragma unroll
  for (int w = 1; w < Threads / 32; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

}  // namespace qdelta::cuda
