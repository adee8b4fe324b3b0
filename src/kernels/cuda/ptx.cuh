// PTX instructions that C++ has no words for, a function each, in one place: whoever reads a kernel need not read
// assembly, and tests/emulator puts other bodies behind the same names to run the kernels without a GPU.
#pragma once

#include <cstdint>

namespace qdelta::cuda::ptx {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetic.

// 2^x and 1/x to 2 ulp, one instruction each; denormals are flushed to zero.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The compiler knows nothing of the value after this: what it was computed from need not be kept.
__device__ inline void hide_from_compiler(unsigned& value) { asm volatile("" : "+r"(value)); }

// ---------------------------------------------------------------------------------------------------------------------
// Global memory. Predicated, without a branch, so that many can be in flight. Loads give zero where not valid; no
// thread may write what is loaded during the kernel.

__device__ inline std::uint16_t load_2_bytes(const void* from, bool valid) {
  std::uint16_t bits;
  asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; mov.b16 %0, 0; @valid ld.global.b16 %0, [%1]; }"
               : "=&h"(bits)
               : "l"(from), "r"(valid ? 1 : 0));
  return bits;
}
__device__ inline float load_float(const void* from, bool valid) {
  float value;
  asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; mov.b32 %0, 0; @valid ld.global.b32 %0, [%1]; }"
               : "=&f"(value)
               : "l"(from), "r"(valid ? 1 : 0));
  return value;
}
__device__ inline uint2 load_8_bytes(const void* from, bool valid) {
  uint2 packed;
  asm volatile(
      "{ .reg .pred valid; setp.ne.b32 valid, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
      "@valid ld.global.v2.b32 {%0, %1}, [%2]; }"
      : "=&r"(packed.x), "=&r"(packed.y)
      : "l"(from), "r"(valid ? 1 : 0));
  return packed;
}
__device__ inline uint4 load_16_bytes(const void* from, bool valid) {
  uint4 vector;
  asm volatile(
      "{ .reg .pred valid; setp.ne.b32 valid, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
      "@valid ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(vector.x), "=&r"(vector.y), "=&r"(vector.z), "=&r"(vector.w)
      : "l"(from), "r"(valid ? 1 : 0));
  return vector;
}
__device__ inline void store_2_bytes(void* to, std::uint16_t bits, bool valid) {
  asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; @valid st.global.b16 [%0], %1; }" ::"l"(to), "h"(bits),
               "r"(valid ? 1 : 0)
               : "memory");
}
__device__ inline void store_float(void* to, float value, bool valid) {
  asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %2, 0; @valid st.global.b32 [%0], %1; }" ::"l"(to), "f"(value),
               "r"(valid ? 1 : 0)
               : "memory");
}
__device__ inline void store_8_bytes(void* to, uint2 packed, bool valid) {
  asm volatile("{ .reg .pred valid; setp.ne.b32 valid, %3, 0; @valid st.global.v2.b32 [%0], {%1, %2}; }" ::"l"(to),
               "r"(packed.x), "r"(packed.y), "r"(valid ? 1 : 0)
               : "memory");
}
// Not predicated; 8 or 16 bytes that start at a multiple of as many.
__device__ inline void store_vector(void* to, uint2 vector) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(vector.x), "r"(vector.y) : "memory");
}
__device__ inline void store_vector(void* to, uint4 vector) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(vector.x), "r"(vector.y), "r"(vector.z),
               "r"(vector.w)
               : "memory");
}
__device__ inline void store_vector(void* to, float4 vector) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(vector.x), "f"(vector.y), "f"(vector.z),
               "f"(vector.w)
               : "memory");
}
// Into L2.
__device__ inline void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// ---------------------------------------------------------------------------------------------------------------------
// Asynchronous copies from global to shared memory.

// 16 bytes; zeros where not valid.
__device__ inline void cp_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but the newest kNewest groups that this thread committed.
template <int kNewest>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrix fragments. All lanes of a warp call these together.

// Four 8 x 8 matrices of 16-bit elements from shared memory. Lane 8 i + r has the address of row r of matrix i; a lane
// gets elements (group, 2 quad + {0, 1}) of each, or with `trans` elements (2 quad + {0, 1}, group).
__device__ inline void ldmatrix_x4(std::uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(std::uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
// The reverse of ldmatrix_x4, from compute capability 9.0 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasStmatrix = true;
__device__ inline void stmatrix_x4(void* row, const std::uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
#else
inline constexpr bool kHasStmatrix = false;
__device__ inline void stmatrix_x4(void* /*row*/, const std::uint32_t (&/*x*/)[4]) {}
#endif
// Transposes an 8 x 8 matrix of 16-bit elements, of which each lane holds (group, 2 quad + {0, 1}).
__device__ inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// c += a b: m16n8k16 of bf16, and m16n8k8 of tf32.
__device__ inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace qdelta::cuda::ptx
