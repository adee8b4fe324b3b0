// Device code that kernels over the rows of a matrix share: vectorized loads and stores of float32 or bfloat16 rows, up
// to 16 bytes at a time, reductions in a fixed order, activation functions.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/ptx.cuh"

namespace qdelta::cuda {

using bf16 = __nv_bfloat16;

// In place of an element type: known at run time only. For unaligned shapes and small tensors, one element at a time.
struct RuntimeType {};

// N adjacent elements, loaded or stored with one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, bf16> && N > 1) {
      std::uint32_t pair;  // one instruction instead of two
      memcpy(&pair, values + i / 2 * 2, sizeof(pair));
      return __uint_as_float(i % 2 == 0 ? pair << 16U : pair & 0xffff0000U);
    } else {
      return static_cast<float>(values[i]);
    }
  }
};
template <>
struct Pack<RuntimeType, 1> {
  float value;
  __device__ float operator[](int /*i*/) const { return value; }
};

// N values as T, with one instruction: left to itself the compiler stores some vectors element by element.
template <class T, int N>
__device__ void store_values(T* to, const float (&values)[N]) {
  if constexpr (std::is_same_v<T, bf16> && (N == 4 || N == 8)) {
    std::uint32_t words[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
    if constexpr (N == 4) ptx::store_vector(to, uint2{words[0], words[1]});
    if constexpr (N == 8) ptx::store_vector(to, uint4{words[0], words[1], words[2], words[3]});
  } else if constexpr (std::is_same_v<T, float> && N == 4) {
    ptx::store_vector(to, float4{values[0], values[1], values[2], values[3]});
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = T(values[i]);
  }
}

// A row-major matrix; ld is the stride between rows, in elements.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t ld = 0;

  // The part that begins there.
  __device__ Rows from(std::int64_t row, std::int64_t column) const { return {data + row * ld + column, ld}; }
  template <int N>
  __device__ Pack<T, N> load(std::int64_t row, std::int64_t column) const {
    return *reinterpret_cast<const Pack<T, N>*>(data + row * ld + column);
  }
  template <int N>
  __device__ void store(std::int64_t row, std::int64_t column, const float (&values)[N]) const {
    store_values(data + row * ld + column, values);
  }
};
template <>
struct Rows<RuntimeType> {
  void* data = nullptr;
  std::int64_t ld = 0;
  bool is_bf16 = false;

  __device__ Rows from(std::int64_t row, std::int64_t column) const {
    return {static_cast<char*>(data) + (row * ld + column) * (is_bf16 ? 2 : 4), ld, is_bf16};
  }
  __device__ float get(std::int64_t offset) const {
    return is_bf16 ? static_cast<float>(static_cast<const bf16*>(data)[offset])
                   : static_cast<const float*>(data)[offset];
  }
  // Zero where not valid; without a branch, so that one load need not wait for another. Of what the kernel only reads.
  [[nodiscard]] __device__ float get_if(std::int64_t offset, bool valid) const {
    const auto* bytes = static_cast<const char*>(data);
    const std::uint16_t bits = ptx::load_2_bytes(bytes + 2 * offset, valid && is_bf16);
    const float value = ptx::load_float(bytes + 4 * offset, valid && !is_bf16);
    return is_bf16 ? __uint_as_float(std::uint32_t{bits} << 16U) : value;
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

// The sum of each over a warp, in all lanes.
template <class... T>
__device__ void warp_sums(T&... values) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) ((values += __shfl_xor_sync(0xffffffffU, values, step)), ...);
}
template <class T>
__device__ T warp_sum(T value) {
  warp_sums(value);
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
// Two at once.
template <int Threads, int Warps>
__device__ void block_sums(float (&shared)[2][Warps], float& a, float& b) {
  warp_sums(a, b);
  if constexpr (Threads == 32) return;
  if (threadIdx.x % 32 == 0) {
    shared[0][threadIdx.x / 32] = a;
    shared[1][threadIdx.x / 32] = b;
  }
  __syncthreads();
  a = shared[0][0];
  b = shared[1][0];
#pragma unroll
  for (int w = 1; w < Threads / 32; ++w) {
    a += shared[0][w];
    b += shared[1][w];
  }
  __syncthreads();
}

}  // namespace qdelta::cuda
