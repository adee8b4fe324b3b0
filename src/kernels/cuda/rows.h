// Device code that the layer kernels share: rows of float32 or bfloat16 read and written in pieces of up to 16 bytes,
// sums over threads in a fixed order, the usual functions.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace qdelta::cuda {

using bf16 = __nv_bfloat16;

// The element type where only the run knows it: for odd shapes and small tensors.
struct Either {};

// N elements, as they lie in memory.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  __device__ float operator[](int i) const { return static_cast<float>(values[i]); }
};
template <>
struct Pack<Either, 1> {
  float value;
  __device__ float operator[](int /*i*/) const { return value; }
};

// A matrix of contiguous columns.
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
struct Rows<Either> {
  void* data = nullptr;
  std::int64_t ld = 0;
  bool narrow = false;  // bfloat16

  __device__ float at(std::int64_t offset) const {
    return narrow ? static_cast<float>(static_cast<const bf16*>(data)[offset])
                  : static_cast<const float*>(data)[offset];
  }
  __device__ void put(std::int64_t offset, float value) const {
    if (narrow) {
      static_cast<bf16*>(data)[offset] = bf16(value);
    } else {
      static_cast<float*>(data)[offset] = value;
    }
  }
  template <int N>
  __device__ Pack<Either, N> load(std::int64_t row, std::int64_t column) const {
    static_assert(N == 1);
    return {at(row * ld + column)};
  }
  template <int N>
  __device__ void store(std::int64_t row, std::int64_t column, const float (&values)[N]) const {
    static_assert(N == 1);
    put(row * ld + column, values[0]);
  }
};

// Elements per access: 16 bytes of bfloat16; where float32 takes part, 16 bytes of that.
template <class T>
inline constexpr int kNarrowest = 4;
template <>
inline constexpr int kNarrowest<bf16> = 8;
template <>
inline constexpr int kNarrowest<Either> = 1;
template <class... T>
inline constexpr int kAccess = [] {
  int width = 8;
  ((width = kNarrowest<T> < width ? kNarrowest<T> : width), ...);
  return width;
}();

// 2^x and 1/x to two units in the last place, one instruction each; what is smaller than a normal number is zero.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline constexpr float kLog2e = 1.4426950408889634F;

__device__ inline float sigmoid(float x) { return fast_inverse(1.0F + fast_exp2(-kLog2e * x)); }
// log(1 + exp(x)) without overflow.
__device__ inline float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(__expf(-fabsf(x))); }
// The derivative of silu(x) = x sigmoid(x), with s = sigmoid(x).
__device__ inline float silu_slope(float x, float s) { return s * (1.0F + x * (1.0F - s)); }

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// The sum over a block of Threads threads, for all of them; `shared` has room for one value of each warp. Ends with a
// barrier, so that `shared` may be used again.
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
